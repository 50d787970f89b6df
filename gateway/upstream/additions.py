"""Fields that the gateway itself adds to a call, and upstreams that refuse them. Pure.

Some servers answer 400 or 422 for any field that they do not know. A client cannot mend such an error about a field
that it never sent. So the call is sent once more without the field, and later calls go without it at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import orjson

from gateway.bounded_cache import BoundedCache
from gateway.calls import Call
from gateway.messages import Body, FullBody

REFUSALS = frozenset({400, 422})
USAGE, LIMIT = "stream_options", "max_completion_tokens"
OLD_LIMIT = "max_tokens"  # the name of LIMIT in the API's first version, which many servers still have
_ADDED: Mapping[str, tuple[bytes, ...]] = {USAGE: (b"stream_options", b"include_usage"), LIMIT: (LIMIT.encode(),)}
MAX_READ = 64 * 1024  # bytes of an error that are searched for the name of a field
MAX_MODELS = 1024  # remembered models of an upstream


class RefusedAdditions:
    """`RefusedAdditions` remembers, for the models of one upstream, which additions it refuses. `always` are those
    that it refuses for all models. If nothing is `known`, it refuses none, as most do.
    """

    def __init__(self, always: frozenset[str] = frozenset()) -> None:
        self._always = always
        self.known = bool(always)
        self._by_model: BoundedCache[str, frozenset[str]] = BoundedCache(MAX_MODELS)

    def of(self, model: str) -> frozenset[str]:
        return (self._by_model.get(model) or frozenset()) | self._always

    def remember(self, model: str, field: str) -> None:
        self.known = True
        self._by_model.put(model, (self._by_model.get(model) or frozenset()) | {field})

    def forget(self, model: str, field: str) -> None:
        self._by_model.put(model, (self._by_model.get(model) or frozenset()) - {field})


def additions(call: Call, sent: bytes, *, translated: bool) -> frozenset[str]:
    """Return the fields of the body `sent` that come from the gateway and that a server may refuse."""
    if not any(field.encode() in sent for field in _ADDED):
        return frozenset()
    body = orjson.loads(sent)
    if translated:
        return frozenset(field for field in _ADDED if field in body)
    added = frozenset(field for field in call.added if field in body and field in _ADDED)
    return added | {USAGE} if body.get(USAGE) != call.body.get(USAGE) else added


def refused_addition(body: Body, added: Set[str]) -> str | None:
    """Return the addition that an error names, or None if it names none."""
    if not isinstance(body, FullBody):
        return None
    text = body.data[:MAX_READ]
    return next((field for field in sorted(added) if any(word in text for word in _words(field))), None)


def _words(field: str) -> tuple[bytes, ...]:
    return _ADDED.get(field, (field.encode(),))


def without_additions(call: Call, sent: bytes, fields: frozenset[str], *, translated: bool) -> bytes:
    """Return the body without those `fields` that come from the gateway, and with what the client said instead."""
    dropped = additions(call, sent, translated=translated) & fields
    if not dropped:
        return sent
    body: dict[str, Any] = orjson.loads(sent)
    for field in dropped:
        value = body.pop(field)
        if field == LIMIT:
            body[OLD_LIMIT] = value
        elif not translated and call.body.get(field) is not None:
            body[field] = call.body[field]
    return orjson.dumps(body)
