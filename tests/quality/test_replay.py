"""Replays of small streams whose answer is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from gateway.cache.threshold.route_control import RouteControl
from gateway.entries import Embedding
from gateway.ports import Opinion, StoredCandidate
from quality.decision import CachingEmbedder, FixedThreshold
from quality.figures import Point, best_within, precision_area, promise_share, served_share_at, windows
from quality.http_run import samples, total
from quality.labels import Labels, pair_key
from quality.offline import adaptation, curve, promise
from quality.replay import GROWN, Replay
from quality.streams import Stream, from_pairs, join, order, without_others
from quality.world import Opinions, World

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

DIMENSION = 64


class Similar:
    """A verifier for which the similarity says all."""

    basis, floor = "similar", 0.6

    def __init__(self, wrong_above: float = 0.8) -> None:
        """2 % of all requests have their best neighbour in each band; `wrong_above`: of those from .9 on."""
        self.prior = [(0.8 if band < 25 else wrong_above, 0.02) for band in range(50)]

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
        raise AssertionError("no text of these streams shares a frame with another")


def unit(vector: np.ndarray) -> np.ndarray:
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def world(topics: int, *, right: float, wrong: float, others: int = 0, seed: int = 1, name: str = "made") -> World:
    """Four questions a topic, three of them at a similarity of about `right` or `wrong` to the first.

    Every other topic asks the same four times, the rest ask four different things.
    """
    draw = np.random.default_rng(seed)
    rows: list[tuple[str, int, np.ndarray]] = []
    for topic in range(topics):
        centre = unit(draw.normal(size=DIMENSION))
        same = topic % 2 == 0
        for number in range(4):
            near = 1.0 if number == 0 else right if same else wrong
            aside = draw.normal(size=DIMENSION)
            aside = unit(aside - (aside @ centre) * centre)
            vector = unit(near * centre + np.sqrt(max(0.0, 1 - near**2)) * aside)
            rows.append((f"{name}{topic} {'abcd'[number]}", 4 * topic + (0 if same else number), vector))
    rows = [rows[at] for at in draw.permutation(len(rows))]
    rows += [(f"other {n}", 10**6 + n, unit(draw.normal(size=DIMENSION))) for n in range(others)]
    questions, answers, vectors = zip(*rows, strict=True)
    return World(Stream(name, questions, answers, (4 * topics,)), np.stack(vectors))


def replay_of(made: World, wrong_above: float = 0.8) -> Replay:
    return Replay(made, Opinions(Similar(wrong_above), None), CachingEmbedder(Unused()), Labels(made.stream, {}))


def test_a_threshold_between_right_and_wrong_serves_every_repeat_and_nothing_wrong() -> None:
    replay = replay_of(world(200, right=0.99, wrong=0.75))
    run = replay.play(FixedThreshold(Similar(), 0.9, learn=False), 0.01, audit=0)
    assert int(run.served.sum()) == 300
    assert not run.wrong(replay.labels).any()
    assert (run.served == run.repeated).all()
    assert run.entries == 500


def test_a_promise_is_kept_where_similarity_tells_right_from_wrong() -> None:
    replay = replay_of(world(700, right=0.99, wrong=0.75), wrong_above=0.01)
    hindsight = curve(replay, 0.01, learn=True, audit=0.05, seeds=1)
    kept = promise(replay, "raw", 0.01, hindsight, seeds=2, audit=0.05, grow=False)
    assert (kept.labels, kept.kept) == ("raw", 1.0)
    assert kept.error <= 0.01
    assert kept.later <= 0.01
    assert kept.served > 0.3
    assert kept.hindsight is not None
    assert kept.hindsight == pytest.approx(0.375, abs=0.01)  # three of the four questions of every other topic
    assert kept.relative == kept.served / kept.hindsight


def test_a_promise_is_kept_where_similarity_tells_nothing_by_serving_next_to_nothing() -> None:
    replay = replay_of(world(700, right=0.93, wrong=0.93))
    control = RouteControl(replay.opinions.prior, replay.opinions.basis)
    run = replay.play(control, 0.01)
    assert promise_share([run.wrong(replay.labels)], 0.01) == 1.0


def test_after_a_change_to_a_domain_where_all_is_alike_the_threshold_rises_and_wrong_hits_fall_again() -> None:
    kind, hard = world(500, right=0.99, wrong=0.7, name="kind"), world(500, right=0.9, wrong=0.9, seed=2, name="hard")
    both = join(kind.stream, hard.stream)
    whole = World(both, np.concatenate([np.stack(kind.vectors), np.stack(hard.vectors)]))
    replay = replay_of(whole, wrong_above=0.01)
    calm, after = (
        RouteControl(replay.opinions.prior, replay.opinions.basis),
        RouteControl(replay.opinions.prior, replay.opinions.basis),
    )
    before = replay.play(calm, 0.02, requests=slice(2000)).threshold
    run = replay.play(after, 0.02)
    assert run.threshold > before
    counts = windows(run.wrong(replay.labels))
    assert counts[-1] < counts.max()


def test_a_growing_cache_holds_ten_times_as_many() -> None:
    made = world(300, right=0.95, wrong=0.7, others=4000)
    replay = replay_of(made)
    plain = replay.play(FixedThreshold(Similar(), 0.9, learn=False), 0.01, audit=0).entries
    grown = replay.play(FixedThreshold(Similar(), 0.9, learn=False), 0.01, audit=0, grow=True).entries
    quarter = replay.play(FixedThreshold(Similar(), 0.9, learn=False), 0.01, audit=0, requests=slice(300)).entries
    assert grown == plain + (GROWN - 1) * quarter


class Unreadable(Similar):
    """A verifier whose second opinions could not get anything served."""

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return [Opinion(0.0, 0.0, ceiling=0.1) for _ in candidates]


class Corrected(Similar):
    """A verifier that says the similarity only on a closer look."""

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        return [Opinion(0.5, 0.5, ceiling=1.0) for _ in candidates]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        return Opinion(candidate.similarity, candidate.similarity)


def test_what_nobody_has_read_closely_teaches_nothing() -> None:
    made = world(100, right=0.99, wrong=0.75)
    replay = Replay(made, Opinions(Unreadable(), None), CachingEmbedder(Unused()), Labels(made.stream, {}))
    control = RouteControl(Unreadable().prior, "similar")
    assert not replay.play(control, 0.01).served.any()
    assert control.labels == 0


def test_second_opinions_decide_a_replay() -> None:
    made = world(100, right=0.99, wrong=0.75)
    replay = Replay(made, Opinions(Corrected(), None), CachingEmbedder(Unused()), Labels(made.stream, {}))
    run = replay.play(FixedThreshold(Corrected(), 0.9, learn=False), 0.01, audit=0)
    assert int(run.served.sum()) == 150
    assert not run.wrong(replay.labels).any()


def test_a_route_that_adapts_to_a_domain_reads_every_neighbour_closely() -> None:
    made = world(100, right=0.99, wrong=0.75)
    replay = Replay(made, Opinions(Corrected(), None), CachingEmbedder(Unused()), Labels(made.stream, {}))
    (found,) = adaptation(replay, [0.02], audit=0.0)
    assert found.labels > 50
    assert found.taught == pytest.approx(1.0, abs=0.1)


def test_hindsight_is_what_fixed_thresholds_serve_at_the_same_error() -> None:
    quiet = (np.zeros(10, bool),)
    curve_ = [Point(0.9, 0.1, 0.0, quiet), Point(0.8, 0.2, 0.0, quiet), Point(0.7, 0.4, 0.02, quiet)]
    assert served_share_at(curve_, 0.0) == pytest.approx(0.2)
    assert served_share_at(curve_, 0.01) == pytest.approx(0.3), "halfway between the two nearest points"
    assert served_share_at(curve_, 0.02) == pytest.approx(0.4)
    assert served_share_at(curve_, 0.03) is None, "the curve ends before it"
    assert served_share_at([], 0.01) is None
    assert best_within(curve_, 0.01) is curve_[1]


def test_the_area_under_precision_is_all_that_is_served_less_what_is_wrong() -> None:
    quiet = (np.zeros(10, bool),)
    assert precision_area([Point(0.9, 0.5, 0.0, quiet)]) == pytest.approx(0.5)
    falling = [Point(0.9, 0.0, 0.0, quiet), Point(0.8, 0.4, 0.2, quiet)]
    assert precision_area(falling) == pytest.approx(0.4 * 0.75)  # precision falls from 1 to one half
    assert precision_area([]) == 0.0


def test_a_promise_is_kept_by_the_orders_that_hold_it_over_all_requests() -> None:
    wrong = np.zeros(2000, bool)
    wrong[:20] = True
    assert promise_share([wrong], 0.01) == 1.0
    assert promise_share([wrong, ~wrong], 0.01) == 0.5
    assert promise_share([wrong], 0.0099) == 0.0


def test_windows_are_counted_at_every_start() -> None:
    wrong = np.zeros(1500, bool)
    wrong[[0, 999, 1000]] = True
    counts = windows(wrong)
    assert len(counts) == 501
    assert (int(counts[0]), int(counts[1]), int(counts[500])) == (2, 2, 2)
    assert int(windows(np.ones(10, bool))[0]) == 10


def test_seed_0_keeps_the_order_and_others_shuffle_within_parts() -> None:
    stream = join(world(5, right=1, wrong=0.7, name="a").stream, world(5, right=1, wrong=0.7, name="b").stream)
    assert order(stream, 0).tolist() == list(range(40))
    shuffled = order(stream, 1)
    assert sorted(shuffled[:20].tolist()) == list(range(20))
    assert shuffled.tolist() != list(range(40))


def test_an_audited_pair_overrides_the_raw_label_whatever_its_order() -> None:
    stream = Stream("two", ("What is it?", "what is this?"), (0, 1), (2,))
    assert not Labels(stream, {}).same(0, 1)
    audited = {pair_key("what is this?", "What is it?"): True}
    assert Labels(stream, audited).same(0, 1)
    assert Labels(stream, audited).same(1, 0)


def test_metrics_are_found_by_their_labels_in_whatever_order() -> None:
    text = 'x_total{label="right",route="r",source="audit"} 3\nx_total{label="wrong",route="r",source="audit"} 1\n'
    found = samples(f'# TYPE x counter\n{text}x_total{{label="right",route="r",source="miss"}} 9\n')
    assert total(found, "x_total", source="audit") == 4
    assert total(found, "x_total", source="feedback") is None


def test_pairs_link_what_asks_the_same_directly_or_not(tmp_path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"a": "x", "b": "y", "y": 1}\n{"a": "y", "b": "z", "y": 1}\n{"a": "x", "b": "w", "y": 0}\n')
    stream = without_others(from_pairs(path, 100))
    answers = dict(zip(stream.questions, stream.answers, strict=True))
    assert answers["x"] == answers["y"] == answers["z"] != answers["w"]
    assert stream.repeats == 0.5
    path.write_text('{"a": "x", "b": "y", "y": 1}\n{"a": "x"}\n')
    with pytest.raises(ValueError, match=r"pairs\.jsonl:2: "):
        from_pairs(path, 100)
