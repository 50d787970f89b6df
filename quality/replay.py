"""Replays a stream through the decision of the gateway.

It uses the nearest stored questions by exact cosine, and the verifier's opinions on them. The route's control has its
evidence and its threshold, and learns from the labels of misses and audits.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.cache.judgement import MAX_CANDIDATES, observation_of
from gateway.cache.threshold.route_control import RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.ports import Acceptance, Embedder, Judgement
from quality.decision import Decision, StoredQuestion
from quality.labels import Labels
from quality.streams import order
from quality.world import Opinions, World

GROWN = 10  # times as large the cache becomes, between these two requests
GROWS_FROM, GROWS_TO = 1000, 2000


@dataclass(frozen=True, slots=True)
class Run:
    """The outcome of each request, in the order in which they came."""

    asked: NDArray[np.int64]
    stored: NDArray[np.int64]  # whose answer was served; -1: a miss
    repeated: NDArray[np.bool_]  # an answer to it was in the cache
    audited: int
    entries: int  # in the cache at the end
    threshold: float  # in force at the end

    @property
    def served(self) -> NDArray[np.bool_]:
        return self.stored >= 0

    def wrong(self, labels: Labels) -> NDArray[np.bool_]:
        pairs = zip(self.asked, self.stored, strict=True)
        return np.array([s >= 0 and not labels.same(int(a), int(s)) for a, s in pairs], bool)


@dataclass(slots=True)
class Cache:
    """The stored questions of one world."""

    world: World
    held: NDArray[np.bool_]
    answers: set[int]

    def near(self, request: int, floor: float) -> list[tuple[StoredQuestion, float]]:
        found, similarities = self.world.near[request], self.world.similarities[request]
        inside = np.flatnonzero(self.held[found])[:MAX_CANDIDATES]
        return [(self.world.stored[found[at]], float(similarities[at])) for at in inside if similarities[at] >= floor]

    def add(self, question: int) -> None:
        self.held[question] = True
        self.answers.add(self.world.stream.answers[question])


class Replay:
    """One stream and one verifier; `play` may be called as often as wanted."""

    def __init__(self, world: World, opinions: Opinions, embedder: Embedder, labels: Labels) -> None:
        self.world, self.opinions, self.labels = world, opinions, labels
        self._embedder = embedder

    def play(
        self,
        control: RouteControl,
        budget: float,
        *,
        audit: float = 0.05,
        seed: int = 0,
        grow: bool = False,
        requests: slice = slice(None),
        serve: bool = True,
    ) -> Run:
        """Replay the requests. `audit`: the share of hits that are compared with a fresh answer. `grow`: see GROWN.

        `serve`: if False, only equal words are a hit.
        """
        asked = order(self.world.stream, seed)[requests]
        return asyncio.run(self._play(asked, control, budget, audit, np.random.default_rng(seed), grow, serve))

    async def _play(
        self,
        asked: NDArray[np.int64],
        control: RouteControl,
        budget: float,
        audit: float,
        draw: np.random.Generator,
        grow: bool,
        serve: bool,
    ) -> Run:
        decision = Decision(self.opinions, self._embedder, control, budget)
        cache = Cache(self.world, np.zeros(len(self.world.stored), bool), set())
        fill = CacheFiller(self.world, len(asked), draw) if grow else None
        stored, repeated, audited = np.full(len(asked), -1), np.zeros(len(asked), bool), 0
        for step, request in enumerate(map(int, asked)):
            control.advance(step + 1)
            if fill is not None:
                fill(step, cache)
            repeated[step] = self.world.stream.answers[request] in cache.answers
            decision.entries = int(cache.held.sum())
            chosen = await self._look_up(decision, request, cache)
            if chosen is not None and chosen.final and chosen.opinion.veto is None and not chosen.verbatim:
                control.record_neighbour(chosen.score, decision.entries)
            if chosen is not None and chosen.reason is None and (serve or chosen.verbatim):
                stored[step] = int(chosen.entry.fingerprint)
                if self._audit(request, chosen, control, audit, draw):
                    audited += 1
                    cache.add(request)  # the audit's fresh answer is stored as any other
            else:
                if chosen is not None and chosen.final and chosen.opinion.veto is None:
                    # The fresh answer tells, for nothing, whether the neighbour's would have been right.
                    control.learn(observation_of(chosen, self._label(request, chosen)))
                cache.add(request)
        end = control.threshold(Acceptance(max_wrong_hits=budget))
        return Run(asked, stored, repeated, audited, int(cache.held.sum()), end)

    async def _look_up(self, decision: Decision, request: int, cache: Cache) -> Judgement | None:
        near = cache.near(request, self.opinions.floor)
        if not near:
            return None
        return await decision.judge(self.world.stream.questions[request], self.world.vectors[request], near)

    def _label(self, request: int, chosen: Judgement) -> Label:
        return Label.RIGHT if self.labels.same(request, int(chosen.entry.fingerprint)) else Label.WRONG

    def _audit(
        self, request: int, chosen: Judgement, control: RouteControl, audit: float, draw: np.random.Generator
    ) -> bool:
        """Return whether the hit was audited."""
        control.hit()
        chance = control.audit_chance(chosen.score, audit)
        if draw.random() >= chance:
            return False
        label = self._label(request, chosen)
        control.audited(label, chance)
        if not chosen.verbatim:
            control.learn(observation_of(chosen, label))
        return True


class CacheFiller:
    """Adds questions that nobody asks to the cache, evenly over the requests, until it is GROWN times as large."""

    def __init__(self, world: World, requests: int, draw: np.random.Generator) -> None:
        self._others = draw.permutation(np.arange(world.stream.request_count, len(world.stream.questions)))
        self._start, self._end = min(GROWS_FROM, requests // 4), min(GROWS_TO, requests // 2)
        self._wanted = 0

    def __call__(self, step: int, cache: Cache) -> None:
        if step == self._start:
            self._wanted = min(len(self._others), (GROWN - 1) * int(cache.held.sum()))
        if self._start <= step < self._end:
            done, length = step - self._start, self._end - self._start
            for question in self._others[self._wanted * done // length : self._wanted * (done + 1) // length]:
                cache.add(int(question))
