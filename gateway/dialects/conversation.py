"""Common parts of conversation protocols: turns of text, and text responses, complete and as events."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import orjson

from gateway.calls import Call, Outgoing
from gateway.dialects.base import BaseDialect
from gateway.dialects.json_body import sent_model, well_formed
from gateway.dialects.sse import with_event_name
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.text_forms import is_invisible

# Split a text into the pieces of a stream. Pure.

# Some words a piece: small enough to look like a stream, large enough to be cheap. Texts without spaces, such as
# Chinese ones, come in pieces of up to 96 characters.
PIECE = re.compile(r"(?:\s{0,16}\S{1,24}\s{0,16}){1,4}|\s{1,64}")


def split_pieces(text: str) -> list[str]:
    """Split the text into pieces; joined, they are the text."""
    return PIECE.findall(text)


def is_blank(text: object) -> bool:
    """Return whether a value is no text, or a text in which nobody sees anything."""
    return not isinstance(text, str) or all(sign.isspace() or is_invisible(sign) for sign in text)


class Conversational(BaseDialect, ABC):
    """`Conversational` is the part of a `Dialect` for JSON events that are stored as they were sent."""

    reports_usage = True

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        if model is None and not call.model and call.body.get("prompt") is None:  # a stored prompt may name the model
            sent_model(model, call.body)
        body = call.body if model is None else {**call.body, "model": model}
        return Outgoing(path, orjson.dumps(body))

    def event(self, call: Call, data: bytes) -> Event:
        return with_event_name(data)

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        return events

    def answer_text(self, call: Call, payload: Sequence[bytes], streamed: bool) -> str | None:
        try:
            text = self._answer_text(call, self.whole(call, payload) if streamed else payload[0])
            return None if text is None else well_formed(text)
        except MalformedResponse:
            return None

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        return ()

    @abstractmethod
    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes: ...

    @abstractmethod
    def _answer_text(self, call: Call, whole: bytes) -> str | None:
        """Return the answer text as `answer_text` does. Raise `MalformedResponse`."""


def split_content(
    parts: list[Any], is_text: Callable[[Any], bool], plain: AbstractSet[str] | None = None
) -> tuple[str, list[Any]]:
    """Return the text of a turn, and its other parts (images, files, tool results), which must be equal for a match.

    With other parts, placeholders keep the positions of the texts, because they show which caption belongs to which
    image. `plain` are the keys of a part that is only text, or None for any keys.
    """
    texts = [part["text"] for part in parts if is_text(part)]
    if len(texts) == len(parts) and (plain is None or all(part.keys() <= plain for part in parts)):
        return "\n".join(texts), []
    return "\n".join(texts), [{**part, "text": None} if is_text(part) else part for part in parts]


def transcript(turns: Sequence[tuple[str, str]]) -> str:
    """Join (role, text) turns into one text, to judge complexity and for text-only backends. A single turn stays as it
    is.
    """
    if len(turns) == 1:
        return turns[0][1]
    return "\n\n".join([f"{role}: {text}" for role, text in turns if text])
