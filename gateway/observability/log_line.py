"""The access log's line as a template: requests that end alike differ in a few values alone.

Neither prompts nor credentials nor query strings are ever in it; a path only where the gateway itself knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import orjson

from gateway.context import RequestContext
from gateway.messages import Provenance

if TYPE_CHECKING:
    from gateway.ports import Judged

Values = Callable[[RequestContext, Provenance | None], Sequence[Any]]
"""What a field's slots are filled with."""


class LogLine:
    """The line of all requests that share what decides its shape: their status, route, verdict, and which steps and
    values they have. `RequestSeries` says which do."""

    __slots__ = ("_extras", "_form")

    def __init__(self, request: RequestContext, status: int, provenance: Provenance | None) -> None:
        known = request.dialect is not None
        fields: list[tuple[str, bytes]] = [
            ("time", b"%.3f"),
            ("level", _constant("info")),
            ("logger", _constant("nearhit.access")),
            ("message", _constant("request")),
            ("id", b'"%b"'),
            ("method", _constant(request.method)),
            ("path", b"%b" if known else _constant("(pass-through)")),
            ("status", _constant(status)),
            ("route", _constant(request.route)),
            ("tenant", b"%b"),
            ("ms", b"%.3f"),
            ("timing_ms", b"{%b}" % _joined([(step, b"%.3f") for step in request.timings])),
        ]
        extras: list[Values] = []
        if request.traced is not None:
            fields.append(("trace_id", b'"%b"'))
        if request.dialect is not None:
            fields.append(("dialect", _constant(request.dialect.name)))
        if provenance is not None:
            fields.append(("verdict", _constant(provenance.verdict)))
            said = (("reason", provenance.reason), ("backend", provenance.backend))
            fields += [(name, _constant(value)) for name, value in said if value is not None]
            if provenance.similarity is not None:
                fields.append(("similarity", b"%.4f"))
                extras.append(_similarity)
        if request.judged is not None:
            fields.append(("judged", b"{%b}" % _joined([(name, b"%.4f") for name in JUDGED])))
            extras.append(_judged)
        if request.complexity is not None:
            fields.append(("complexity", b"%.4f"))
            extras.append(_complexity)
        if request.note is not None:
            fields.append(("note", _constant(request.note)))
        self._form = b"{%b}" % _joined(fields)
        self._extras = extras

    def of(self, request: RequestContext, provenance: Provenance | None, wall: float, seconds: float) -> bytes:
        """`wall`: wall clock, seconds; `seconds`: from the request's arrival to the end of its answer."""
        known = request.dialect is not None
        values: list[Any] = [wall, request.id.encode()]
        if known:
            values.append(_text(request.path))
        values += (_text(request.tenant[:12]), 1e3 * seconds, *map(IN_MS, request.timings.values()))
        if request.traced is not None:
            values.append(request.traced.trace_id.encode())
        for extra in self._extras:
            values += extra(request, provenance)
        return self._form % tuple(values)


MAX_TEXTS = 1024  # of at most a request line each
JUDGED = ("similarity", "score", "threshold", "probability")
IN_MS = (1e3).__mul__  # of seconds


def _similarity(_: RequestContext, provenance: Provenance | None) -> Sequence[Any]:
    assert provenance is not None
    return (provenance.similarity,)


def _judged(request: RequestContext, _: Provenance | None) -> Sequence[Any]:
    judged: Judged | None = request.judged
    assert judged is not None
    return judged.similarity, judged.score, judged.threshold, judged.probability


def _complexity(request: RequestContext, _: Provenance | None) -> Sequence[Any]:
    return (request.complexity,)


@lru_cache(maxsize=MAX_TEXTS)
def _text(text: str) -> bytes:
    """As JSON. Remembered: paths and tenants come again and again. What came as bytes that are no UTF-8 is replaced."""
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError:
        return orjson.dumps(text.encode("utf-8", "replace").decode())


def _constant(value: object) -> bytes:
    return orjson.dumps(value).replace(b"%", b"%%")


def _joined(fields: Iterable[tuple[str, bytes]]) -> bytes:
    return b",".join([b"%b:%b" % (_constant(name), form) for name, form in fields])
