"""Tell to which tool call each delta of a chat stream belongs. Pure.

OpenAI numbers the calls of an answer: the `index` of a delta names its call, and only the first delta has an `id`.
Other servers give each call the index 0, or none, and tell the calls apart by their ids. Some repeat the name with
every delta, and some write another id into every delta of one call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.dialects.json_body import dump_json, is_json


@dataclass(slots=True)
class _Call:
    """The part of a call that tells it from other calls."""

    place: int  # among the calls of the choice
    index: int | None
    id: str | int | None
    name: str = ""
    is_named: bool = False  # even if the name is empty
    arguments: list[str] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a JSON object, after which no more can come."""
        return self.arguments[-1:] != [] and self.arguments[-1].rstrip().endswith("}") and is_json(self.text)

    @property
    def text(self) -> str:
        return "".join(self.arguments)

    @property
    def is_two(self) -> bool:
        """Whether the arguments are those of two calls."""
        text = self.text.lstrip()
        if not _opens(text) or is_json(text):
            return False
        try:
            _, end = json.JSONDecoder().raw_decode(text)
        except (ValueError, RecursionError):
            return False
        return _opens(text[end:])


@dataclass(slots=True)
class _Delta:
    """The fields of a delta that tell calls apart. Those that are absent, or of another type, are None or empty."""

    index: int | None
    id: str | int | None
    name: str | None
    arguments: str
    has_type: bool


class ToolCallDeltas:
    """`ToolCallDeltas` follows the deltas of one choice.

    An index that no call has begins a call, as does an id that no call has with a name. A delta without a name
    continues a call, whatever its id. A stream that numbers its calls in another way than OpenAI is understood if all
    its calls have complete arguments in the end.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}  # the last call of each index
        self._by_id: dict[str | int, _Call] = {}
        self._is_odd = False  # the index alone does not tell the calls apart
        self._is_guess = False  # neither the index nor the id does
        self.is_renamed = False  # a call has two names, or one that came in pieces

    def place(self, delta: Mapping[str, Any]) -> int:
        """Return the position of the delta's call among all calls; their number before the delta if it begins one."""
        read = _read(delta)
        call = self._call_of(read)
        if call is not None and call.name and read.name:
            renamed = read.name != call.name  # another call, or the rest of its name
            begins = (renamed or _opens(read.arguments)) and (call.is_complete or (renamed and read.index is None))
            self._is_guess = self._is_guess or renamed or begins
            self.is_renamed = self.is_renamed or (renamed and not begins)
            call = None if begins else call
        if call is None:
            call = _Call(len(self._calls), read.index, read.id)
            self._calls.append(call)
        call.name, call.is_named = read.name or call.name, call.is_named or read.name is not None
        if read.arguments:
            call.arguments.append(read.arguments)
        if call.id is None:
            call.id = read.id
        if read.index is not None:
            self._by_index[read.index] = call
        if read.id is not None:
            self._by_id.setdefault(read.id, call)
        return call.place

    def is_complete(self, place: int) -> bool:
        """Return whether the arguments of a call are a JSON object, after which no more can come."""
        return self._calls[place].is_complete

    def check(self) -> None:
        """Raise `ValueError` if the calls cannot be told apart."""
        is_unclear = self._is_guess or (self._is_odd and not all(call.is_complete for call in self._calls))
        is_unclear = is_unclear or len({call.is_named for call in self._calls}) > 1  # one may be the rest of another
        if is_unclear or any(call.is_two for call in self._calls):
            raise ValueError("the tool calls of the stream cannot be told apart")

    def _call_of(self, delta: _Delta) -> _Call | None:
        """Return the call that a delta continues, or None if it begins one."""
        if not self._calls:
            return None
        same_id = None if delta.id is None else self._by_id.get(delta.id)
        if delta.index is None:
            if same_id is not None or delta.id is None:
                return same_id or self._calls[-1]
            return self._unless_new(self._calls[-1], delta)
        call = self._by_index.get(delta.index)
        if call is not None:
            if delta.id is None or call.id is None or call.id == delta.id:
                return call
            if same_id is not None and same_id.index == delta.index:
                self._is_odd = True
                return same_id
            return self._unless_new(call, delta)
        if delta.name or delta.has_type or (delta.id is not None and same_id is None):
            return None
        self._is_odd = True  # servers that count the deltas in place of the calls
        return same_id or self._calls[-1]

    def _unless_new(self, call: _Call, delta: _Delta) -> _Call | None:
        """Return `call` if a delta with another id continues it all the same."""
        if not delta.name:
            self._is_odd = True
            return call
        if delta.name == call.name and not call.is_complete and (call.arguments or delta.index is not None):
            self._is_odd = True  # a server may repeat the name, too
            if call.arguments and not _opens(delta.arguments):
                return call
        return None


def _read(delta: Mapping[str, Any]) -> _Delta:
    function: Mapping[str, Any] = next(
        (delta[key] for key in ("function", "custom") if isinstance(delta.get(key), dict)), {}
    )
    given, name, arguments = delta.get("id"), function.get("name"), function.get("arguments", function.get("input"))
    return _Delta(
        _index(delta.get("index")),
        given if isinstance(given, str | int) and given != "" else None,
        name if isinstance(name, str) else None,
        arguments_text(arguments),
        isinstance(delta.get("type"), str),
    )


def _index(given: Any) -> int | None:
    """Return an index that a server may have written as a number with a fraction, or as a text."""
    try:
        return int(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else None
    except (ValueError, OverflowError):
        return None


def arguments_text(arguments: Any) -> str:
    """Return the arguments of a call as text. Some servers send them as a value."""
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else dump_json(arguments).decode()


def _opens(text: str) -> bool:
    return text.lstrip().startswith("{")
