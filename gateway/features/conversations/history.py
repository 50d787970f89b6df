"""Read the earlier turns of a call, and replace questions in them. Pure.

The turns are read from the canonical form of the call. So two clients that write the same conversation in different
ways have the same turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import orjson

from gateway.cache.keys import framed, keys_of
from gateway.calls import Call
from gateway.context import RequestContext
from gateway.entries import CacheKeys

TURN_FIELDS = ("messages", "input")  # the fields of the dialects that have turns
TEXT_TYPES = frozenset(("text", "input_text", "output_text"))
MAX_TURNS = 64  # messages; a longer conversation goes on as its client sent it


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """A question of the history with the answer that the client has got."""

    place: int  # of the question among the messages
    question: str
    scope: str  # the digest of all before the question, of what must be equal to share an answer, and of the answer


def has_history(call: Call) -> bool:
    """Return whether a call has earlier turns. It reads nothing but the length of a list."""
    for name in TURN_FIELDS:
        turns = call.body.get(name)
        if isinstance(turns, list) and 3 <= len(turns) <= MAX_TURNS:
            return True
    return False


class History:
    """The turns of a call. `rest` is everything else that decides the answer."""

    def __init__(self, request: RequestContext, call: Call) -> None:
        self._request, self._call = request, call
        body = orjson.loads(call.canonical)
        self._field = next((name for name in TURN_FIELDS if name in body), "")
        given = body.get(self._field)
        self.messages: list[Any] = [{"role": "user", "content": given}] if isinstance(given, str) else given or []
        self._body = body

    def answered(self) -> Iterator[AnsweredTurn]:
        """Yield the turns with a question and an answer that are plain text."""
        for place, message in enumerate(self.messages[:-2]):
            question, answer = text_of(message, "user"), text_of(self.messages[place + 1], "assistant")
            if question is not None and answer is not None:
                yield AnsweredTurn(place, question, self._scope(place, answer))

    def asked(self, answer: str) -> AnsweredTurn | None:
        """Return the last turn as it is in the history of the next call, once it got this answer."""
        place = len(self.messages) - 1
        question = text_of(self.messages[-1], "user") if self.messages else None
        return None if question is None else AnsweredTurn(place, question, self._scope(place, answer))

    def _scope(self, place: int, answer: str) -> str:
        request, call = self._request, self._call
        names = request.owner, request.route, call.dialect.name, call.operation, request.query, request.keys.variant
        rest = {name: value for name, value in self._body.items() if name != self._field}
        before = _dump([rest, self.messages[:place]])
        return sha256(b"nearhit/1/turn" + framed((*names, answer)) + before).hexdigest()

    def is_question_of(self, place: int, question: str, fingerprint: str) -> bool:
        """Return whether an entry holds the answer to `question` at this place: then it has the exact key of it."""
        asked = [*self.messages[:place], with_text(self.messages[place], question)]
        forms: list[Any] = [asked]
        if place == 0 and self._field == "input":  # a single turn may be sent as a text
            forms.append(question)
        names = {self._keys(_dump({**self._body, self._field: form}), b"").fingerprint for form in forms}
        if (asker := self._request.asker) is not None:
            names = {asker.own_key(name) for name in names}
        return fingerprint in names

    def replace(self, place: int, question: str) -> None:
        self.messages[place] = with_text(self.messages[place], question)

    def keys(self) -> CacheKeys | None:
        """Return the keys of the call with the questions as they are now, or None if its form does not show them."""
        decisive = self._call.decisive
        before = orjson.loads(decisive.canonical)[self._field][:-1]
        old, new = (b'"%b":%b,' % (self._field.encode(), _dump(turns)[:-1]) for turns in (before, self.messages[:-1]))
        if decisive.canonical.count(old) != 1 or decisive.context.count(old) != 1:
            return None
        return self._keys(decisive.canonical.replace(old, new), decisive.context.replace(old, new))

    def _keys(self, canonical: bytes, context: bytes) -> CacheKeys:
        request, decisive = self._request, copy(self._call.decisive)
        decisive.canonical, decisive.context = canonical, context
        call = replace(self._call, decisive_source=decisive)
        return keys_of(request.owner, request.route, call, request.query, request.keys.variant)


def text_of(message: Any, role: str) -> str | None:
    """Return the text of a message of this role, or None if it has anything else, such as a picture or a tool call."""
    if not isinstance(message, dict) or message.get("role") != role or message.get("tool_calls"):
        return None
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        return None
    return "".join(part["text"] for part in content) or None


def with_text(message: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return a message of plain text with another text, in the form that it has."""
    content = message.get("content")
    if isinstance(content, list) and content:
        return {**message, "content": [{**content[0], "text": text}]}
    return {**message, "content": text}


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in TEXT_TYPES and isinstance(part.get("text"), str)


def _dump(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
