"""One traffic, two policies: what would change."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.config.policy.model import Policy
from gateway.steps.traffic_log.format import Recorded
from gateway.steps.traffic_log.reader import Traffic
from gateway.tools.simulation.caveats import notes_of
from gateway.tools.simulation.dataset import day_of
from gateway.tools.simulation.latency_model import Latencies
from gateway.tools.simulation.plans import semantic_floor
from gateway.tools.simulation.replay import Outcome, Replay, Setting
from gateway.tools.simulation.summary import Side, by_route, recorded_side, side_of

EXAMPLES = 10
ID_BYTES = 8  # of a digest that stands for a question


@dataclass(frozen=True, slots=True)
class Half:
    """What became of the traffic under one policy."""

    policy: str  # hash
    side: Side
    routes: dict[str, Side]
    outcomes: Sequence[Outcome]

    def as_json(self) -> dict[str, Any]:
        routes = {name: side.as_json() for name, side in self.routes.items()}
        return {"policy": self.policy, **self.side.as_json(), "routes": routes}


@dataclass(frozen=True, slots=True)
class Simulation:
    """`seconds`: what the replays took, reading not counted."""

    requests: Sequence[Recorded]
    present: Half
    new: Half
    notes: tuple[str, ...]
    seconds: float

    def changed(self) -> Iterator[int]:
        """The numbers of the requests that something else would become of."""
        for at, (old, new) in enumerate(zip(self.present.outcomes, self.new.outcomes, strict=True)):
            if (old.verdict, old.backend) != (new.verdict, new.backend):
                yield at

    def as_json(self) -> dict[str, Any]:
        changed = list(self.changed())
        return {
            "ok": True,
            "traffic": {
                "requests": len(self.requests),
                "from": self.requests[0].at,
                "to": self.requests[-1].at,
                "seconds": self.seconds,
                "notes": list(self.notes),
            },
            "present": self.present.as_json(),
            "new": self.new.as_json(),
            "recorded": recorded_side(self.requests),
            "changed": {"requests": len(changed), "examples": [self._example(at) for at in _spread(changed)]},
        }

    def _example(self, at: int) -> dict[str, Any]:
        row = self.requests[at]
        return {
            "id": row.id,
            "at": row.at,
            "route": self.new.outcomes[at].route,
            "present": _shown(self.present.outcomes[at]),
            "new": _shown(self.new.outcomes[at]),
            "question": (row.given.question or row.given.canonical)[:ID_BYTES].hex(),
            "prompt": row.prompt,
        }


def simulate(traffic: Traffic, present: Policy, new: Policy, setting: Setting) -> Simulation:
    """Puts the traffic through both."""
    started = time.perf_counter()
    day = day_of(traffic, semantic_floor([present, new], traffic.heading.floor))
    latencies = Latencies(day.requests)
    replays = [(policy, Replay(policy, day, latencies, setting)) for policy in (present, new)]
    halves = [_half(policy, replay, replay.run()) for policy, replay in replays]
    notes = (*traffic.notes, *notes_of(day, present, new, [each for _, each in replays], setting))
    return Simulation(day.requests, halves[0], halves[1], notes, time.perf_counter() - started)


def _half(policy: Policy, replay: Replay, outcomes: Sequence[Outcome]) -> Half:
    return Half(policy.hash, side_of(outcomes, replay.plans.values()), by_route(outcomes, replay.plans), outcomes)


def _shown(outcome: Outcome) -> dict[str, Any]:
    return {
        "verdict": outcome.verdict,
        "reason": outcome.reason,
        "backend": outcome.backend,
        "similarity": outcome.similarity,
    }


def _spread(changed: Sequence[int]) -> Sequence[int]:
    """Some of them, from the beginning to the end."""
    step = max(1, len(changed) // EXAMPLES)
    return changed[::step][:EXAMPLES]
