"""Which requests go straight to their backend, found out once a head, and what is prepared of such a request and of its
answer. Pure but for what it refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multidict import CIMultiDict

from gateway.adapters.gate import Gate
from gateway.adapters.http_exchange import is_event_stream
from gateway.backends.direct import Direct
from gateway.backends.lane import Lane
from gateway.data_port.heads import Head
from gateway.data_port.plans import UNDECIDED, Plan
from gateway.data_port.wire import STATUS_LINES, fields_of
from gateway.dialects.known import understands
from gateway.dialects.openai import OPERATIONS
from gateway.errors import BadRequest
from gateway.http1.heads import BODILESS
from gateway.http1.pool import Pool as Connections
from gateway.messages import Bypass, Provenance, Verdict
from gateway.observing.relayed import UPSTREAM, Relayed
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.ports import Clock, Dialect
from gateway.response_headers import explaining
from gateway.routing.balance import PeakEwma
from gateway.routing.retry import RetryBudget

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Leg:
    """Where requests with one head, for one model, are sent, and what of them is always the same."""

    direct: Direct
    lane: Lane
    gate: Gate
    budget: RetryBudget
    connections: Connections
    tenant: str
    kind: tuple[str, bool] | None  # of calls that take alike; None: no dialect knows them
    pace: PeakEwma | None
    model: str | None  # instead of the client's
    before: bytes  # of the request's head
    after: bytes
    bodiless: bool  # a request without a body says no length
    limit_s: float  # how long its answer may take to begin
    upload_limit_s: float  # likewise, with a body

    def takes(self, noted: Mapping[str, str]) -> bool:
        """Whether an answer whose head says so, and that is here, may go on as it is."""
        kind, connection = noted.get("content-type"), noted.get("connection")
        if connection is not None and connection.lower() not in ("keep-alive", "close"):
            return False  # it may name headers that end here
        return self.kind is None or kind == JSON or not is_event_stream(noted)

    def request(self, traces: bytes, body: bytes) -> bytes:
        if not body and self.bodiless:
            return self.before + traces + self.after + b"\r\n"
        return b"%b%b%bContent-Length: %d\r\n\r\n%b" % (self.before, traces, self.after, len(body), body)


@dataclass(frozen=True, slots=True)
class Way(Leg):
    """The leg of requests that only pass through, and what of their answers is always the same."""

    route: str
    learns: bool  # what one took tells of others
    told: Relayed
    start: bytes  # of the answer's head
    behind_id: bytes
    exposes: bool

    def answer(self, fields: bytes, request_id: str, upstream_s: float, date: str, body: bytes) -> bytes:
        """What `answer_headers` and `head_of` make of it. `fields`: of the backend. An id has no line break."""
        tenths = int(1e4 * upstream_s + 0.5)
        timing = b"%d.%d\r\n" % (tenths // 10, tenths % 10) if self.exposes else b""
        return b"%b%bx-request-id: %b%b%bContent-Length: %d\r\nDate: %b\r\n\r\n%b" % (
            self.start, fields, request_id.encode(), self.behind_id, timing, len(body), date.encode(), body,
        )  # fmt: skip


def way_of(head: Head, plan: Plan, model: str, telemetry: Telemetry, clock: Clock) -> Way | None:
    """None where the stages are to be asked. `model`: as the client named it; empty where no dialect knows the
    request."""
    route = plan.table.policy.match(head.path, model, plan.tenant, head.headers)
    direct: Direct | None = plan.table.chains[route.name].direct
    read_here = plan.dialect is not None
    if direct is None or (read_here and not direct.calls):
        return None
    leg = leg_of(direct, head, plan.dialect, plan.tenant, model)
    if leg is None:
        return None
    name, reason = direct.pool.name, Bypass.POLICY if read_here else Bypass.PASS_THROUGH
    trace = Trace(clock)
    trace.route = route.name
    explained = fields_of(explaining(Provenance(Verdict.BYPASS, reason, backend=name), trace))
    explained += f"Server-Timing: {UPSTREAM};dur=".encode()
    return Way(
        **leg,
        route=route.name,
        learns=read_here and OPERATIONS[head.path] != "embeddings",
        told=Relayed(
            telemetry,
            route=route.name,
            dialect="" if plan.dialect is None else plan.dialect.name,
            backend=name,
            tenant=plan.tenant,
            method=head.method,
            path=head.path,
        ),
        start=STATUS_LINES[200],
        behind_id=b"\r\nServer: nearhit\r\n" + (explained if direct.exposes else b""),
        exposes=direct.exposes,
    )


def leg_of(direct: Direct, head: Head, dialect: Dialect | None, tenant: str, model: str) -> dict[str, Any] | None:
    """The fields of a `Leg`; None where the stages are to be asked. `dialect` None: none reads the request."""
    backend, lane, read_here = direct.backend, direct.lane, dialect is not None
    if dialect is not None and not understands(backend.speaks, dialect):
        return None
    plain = CIMultiDict((name, value) for name, value in head.headers.items() if name.lower() not in UNDECIDED)
    try:
        before, after = backend.head(head.method, head.path, head.query, plain, read_here=read_here)
    except (BadRequest, ValueError):  # the stages say so
        return None
    kind = (OPERATIONS[head.path], False) if read_here else None
    return {
        "direct": direct,
        "lane": lane,
        "gate": backend.gate,
        "budget": direct.pool.budget,
        "connections": direct.client.client.pool,
        "tenant": tenant,
        "kind": kind,
        "pace": None if kind is None else lane.pace_of_kind(kind),
        "model": backend.model_for(model) if read_here else None,
        "before": before,
        "after": after,
        "bodiless": head.method in BODILESS,
        "limit_s": backend.first_byte_s(uploads=False),
        "upload_limit_s": backend.first_byte_s(uploads=not read_here),
    }
