"""The section `privacy` of a route, and its decisions on calls and questions. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from gateway.cache.redaction import Redaction
from gateway.calls import Call, Decisive
from gateway.config.policy.schema import enabled_caches
from gateway.config.validation import NOT_EMPTY, Problem, Section, one_of
from gateway.features.privacy.call_texts import texts_of
from gateway.features.privacy.personal_data import MAX_READ, Finding, Kind, find, redact, values_digest
from gateway.outcomes import Bypass

_NO_NAMES = {"name": "no pattern finds names, and a language model misses too many (docs/security.md)"}
SUMMARY = (
    "`{pii: [email, phone], action: redact-key}`: what the caches make of personal data. Without it, nobody looks for "
    "it."
)


class PrivacyRule(Section, Redaction):
    """Personal data in requests, and what the caches make of it."""

    pii: Annotated[
        tuple[Annotated[Kind, one_of(*get_args(Kind), refused=_NO_NAMES)], ...],
        Field(strict=False),
        NOT_EMPTY,
    ] = Field(examples=["[email, phone]"])
    """The kinds to look for: `email`, `phone`, `card`, `iban`, `ssn`. Cards and IBANs count only with the right check
    digits."""
    action: Annotated[Literal["bypass", "redact-key", "store"], one_of("bypass", "redact-key", "store")] = "bypass"
    """`bypass`: a request with such data is neither looked up nor stored. `redact-key`: the question is embedded and
    stored without the data, and only questions with the same data match. `store`: they are only counted."""

    def read(self, call: Call) -> tuple[Call, tuple[Kind, ...]]:
        """Return the call as the caches and the logs may see it, and the kinds that it has.

        `bypass` reads all texts of the call, because an answer may repeat any of them. `redact-key` reads the question:
        the turns before it are part of the scope as a digest. The backend gets the request as it came.
        """
        if self.action == "redact-key":
            return self._redacted(call)
        text = _text_of(call)
        kinds = () if text is None else _kinds_of(find(text, self.pii))
        if self.action == "bypass" and (kinds or text is None):
            # The complexity model and the traffic log of the route read the question of such a call, too.
            call = replace(self._redacted(call)[0], uncached=call.uncached or Bypass.PERSONAL_DATA)
        return call, kinds

    def redact(self, text: str) -> str:
        return text if self.action == "store" else redact(text, find(text, self.pii))

    def redact_question(self, decisive: Decisive) -> tuple[Decisive, Bypass | None]:
        if self.action == "store":
            return decisive, None
        redacted, findings = _question_without(decisive, self.pii)
        return redacted, Bypass.PERSONAL_DATA if findings and self.action == "bypass" else None

    def keeps_out(self, question: str | None) -> bool:
        if question is None or self.action == "store":
            return False
        return len(question) > MAX_READ or bool(find(question, self.pii))

    def _redacted(self, call: Call) -> tuple[Call, tuple[Kind, ...]]:
        decisive, findings = _question_without(call.decisive, self.pii)
        return call if decisive is call.decisive else replace(call, decisive_source=decisive), _kinds_of(findings)


def privacy_problems(route: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the faults of `privacy` next to the caches and the traffic log of a route, which is as written."""
    privacy, cache = route.get("privacy"), route.get("cache")
    if not isinstance(privacy, dict):
        return
    caches = cache if isinstance(cache, dict) else {}
    if not enabled_caches(cache) and route.get("record") in (None, False, "off"):
        yield Problem("privacy", "has nothing to protect, expected cache.exact, cache.semantic or record")
    elif privacy.get("action") == "redact-key" and not isinstance(caches.get("semantic"), dict):
        yield Problem("privacy", "redact-key changes the text that is embedded, expected cache.semantic")


def _text_of(call: Call) -> str | None:
    """Return the texts of a call as one, or None if they are longer than `MAX_READ`."""
    texts, length = [], 0
    for text in texts_of(call):
        texts.append(text)
        length += len(text) + 1
        if length > MAX_READ:
            return None
    return "\n".join(texts)


def _question_without(decisive: Decisive, kinds: Sequence[Kind]) -> tuple[Decisive, tuple[Finding, ...]]:
    """Return what decides the answer, with a redacted question and the values as a part of the scope."""
    question, context = decisive.question, decisive.context
    if question is None:
        return decisive, ()
    if len(question) > MAX_READ:  # then it has an exact key only
        return Decisive(decisive.canonical, context, None, Bypass.TOO_LONG), ()
    findings = find(question, kinds)
    if not findings:
        return decisive, ()
    redacted = redact(question, findings)
    return Decisive(decisive.canonical, context + values_digest(findings), redacted, decisive.no_question), findings


def _kinds_of(findings: Sequence[Finding]) -> tuple[Kind, ...]:
    return tuple(dict.fromkeys(finding.kind for finding in findings))
