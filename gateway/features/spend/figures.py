"""The figures of a route beside its costs: where its answers came from, what audits found, and what all that cost.

Most are counted as metrics already. The ledger books the differences, so that a report has the figures of all gateways
for any time. Requests pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields

from gateway.features.spend.rows import NANOS
from gateway.observability.metrics import LATENCY_BUCKETS, Counter
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict

GATEWAY = ""  # the route of figures that belong to no route
BUCKETS = len(LATENCY_BUCKETS) + 1
MICROS = 1_000_000  # of a second
TIMED = (Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE)  # hits that wait for no backend


@dataclass(slots=True)
class Figures:
    """The figures of a route in some time. The lists have counts by the buckets of `LATENCY_BUCKETS`. Names that end
    with `_nanos` are in billionths of a dollar, and those with `_micros` in millionths of a second. New ones come
    last: stored ones have no names."""

    hit_times: list[int] = field(default_factory=lambda: [0] * BUCKETS)  # of hits
    backend_times: list[int] = field(default_factory=lambda: [0] * BUCKETS)  # of the calls that their answers are from
    exact: int = 0
    semantic: int = 0
    stale: int = 0
    coalesced: int = 0
    audits_right: int = 0
    audits_wrong: int = 0
    audits_undecided: int = 0
    audits_failed: int = 0
    audit_nanos: int = 0  # audits of hits and of the light model, with the judge
    light_as_good: int = 0  # audits of answers of the light model, by their outcome
    light_worse: int = 0
    light_undecided: int = 0
    light_failed: int = 0
    light: int = 0  # requests that a lighter model than the last one has answered
    large: int = 0  # requests that the last one has answered, on routes with several
    light_unpriced: int = 0  # calls of lighter models that the last one, or they, have no price for
    routed_nanos: int = 0  # price of the last model for such calls, less their cost
    trials_failed: int = 0  # requests that went on to a better model after a light answer
    trial_nanos: int = 0  # calls for answers besides those that gave them
    request_micros: int = 0  # CPU of requests
    learning_micros: int = 0  # CPU of learning
    embed_micros: int = 0  # time in which questions were embedded

    def __iter__(self) -> Iterator[int]:
        yield from self.hit_times
        yield from self.backend_times
        for name in NAMES:
            yield getattr(self, name)

    def __bool__(self) -> bool:
        return any(self)

    def add(self, other: Figures, sign: int = 1) -> None:
        """Add the other figures, or with a `sign` of -1 subtract them."""
        for times, more in ((self.hit_times, other.hit_times), (self.backend_times, other.backend_times)):
            times[:] = [a + sign * b for a, b in zip(times, more, strict=True)]
        for name in NAMES:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))

    def packed(self) -> str:
        return " ".join(map(str, self))

    @staticmethod
    def of(packed: bytes) -> Figures:
        """Return the figures in the store. Raise `ValueError` if they are none."""
        numbers = [*map(int, packed.split())]
        if len(numbers) < 2 * BUCKETS:
            raise ValueError("expected the counts of two histograms")
        scalars = dict(zip(NAMES, numbers[2 * BUCKETS :], strict=False))
        return Figures(numbers[:BUCKETS], numbers[BUCKETS : 2 * BUCKETS], **scalars)


NAMES = tuple(each.name for each in fields(Figures))[2:]


class MetricFigures:
    """The figures that metrics count, as differences since the last look."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._seen: dict[str, Figures] = {GATEWAY: self._now(GATEWAY)}

    def follow(self, routes: Collection[str]) -> None:
        """Count these routes from now on, and others no more."""
        self._seen = {route: self._seen.get(route) or self._now(route) for route in (GATEWAY, *routes)}

    def differences(self) -> Mapping[str, Figures]:
        """Return the figures by route since the last call. Those of the gateway alone wait for others: an idle gateway
        writes nothing."""
        found: dict[str, Figures] = {}
        for route in self._seen:
            if route != GATEWAY:
                self._take(route, found)
        if found:
            self._take(GATEWAY, found)
        return found

    def _take(self, route: str, found: dict[str, Figures]) -> None:
        now, difference = self._now(route), Figures()
        difference.add(now)
        difference.add(self._seen[route], -1)
        if difference:
            self._seen[route] = now
            found[route] = difference

    def _now(self, route: str) -> Figures:
        telemetry = self._telemetry
        if route == GATEWAY:
            embed = telemetry.stage_seconds.counts.get(("embed",))
            return Figures(
                request_micros=round(_of(telemetry.cpu_seconds, "requests") * MICROS),
                learning_micros=round(_of(telemetry.cpu_seconds, "learning") * MICROS),
                embed_micros=0 if embed is None else round(embed.total * MICROS),
            )
        times = {verdict: telemetry.request_seconds.counts.get((route, verdict)) for verdict in Verdict}
        hits = [series for verdict in TIMED if (series := times[verdict]) is not None]
        counts = {str(verdict): sum(series) for verdict, series in times.items() if series is not None}
        audits, light = telemetry.audits, telemetry.light_audits
        return Figures(
            hit_times=[sum(column) for column in zip([0] * BUCKETS, *hits, strict=True)],
            exact=counts.get("exact", 0),
            semantic=counts.get("semantic", 0),
            stale=counts.get("stale", 0),
            coalesced=counts.get("coalesced", 0),
            audits_right=int(_of(audits, route, "right")),
            audits_wrong=int(_of(audits, route, "wrong")),
            audits_undecided=int(_of(audits, route, "undecided")),
            audits_failed=int(_of(audits, route, "failed")),
            audit_nanos=round(_of(telemetry.audit_cost, route) * NANOS),
            light_as_good=int(_of(light, route, "as-good")),
            light_worse=int(_of(light, route, "worse")),
            light_undecided=int(_of(light, route, "undecided")),
            light_failed=int(_of(light, route, "failed")),
        )


def _of(counter: Counter, *labels: str) -> float:
    return counter.values.get(labels, 0.0)
