"""What a replay cannot know, said rather than guessed: a sentence each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gateway.config.policy.model import Policy, Route
from gateway.tools.simulation.dataset import Day
from gateway.tools.simulation.replay import Replay, Setting

NOT_REPLAYED: tuple[tuple[str, Callable[[Route], bool]], ...] = (
    ("limits are not replayed: what they would refuse is counted as answered", lambda r: bool(r.limits)),
    ("cascades are not replayed: the tier that the complexity asks for is counted", lambda r: bool(r.target.cascade)),
    (
        "parts of a tier's calls are drawn by the question here, by the conversation in the gateway",
        lambda r: any(tier.parts for tier in r.target.tiers),
    ),
    (
        "questions that would wait for one in flight in other words (coalesce: on) are counted as misses",
        lambda r: r.semantic is not None and r.semantic.coalesce,
    ),
)
ALWAYS = (
    "load at backends, retries, hedges, removals and evictions are not replayed; what was stored before the traffic "
    "began is known as far as it was met"
)


def notes_of(day: Day, present: Policy, new: Policy, replays: Sequence[Replay], setting: Setting) -> Iterator[str]:
    """`replays`: of both, done."""
    routes = [*present.routes, *new.routes]
    yield from (said for said, applies in NOT_REPLAYED if any(map(applies, routes)))
    yield from _of_policies(day, present)
    yield from _of_names(day, routes, setting)
    yield from _unknown(replays)
    parts = sum(row.given.inputs for row in day.requests)
    if parts:
        yield f"{parts} calls of several inputs are taken over as they were"
    yield ALWAYS


def _of_policies(day: Day, present: Policy) -> Iterator[str]:
    others = Counter(row.policy for row in day.requests if row.policy != present.hash)
    if others:
        names = ", ".join(sorted(others))
        yield f"{others.total()} requests came under other policies ({names}): what really happened mixes them"


def _of_names(day: Day, routes: Sequence[Route], setting: Setting) -> Iterator[str]:
    if any(route.match.tenant is not None for route in routes):
        unknown = sum(row.given.tenant not in setting.tenants for row in day.requests)
        if unknown:
            yield (
                f"{unknown} requests are of tenants whose names are not known (auth.keys has them): "
                "no rule for a tenant matches them"
            )
    missing = {name for route in routes for name, _ in route.match.headers} - set(day.heading.headers)
    if missing:
        yield f"the headers {', '.join(sorted(missing))} were not recorded: rules for them match nothing"


def _unknown(replays: Sequence[Replay]) -> Iterator[str]:
    unknown: dict[str, int] = {}
    for replay in replays:
        for what, count in replay.calls.unknown.items():
            unknown[what] = max(count, unknown.get(what, 0))
    for what, count in sorted(unknown.items()):
        kind, _, of = what.partition(" ")
        if kind == "latency":
            yield f"no answer of {of} was recorded: {count} to it are left out of the latencies"
        elif kind == "tokens":
            yield f"the tokens of {count} answers are not known: {of} is counted without their cost"
        elif kind == "complexity":
            yield f"the complexity of {count} requests is not known: the backend that answered them is taken again"
        else:
            yield f"{count} answers were not inspected for the cache: they are counted as not stored"
