"""Replays questions that come again after their answers have expired, with and without links and decoys.

`python -m quality.recurrence --eval FOLDER` prints a table. The threshold is fixed, so that the rows of one threshold
differ in links and decoys alone.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.cache.decoys import Decoys
from gateway.cache.links import LEAST_PROBABILITY, MAX_PER_QUESTION
from gateway.cache.model_factory import build_encoder, build_verifier
from gateway.config.schema import EmbedderConfig, VerifierConfig
from gateway.ports import Judgement
from quality.decision import CachingEmbedder, Decision, FixedThreshold
from quality.labels import Labels
from quality.replay import Cache
from quality.streams import from_evaluation, without_others
from quality.world import Opinions, World, world_of

AUDITED = 0.05  # share of semantic hits


@dataclass(slots=True)
class Outcome:
    """Counts of one replay."""

    requests: int = 0
    exact: int = 0
    semantic: int = 0
    wrong: int = 0
    links: int = 0  # of the semantic hits
    decoys: int = 0  # lookups whose best neighbour a decoy refused
    right_refused: int = 0  # of those, how many would have been right

    def row(self) -> str:
        rates = [self.exact, self.semantic, self.links, self.wrong, self.decoys, self.right_refused]
        return " | ".join(f"{100 * count / self.requests:.2f}" for count in rates)


@dataclass(slots=True)
class LearnedPairs:
    """The pairs that a replay has learned. None: off."""

    links: dict[int, list[int]] | None
    decoys: Decoys | None
    wrong: set[tuple[int, int]] = field(default_factory=set)
    reported: float = 0.0  # share of wrong hits that clients report; no fresh answer is fetched for them


def draw_requests(questions: NDArray[np.int64], requests: int, exponent: float, seed: int) -> NDArray[np.int64]:
    """Return requests for questions whose popularity follows a power law. `requests` 0: each question once."""
    draw = np.random.default_rng(seed)
    questions = draw.permutation(questions)
    if requests == 0:
        return questions
    weights = np.arange(1.0, len(questions) + 1) ** -exponent
    return questions[draw.choice(len(questions), requests, p=weights / weights.sum())]


class Recurrence:
    """One stream and one threshold. `lifetime`: requests for which an answer is fresh."""

    def __init__(
        self, world: World, opinions: Opinions, embedder: CachingEmbedder, labels: Labels, lifetime: int
    ) -> None:
        self._world, self._opinions, self._embedder, self._labels = world, opinions, embedder, labels
        self._lifetime = lifetime

    async def play(self, asked: NDArray[np.int64], threshold: float, learned: LearnedPairs, seed: int) -> Outcome:
        control = FixedThreshold(self._opinions, threshold, learn=False)
        decision = Decision(self._opinions, self._embedder, control, 0.01, learned.decoys)
        until, outcome = np.full(len(self._world.stored), -1), Outcome(len(asked))
        draws = np.random.default_rng(seed).random((len(asked), 2))  # the same in each row of the table
        for step, request in enumerate(map(int, asked)):
            if until[request] > step:
                outcome.exact += 1
                continue
            linked = self._linked_entry(learned, request, until > step)
            if linked is not None:
                right = self._labels.same(request, linked)
                outcome.semantic, outcome.links = outcome.semantic + 1, outcome.links + 1
                outcome.wrong += not right
                if draws[step, 0] < AUDITED:
                    until[request] = step + self._lifetime
                    self._learn(learned, request, linked, None, right=right)
                continue
            chosen = await self._look_up(decision, request, until > step, learned)
            if chosen is None:
                until[request] = step + self._lifetime
                continue
            entry = int(chosen.entry.fingerprint)
            right = self._labels.same(request, entry)
            if chosen.opinion.veto == "decoy":
                outcome.decoys, outcome.right_refused = outcome.decoys + 1, outcome.right_refused + right
            if chosen.reason is None:
                outcome.semantic, outcome.wrong = outcome.semantic + 1, outcome.wrong + (not right)
                if draws[step, 0] < AUDITED:
                    until[request] = step + self._lifetime
                    self._learn(learned, request, entry, chosen, right=right)
                elif not right and draws[step, 1] < learned.reported:
                    self._learn(learned, request, entry, chosen, right=False)
            else:
                until[request] = step + self._lifetime
                if chosen.final and chosen.opinion.veto is None:
                    self._learn(learned, request, entry, chosen, right=right)
        return outcome

    def _linked_entry(self, learned: LearnedPairs, request: int, fresh: NDArray[np.bool_]) -> int | None:
        """Return a fresh entry that is linked to the question."""
        entries = [] if learned.links is None else learned.links.get(request, [])
        return next((each for each in entries if fresh[each] and (request, each) not in learned.wrong), None)

    async def _look_up(
        self, decision: Decision, request: int, fresh: NDArray[np.bool_], learned: LearnedPairs
    ) -> Judgement | None:
        world = self._world
        found = Cache(world, fresh, set()).near(request, self._opinions.floor)
        near = [each for each in found if (request, int(each[0].fingerprint)) not in learned.wrong]
        return await decision.judge(world.stream.questions[request], world.vectors[request], near) if near else None

    def _learn(self, learned: LearnedPairs, request: int, entry: int, chosen: Judgement | None, *, right: bool) -> None:
        if not right:
            if chosen is None or chosen.reason is None:  # a hit, which an audit refutes
                learned.wrong.add((request, entry))
            if learned.decoys is not None:
                learned.decoys.add(str(entry), self._world.vectors[request])
        elif learned.links is not None and chosen is not None and chosen.probability >= LEAST_PROBABILITY:
            for question, other in ((request, entry), (entry, request)):
                others = learned.links.setdefault(question, [])
                learned.links[question] = [other, *(each for each in others if each != other)][:MAX_PER_QUESTION]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eval", type=Path, required=True, help="folder of the evaluation tools")
    parser.add_argument("--folder", type=Path, default=Path("build") / "quality", help="for vectors and opinions")
    parser.add_argument("--requests", type=int, default=15_000, help="0: each question once")
    parser.add_argument("--lifetime", type=int, default=3_000, help="requests for which an answer is fresh")
    parser.add_argument("--exponent", type=float, default=0.8, help="of the power law of popularity; 0: uniform")
    parser.add_argument("--reported", type=float, default=0.0, help="share of wrong hits that clients report")
    parser.add_argument("--reworded", action="store_true", help="only questions with other wordings in the stream")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.6, 0.5, 0.4])
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    stream = without_others(from_evaluation(given.eval.absolute(), 5000))
    encoder = build_encoder(EmbedderConfig(adapter="onnx", threads=1))
    opinions = Opinions(build_verifier(VerifierConfig(), EmbedderConfig()), given.folder, encoder.fingerprint)
    world, labels = world_of(stream, encoder, given.folder), Labels(stream, {})
    replay = Recurrence(world, opinions, CachingEmbedder(encoder), labels, given.lifetime)
    answers = np.array(stream.answers[: stream.request_count])
    alike = np.bincount(answers)[answers]
    questions = np.flatnonzero(alike > given.reworded)
    print(
        "| threshold | links | decoys | seed | exact % | semantic % | links % | wrong % | decoyed % | right of them % |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for threshold, seed, links, decoys in product(given.thresholds, range(given.seeds), (False, True), (False, True)):
        asked = draw_requests(questions, given.requests, given.exponent, seed)
        learned = LearnedPairs({} if links else None, Decoys() if decoys else None, reported=given.reported)
        outcome = asyncio.run(replay.play(asked, threshold, learned, seed))
        print(f"| {threshold} | {links} | {decoys} | {seed} | {outcome.row()} |", flush=True)
        opinions.save()


if __name__ == "__main__":
    main()
