"""Replays of questions that come again: links add hits, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from gateway.cache.decoys import Decoys
from gateway.entries import Embedding
from gateway.ports import Opinion, StoredCandidate
from quality.decision import CachingEmbedder
from quality.labels import Labels
from quality.recurrence import LearnedPairs, Outcome, Recurrence, draw_requests
from quality.streams import Stream
from quality.world import Opinions, World

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

DIMENSION = 256


class Similar:
    """A verifier for which the similarity says all."""

    basis, floor, prior = "similar", 0.6, [(0.5, 0.02)] * 50

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return [Opinion(each.similarity, each.similarity) for each in candidates]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        return None

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        return


class Unused:
    fingerprint, dimension = "none", DIMENSION

    def encode(self, texts: Sequence[str]) -> list[Embedding]:
        raise AssertionError("no text of this stream shares a frame with another")


def world(topics: int) -> World:
    """Four questions a topic, at a cosine of .8 to each other. Every other topic asks the same four times."""
    axes = np.eye(DIMENSION, dtype=np.float32)
    questions, answers, vectors = [], [], []
    for topic, number in np.ndindex(topics, 4):
        questions.append(f"topic{topic} {'abcd'[number]}")
        answers.append(4 * topic + (0 if topic % 2 == 0 else number))
        own = axes[topics + 4 * topic + number]
        vectors.append(np.sqrt(np.float32(0.8)) * axes[topic] + np.sqrt(np.float32(0.2)) * own)
    return World(Stream("made", tuple(questions), tuple(answers), (4 * topics,)), np.stack(vectors))


def played(threshold: float, *, links: bool, decoys: bool = False) -> Outcome:
    made = world(40)
    replay = Recurrence(
        made, Opinions(Similar(), None), CachingEmbedder(Unused()), Labels(made.stream, {}), lifetime=50
    )
    asked = draw_requests(np.arange(made.stream.request_count), 2000, 0.0, seed=1)
    return asyncio.run(
        replay.play(asked, threshold, LearnedPairs({} if links else None, Decoys() if decoys else None), 1)
    )


def test_links_serve_rewordings_below_the_threshold() -> None:
    without, linked = played(0.9, links=False), played(0.9, links=True)
    assert (without.semantic, without.wrong) == (0, 0)
    assert linked.links == linked.semantic > 100
    assert linked.wrong == 0
    assert linked.exact + linked.semantic > without.exact


def test_decoys_leave_hits_alone_where_no_question_is_like_one() -> None:
    plain, decoyed = played(0.78, links=False), played(0.78, links=False, decoys=True)
    assert plain.semantic == decoyed.semantic > 0
    assert decoyed.decoys == decoyed.right_refused == 0


def test_requests_are_drawn_by_popularity_or_each_once() -> None:
    questions = np.arange(5, 50)
    assert sorted(draw_requests(questions, 0, 0.8, seed=1)) == list(questions)
    counts = np.bincount(draw_requests(questions, 5000, 1.0, seed=1))
    assert counts.max() > 5 * np.median(counts[5:])
