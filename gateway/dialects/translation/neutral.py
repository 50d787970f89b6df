"""Translates between any two dialects over the neutral form, which is OpenAI's chat. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gateway.calls import Call, Dialect, Outgoing, TranslatedCall, Translation
from gateway.dialects.known import DEFAULT, DIALECTS
from gateway.messages import Event

NEUTRAL = DEFAULT


def is_neutral(dialect: Dialect) -> bool:
    return dialect.name == NEUTRAL


def translation_between(client: Dialect, backend: Dialect) -> Translation | None:
    """Return the translation of the client's calls for the backend, or None if one of them knows no
    neutral form."""
    if (direct := backend.translation_from(client.name)) is not None:
        return direct
    if is_neutral(client):
        return backend.from_neutral
    if is_neutral(backend):
        return client.to_neutral
    if client.to_neutral is None or backend.from_neutral is None:
        return None
    return partial(_translate_twice, client.to_neutral, backend.from_neutral)


@dataclass(frozen=True, slots=True)
class ChainedCall:
    """A call in the backend's dialect, which was translated to a form between before."""

    to_client: TranslatedCall
    to_between: TranslatedCall

    @property
    def outgoing(self) -> Outgoing:
        return self.to_between.outgoing

    def whole(self, data: bytes) -> bytes:
        return self.to_client.whole(self.to_between.whole(data))

    def events(self, event: Event) -> Sequence[Event]:
        return [each for between in self.to_between.events(event) for each in self.to_client.events(between)]

    def error(self, status: int, data: bytes) -> bytes:
        return self.to_client.error(status, self.to_between.error(status, data))


def _translate_twice(
    to_neutral: Translation,
    from_neutral: Translation,
    call: Call,
    *,
    model: str | None,
    created: int,
    cache_control: bool = False,
    reasoning_content: bool = False,
) -> TranslatedCall:
    """Translate a call to the neutral form, and that for the backend."""

    def translate(translation: Translation, each: Call) -> TranslatedCall:
        return translation(
            each,
            model=model,
            created=created,
            cache_control=cache_control,
            reasoning_content=reasoning_content,
        )

    first = translate(to_neutral, call)
    neutral = DIALECTS[NEUTRAL].parse(first.outgoing.path, first.outgoing.body, {})
    return ChainedCall(first, translate(from_neutral, neutral))
