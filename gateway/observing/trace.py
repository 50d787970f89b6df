"""The notebook of one request: what it has cost so far, stage by stage, and what is known of it.

The one object of a request that changes: the stages within write down what the outer ones report, also when the
request ends in an error and no response of theirs comes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from gateway.messages import Embedding, Entry
from gateway.observing.decimals import tenths_of_millis
from gateway.observing.traced import Traced, UpstreamCall
from gateway.ports import Clock, Dialect
from gateway.routing.outlook import Outlook
from gateway.routing.threshold import Wish

if TYPE_CHECKING:
    from gateway.access.permits import Permit
    from gateway.cache.freshness import Lifetime
    from gateway.cache.judged import Judged
    from gateway.ports import Inspection
    from gateway.traffic.facts import Facts


class Inspected(NamedTuple):
    """A fresh answer, before the policy's rules are held against it."""

    inspection: Inspection
    dollars: float
    size: int  # bytes
    seconds: float  # from before the backend was asked to its end


MAX_LINKS = 8


class Trace:
    """Spans are seconds, in the order in which the stages ended."""

    __slots__ = (
        "_clock", "asked", "complexity", "considered", "dialect", "embedding", "expose_headers", "facts", "inspected",
        "judged", "note", "outlook", "permit", "purpose", "route", "served", "spans", "stored", "tenant", "traced",
        "wish",
    )  # fmt: skip

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.spans: dict[str, float] = {}
        self.dialect: Dialect | None = None
        self.route = ""
        self.tenant = ""
        self.permit: Permit | None = None  # of the API key, where the gateway asks for one
        self.expose_headers = True
        self.served: tuple[Entry, Lifetime] | None = None  # of an exact hit: the entry and what it is held to
        self.judged: Judged | None = None  # what was made of the best neighbour, where there was one
        self.considered: Sequence[Judged] = ()  # every neighbour that was judged
        self.embedding: Embedding | None = None  # of the question
        self.stored: Entry | None = None  # what was admitted of a fresh answer
        self.inspected: Inspected | None = None  # what the dialect read from a fresh answer
        self.facts: Facts | None = None  # what is recorded of the request, on routes that say so
        self.complexity: float | None = None  # in [0, 1]
        self.wish: Wish | None = None  # what the rule between light and large asks for
        self.outlook: Outlook | None = None  # what the backends were predicted to take, where there is a budget
        self.note: str | None = None  # why no semantic lookup was made, or why the nearest neighbour was refused
        self.traced: Traced | None = None  # where traces are exported
        self.purpose = ""  # of work that is not part of the request: what it is for
        self.asked: UpstreamCall | None = None  # the last one, where the request is traced

    def span(self, name: str) -> Span:
        """Adds the time spent inside the `with` block to `name`."""
        return Span(self, self._clock, name)

    def apart(self, purpose: str) -> Trace:
        """For work on behalf of this request that is not part of it: the same origin, nothing spent yet. `purpose`: a
        word for what it is, `shadow` or the like."""
        trace = Trace(self._clock)
        trace.dialect, trace.route, trace.tenant, trace.permit = self.dialect, self.route, self.tenant, self.permit
        trace.traced, trace.purpose = self.traced, purpose
        return trace

    def handed_on(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """`headers` as what comes of this request later is to have them: with it as the parent, where it is traced."""
        return headers if self.traced is None else self.traced.handed_on(headers)

    def shared(self, origin: Traced | None) -> None:
        """The answer is that of another request, `origin`, where that one is traced."""
        if self.traced is not None and origin is not None and len(self.traced.links) < MAX_LINKS:
            self.traced.links.append((origin.trace_id, origin.span_id))

    def since(self, name: str, started: float) -> None:
        """Adds the time since `started` (monotonic seconds) to `name`."""
        now = self._clock.monotonic()
        self.spans[name] = self.spans.get(name, 0.0) + now - started
        if self.traced is not None:
            self.traced.mark(name, started, now, self.purpose)

    def took(self, spans: Mapping[str, float], began: float) -> None:
        """Adds steps that followed each other from `began` on (monotonic seconds)."""
        for name, seconds in spans.items():
            self.add(name, seconds)
            if self.traced is not None:
                self.traced.mark(name, began, began + seconds, self.purpose)
            began += seconds

    def add(self, name: str, seconds: float) -> None:
        self.spans[name] = self.spans.get(name, 0.0) + seconds

    def server_timing(self) -> str:
        """The header's value: milliseconds to 0.1 ms, what the verification came to, what was predicted."""
        told = "" if self.judged is None else f';desc="p={self.judged.probability:.3f}"'
        steps = [
            f"{name}{told if name == 'verify' else ''};dur={tenths_of_millis(seconds)}"
            for name, seconds in self.spans.items()
        ]
        if self.outlook is not None:
            steps.append(f'predict;desc="{self.outlook.told()}"')
        return ", ".join(steps)


class Span:
    """A class rather than a generator: a third of the cost, and every stage pays it."""

    __slots__ = ("_clock", "_name", "_started", "_trace")

    def __init__(self, trace: Trace, clock: Clock, name: str) -> None:
        self._trace = trace
        self._clock = clock
        self._name = name

    def __enter__(self) -> None:
        self._started = self._clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._trace.since(self._name, self._started)
