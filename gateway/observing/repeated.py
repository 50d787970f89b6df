"""What each hit on one stored answer leaves behind, prepared: labels and the parts of its line in the access log that
are the same each time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import orjson

from gateway.messages import Entry, Verdict
from gateway.observing.access_log import COMMON
from gateway.observing.metrics import Labels
from gateway.observing.trace import Trace

if TYPE_CHECKING:
    from gateway.access.permits import Permit
    from gateway.cache.freshness import Lifetime
    from gateway.ports import Dialect
    from gateway.traffic.facts import Facts

STAGE: Labels = ("exact",)
NO_LABELS: Labels = ()


class Repeated(NamedTuple):
    """Of answers with status 200 to POST requests, all bytes of which were at hand."""

    entry: Entry
    lifetime: Lifetime  # that the policy holds it to
    dialect: Dialect
    tenant: str
    path: str
    facts: Facts | None
    permit: Permit | None
    expose_headers: bool
    tokens: int  # that each hit saves
    requests: Labels
    seconds: Labels
    route: Labels
    before_ms: bytes  # of the line, behind the id of the request
    behind_timing: bytes

    def trace_into(self, trace: Trace) -> None:
        """Notes what the stages would have noted."""
        trace.dialect, trace.route, trace.tenant = self.dialect, self.route[0], self.tenant
        trace.expose_headers, trace.facts, trace.permit = self.expose_headers, self.facts, self.permit

    def line(self, request_id: str, seconds: float, wall: float) -> bytes:
        """What `access_fields` says of it, as the log has it. `request_id`: of characters that JSON has as they are."""
        now, us = int(1e3 * wall + 0.5), int(1e6 * seconds + 0.5)
        ms = b"%d.%03d" % (us // 1000, us % 1000)
        return b'{"time":%d.%03d,%b,"id":"%b",%b"ms":%b,"timing_ms":{"exact":%b},%b}' % (
            now // 1000, now % 1000, COMMON, request_id.encode(), self.before_ms, ms, ms, self.behind_timing,
        )  # fmt: skip


def repeated_of(
    dialect: Dialect,
    entry: Entry,
    lifetime: Lifetime,
    *,
    route: str,
    tenant: str,
    path: str,
    permit: Permit | None,
    expose_headers: bool,
    facts: Facts | None = None,
) -> Repeated:
    """Of a request that has just ended in an exact hit."""
    before = {"method": "POST", "path": path, "status": 200, "route": route, "tenant": tenant[:12]}
    behind = {"dialect": dialect.name, "verdict": Verdict.EXACT, "backend": entry.backend}
    return Repeated(
        entry,
        lifetime,
        dialect,
        tenant,
        path,
        facts,
        permit,
        expose_headers,
        entry.input_tokens + entry.output_tokens,
        (route, dialect.name, Verdict.EXACT, "200"),
        (route, Verdict.EXACT),
        (route,),
        inner(before) + b",",
        inner(behind),
    )


def inner(fields: Mapping[str, object]) -> bytes:
    """Without its braces."""
    return orjson.dumps(fields)[1:-1]


def line_form(before: Mapping[str, object], steps: Iterable[str], behind: Mapping[str, object], more: bytes) -> bytes:
    """A line of the access log as a format. To be put in: the time, the request's id, milliseconds of all of it and of
    each of the `steps`, and what `more`, itself a format, asks for."""
    spent = b",".join(b'"%b":%%.3f' % step.encode() for step in steps)
    return b'{"time":%%.3f,%b,"id":"%%b",%b,"ms":%%.3f,"timing_ms":{%b},%b%b}' % (
        as_written(COMMON), as_written(inner(before)), spent, as_written(inner(behind)), more,
    )  # fmt: skip


def as_written(text: bytes) -> bytes:
    """For a format."""
    return text.replace(b"%", b"%%")
