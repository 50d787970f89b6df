"""The learned verifier and its second stage: what they must score low, what high, and that the weights are the trained
ones.

"Served" here: the score of both stages reaches the threshold of a route that has learnt nothing yet, has one stored
answer, and may err in 1 % of requests.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import FrameType

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.adapters.onnx.cross_encoder import OnnxCrossEncoder
from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, TOKENIZER_FILE, default_model_dir
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.features import NAMES
from gateway.cache.forest import from_arrays
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import RouteControl
from gateway.cache.verifiers import (
    FEW_ENTRIES,
    FREE_WORDING,
    MAX_LOGIT,
    MAX_WAITING,
    NEAR_FROM,
    WEIGHTS,
    Calibration,
    FirstCombination,
    LearnedVerifier,
    SecondCombination,
    TwoStageVerifier,
    load_weights,
    provenance,
    score_of,
)
from gateway.errors import ModelUnavailable
from gateway.outcomes import Refusal
from gateway.ports import Acceptance, Opinion, StoredCandidate

VERIFIER = LearnedVerifier(load_weights())
LEAST = RouteControl(VERIFIER.prior, VERIFIER.basis).threshold(Acceptance(max_wrong_hits=0.01), entries=1)
MODEL_DIR = default_model_dir() / MODEL
TRAPS = [json.loads(line) for line in (Path(__file__).parent / "traps.jsonl").read_text(encoding="utf-8").splitlines()]

OPPOSITES = [
    ("How do I turn the alarm on?", "How do I turn the alarm off?"),
    ("How do I enable two-factor login?", "How do I disable two-factor login?"),
    ("Who won the championship in 2021?", "Who won the championship in 2022?"),
    ("Convert 10 km to miles", "Convert 100 km to miles"),
    ("How long is 5 km?", "How long is 5 miles?"),
    ("flights from Oslo to Rome", "flights from Rome to Oslo"),
    ("convert km to miles", "convert miles to km"),
    ("Can I eat it when pregnant?", "Can I not eat it when pregnant?"),
    ("Coffee with sugar", "Coffee without sugar"),
    ("What is the capital of France?", "What is the capital of Spain?"),
    ("Is the shop open on Monday?", "Is the shop open on Sunday?"),
]


# The arithmetic, with numbers of its own.
FIRST, SECOND = (
    FirstCombination(-8.0, 12.0, -3.0),
    SecondCombination(-5.0, 8.0, -1.5, 0.4, 0.6, -1.0, 0.3, 0.0, 0.0, 0.0),
)
WEIGHED = LearnedVerifier(
    replace(load_weights(), first=FIRST, second=SECOND, calibration=Calibration((12.0, -7.0), [(0.5, 0.02)] * BANDS))
)


class Scripted:
    """A cross-encoder of one logit for every pair, or of one error."""

    digest, threads = "scripted", 1

    def __init__(self, logit: float = 0.0, error: Exception | None = None) -> None:
        self.logit, self.error = logit, error
        self.may_answer = threading.Event()
        self.may_answer.set()

    def score(self, query: str, stored: Sequence[str]) -> list[float]:
        self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [self.logit] * len(stored)


async def opinion_of(a: str, b: str, similarity: float) -> Opinion:
    (opinion,) = VERIFIER.opinions(a, [StoredCandidate(b, similarity)])
    return opinion


@pytest.fixture(scope="module")
def both() -> Iterator[TwoStageVerifier]:
    """Both stages with the weights that ship."""
    if not (MODEL_DIR / MODEL_FILE).exists():
        pytest.skip("the embedding model is not built: run `make setup`")
    verifier = TwoStageVerifier(VERIFIER, OnnxCrossEncoder(MODEL_DIR, WEIGHTS))
    yield verifier
    verifier.close()


async def last_opinion(verifier: TwoStageVerifier, a: str, b: str, similarity: float) -> Opinion:
    candidate = StoredCandidate(b, similarity)
    (first,) = verifier.opinions(a, [candidate])
    second = await verifier.second_opinion(a, candidate, first)
    assert second is not None
    return second


async def served(verifier: TwoStageVerifier, a: str, b: str, similarity: float) -> bool:
    opinion = await last_opinion(verifier, a, b, similarity)
    return opinion.veto is None and opinion.score >= LEAST


@pytest.mark.parametrize(("a", "b"), OPPOSITES)
async def test_an_opposite_is_refused_however_similar(both: TwoStageVerifier, a: str, b: str) -> None:
    assert not await served(both, a, b, 0.97)
    assert not await served(both, b, a, 0.97)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("How do I reset my password?", "How can I reset my password?"),
        ("What is the capital of France?", "Tell me the capital of France"),
        ("flights from Oslo to Rome", "Which flights go from Oslo to Rome?"),
        ("Why doesn't it work?", "Why does it not work?"),
    ],
)
async def test_a_paraphrase_is_served(both: TwoStageVerifier, a: str, b: str) -> None:
    assert await served(both, a, b, 0.95)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200), st.floats(0, 1))
def test_no_question_scores_higher_than_the_same_question(a: str, b: str, similarity: float) -> None:
    spaced = f" {a}  "
    same, other, again = VERIFIER.opinions(
        a, [StoredCandidate(a, 1.0), StoredCandidate(b, similarity), StoredCandidate(spaced, 1.0)]
    )
    assert other.score <= same.score == again.score <= 1.0
    assert 0.0 <= other.probability <= same.probability <= 1.0


def test_the_weights_have_the_signs_of_what_they_weigh() -> None:
    first, second = VERIFIER.weights.first, VERIFIER.weights.second
    assert first.similarity > 0
    assert first.doubt < 0
    assert second.doubt <= 0
    assert second.near_doubt < 0
    assert second.wording_doubt < 0
    assert second.near_refusal > 0
    assert second.refusal > 0
    assert second.approval > 0


@given(st.floats(-200, 200), st.floats(-200, 200))
def test_higher_log_odds_never_lower_score_or_probability(a: float, b: float) -> None:
    low, high = (WEIGHED.opinion(each) for each in sorted((a, b)))
    assert low.score <= high.score <= 1.0
    assert 0.0 <= low.probability <= high.probability <= 1.0


def test_beyond_the_top_every_score_is_1() -> None:
    assert score_of(5.0) == score_of(50.0) == 1.0
    assert score_of(-7.0) == 0.0


def test_the_first_opinion_weighs_similarity_and_doubt() -> None:
    (same,) = WEIGHED.opinions("How do I reset it?", [StoredCandidate("How do I\nreset it?", 0.9)])
    assert same.score == pytest.approx(score_of(-8.0 + 12.0 * 0.9))
    (other,) = WEIGHED.opinions("Who won in 2021?", [StoredCandidate("Who won in 2022?", 0.9)])
    assert other.score == pytest.approx(score_of(-8.0 + 12.0 * 0.9 - 3.0)), "a named difference is full doubt"
    assert (same.ceiling, other.ceiling) == (None, None), "without a second stage every opinion is final"


async def test_the_second_opinion_weighs_the_first_one_the_similarity_and_the_logit() -> None:
    limits = ((1e9, 0.6 * MAX_LOGIT), (-1e9, -0.4 * MAX_LOGIT))
    for logit, counted in ((2.0, 0.6 * 2.0), (-3.0, 0.4 * -3.0), (0.0, 0.0), *limits):
        verifier = TwoStageVerifier(WEIGHED, Scripted(logit))
        found = await last_opinion(verifier, "How do I reset it?", "How do I  reset it?", 0.7)
        assert found.score == pytest.approx(score_of(-1.0 + 0.5 * 0.4 + 2.0 * 0.7 + counted))
        assert found.probability == pytest.approx(1 / (1 + np.exp(-(12.0 * found.score - 7.0))))
        assert found.ceiling is None
        verifier.close()


STORED = st.sampled_from(["Who won in 2021?", "Who won?", "Who lost in 2022?"])


def both_opinions(logit: float, candidate: StoredCandidate) -> tuple[Opinion, Opinion]:
    verifier = TwoStageVerifier(WEIGHED, Scripted(logit))
    (first,) = verifier.opinions("Who won in 2022?", [candidate])
    second = asyncio.run(verifier.second_opinion("Who won in 2022?", candidate, first))
    verifier.close()
    assert second is not None
    return first, second


@given(st.floats(allow_nan=False), st.floats(0, 1), STORED)
@settings(deadline=None, max_examples=40)
def test_among_few_entries_no_second_opinion_is_above_the_ceiling(logit: float, similarity: float, stored: str) -> None:
    first, second = both_opinions(logit, StoredCandidate(stored, similarity, entries=FEW_ENTRIES))
    assert first.ceiling is not None
    assert first.estimate is None
    assert second.score <= first.ceiling + 1e-12


@given(st.floats(-10, 10), st.floats(0, 1), STORED)
@settings(deadline=None, max_examples=40)
def test_a_logit_within_its_range_gives_a_score_between_the_least_and_the_ceiling(
    share: float, similarity: float, stored: str
) -> None:
    logits = WEIGHED.weights.logits
    assert logits is not None
    logit = min(logits.highest_at(similarity), max(logits.lowest, share))
    first, second = both_opinions(logit, StoredCandidate(stored, similarity))
    if first.veto is not None:
        assert first.estimate is None
        return
    assert first.ceiling is not None
    assert first.estimate is not None
    assert first.least - 1e-12 <= second.score <= first.ceiling + 1e-12
    assert first.least - 1e-12 <= first.estimate.score <= first.ceiling + 1e-12
    assert first.estimate.ceiling is None, "it is final"


def test_weights_without_a_range_of_logits_have_every_pair_read() -> None:
    """Those that a route tuned have another cross-encoder."""
    verifier = TwoStageVerifier(LearnedVerifier(replace(WEIGHED.weights, logits=None)), Scripted())
    (first,) = verifier.opinions("Who won in 2022?", [StoredCandidate("Who won?", 0.8)])
    assert (first.estimate, first.least) == (None, -np.inf)
    verifier.close()


async def test_the_second_opinion_keeps_the_veto_and_the_doubt_of_the_first() -> None:
    verifier = TwoStageVerifier(WEIGHED, Scripted(MAX_LOGIT))
    payload = await last_opinion(verifier, "Translate to German: good morning", "Translate to German: good night", 0.97)
    assert payload.veto is Refusal.PAYLOAD
    doubted = await last_opinion(verifier, "Who won in 2021?", "Who won in 2022?", 0.97)
    assert doubted.doubt is Refusal.NUMBERS
    verifier.close()


@pytest.mark.parametrize("error", [ModelUnavailable("away"), RuntimeError("it was about: secret")])
async def test_a_cross_encoder_that_fails_gives_no_opinion(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    verifier, candidate = TwoStageVerifier(WEIGHED, Scripted(error=error)), StoredCandidate("secret", 0.9)
    (first,) = verifier.opinions("asked", [candidate])
    with caplog.at_level(logging.ERROR, "nearhit.semantic"):
        assert await verifier.second_opinion("asked", candidate, first) is None
    assert "secret" not in caplog.text
    verifier.close()


async def test_more_pairs_than_may_wait_get_no_second_opinion() -> None:
    reader, candidate = Scripted(), StoredCandidate("stored", 0.9)
    reader.may_answer.clear()
    verifier = TwoStageVerifier(WEIGHED, reader)
    (first,) = verifier.opinions("asked", [candidate])
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(verifier.second_opinion("asked", candidate, first)) for _ in range(MAX_WAITING + 2)
        ]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert all(each.result() is None for each in done)
        reader.may_answer.set()
    found = [each.result() for each in waiting]
    assert [each is None for each in found] == [False] * MAX_WAITING + [True] * 2
    verifier.close()


async def test_no_candidates_no_opinions() -> None:
    assert VERIFIER.opinions("anything", []) == []


async def test_a_doubt_names_the_difference() -> None:
    assert (await opinion_of("Who won in 2021?", "Who won in 2022?", 0.97)).doubt is Refusal.NUMBERS


async def test_another_text_to_work_on_is_a_veto() -> None:
    opinion = await opinion_of("Translate to German: good morning", "Translate to German: good night", 0.97)
    assert opinion.veto is Refusal.PAYLOAD


async def test_it_has_no_second_opinion_to_give() -> None:
    candidate = StoredCandidate("a", 0.9)
    assert await VERIFIER.second_opinion("b", candidate, await opinion_of("b", "a", 0.9)) is None


async def test_a_text_longer_than_is_read_is_sure_only_of_its_equal() -> None:
    long = "how do I do this " * 6000
    started = time.process_time()
    same, other = VERIFIER.opinions(long, [StoredCandidate(long, 1.0), StoredCandidate(long + "now", 1.0)])
    assert (same.trees_doubt, other.trees_doubt) == (0.0, 1.0)
    assert time.process_time() - started < 1.0


def test_a_route_that_knows_nothing_yet_serves_something_and_not_everything() -> None:
    assert 0.5 < LEAST < 1.0


def test_the_prior_is_of_all_bands_and_never_worse_for_a_better_score() -> None:
    wrong, rates = zip(*VERIFIER.prior, strict=True)
    assert len(wrong) == BANDS
    assert list(wrong) == sorted(wrong, reverse=True)
    assert 0.0 < sum(rates) <= 1.0


def test_the_basis_names_the_weights_and_their_combination() -> None:
    assert VERIFIER.basis.startswith(f"learned-{str(provenance()['sha256'])[:8]}")
    combined_anew = LearnedVerifier(replace(VERIFIER.weights, second=replace(VERIFIER.weights.second, refusal=0.9)))
    assert combined_anew.basis != VERIFIER.basis


def test_refusal_and_doubt_count_for_more_between_nearly_equal_questions() -> None:
    weights = VERIFIER.weights.second
    far, near = (weights.log_odds(similarity, 0.0, 2.0) - weights.log_odds(similarity, 0.5, -1.0)
                 for similarity in (0.9, 1.0))  # fmt: skip
    assert near > far > 0.0
    assert weights.log_odds(1.0, 0.0, 3.0) > weights.log_odds(1.0, 0.0, 0.0)


def test_a_doubt_counts_for_more_between_questions_that_share_their_words() -> None:
    weights = replace(SECOND, wording=-1.0, wording_doubt=-1.0, wording_approval=0.5)
    few, most = (weights.log_odds(0.85, 0.0, 0.0, shared) - weights.log_odds(0.85, 1.0, 0.0, shared)
                 for shared in (0.2, 0.9))  # fmt: skip
    assert most > few
    assert weights.log_odds(0.85, 0.5, 0.0, 0.2) > weights.log_odds(0.85, 0.5, 0.0, 0.9)


def score_among(entries: int, logit: float = 2.0, similarity: float = 0.65) -> float:
    """Return the log-odds of a wording with little in common, in a scope of so many entries."""
    log_odds, _ = VERIFIER.weights.second_log_odds(similarity, 0.3, logit, 0.2, entries)
    return log_odds


def test_the_cross_encoder_counts_for_more_among_few_entries() -> None:
    among = [score_among(entries) for entries in (1, 4, 16, 64, FEW_ENTRIES + 1)]
    assert among == sorted(among, reverse=True)
    assert among[0] > among[-1] + 1.0
    assert score_among(1, 2.0) - score_among(1, -2.0) > score_among(1000, 2.0) - score_among(1000, -2.0)


@pytest.mark.parametrize("entries", [0, FEW_ENTRIES + 1, 1_000_000])
def test_a_scope_of_many_or_of_unknown_size_is_judged_by_the_usual_weights(entries: int) -> None:
    usual = VERIFIER.weights.second.log_odds(0.65, 0.3, 2.0, 0.2)
    assert VERIFIER.weights.second_log_odds(0.65, 0.3, 2.0, 0.2, entries) == (usual, False)


@pytest.mark.parametrize("similarity", [NEAR_FROM, 1.0])
def test_few_entries_raise_no_score_of_nearly_equal_questions(similarity: float) -> None:
    usual = VERIFIER.weights.second.log_odds(similarity, 0.3, MAX_LOGIT, 0.9)
    assert VERIFIER.weights.second_log_odds(similarity, 0.3, MAX_LOGIT, 0.9, 1) == (usual, False)


@pytest.mark.parametrize("words_shared", [FREE_WORDING, 0.5, 1.0])
def test_few_entries_raise_no_score_of_questions_that_share_a_third_of_their_words(words_shared: float) -> None:
    usual = VERIFIER.weights.second.log_odds(0.8, 0.0, MAX_LOGIT, words_shared)
    assert VERIFIER.weights.second_log_odds(0.8, 0.0, MAX_LOGIT, words_shared, 1) == (usual, False)


def test_few_entries_lower_no_score() -> None:
    for similarity, doubt, logit, shared in product((0.6, 0.75, 0.9), (0.0, 1.0), (-MAX_LOGIT, 0.0, 4.0), (0.0, 1.0)):
        usual, _ = VERIFIER.weights.second_log_odds(similarity, doubt, logit, shared)
        assert VERIFIER.weights.second_log_odds(similarity, doubt, logit, shared, 1)[0] >= usual


def test_tuned_weights_judge_few_entries_like_many() -> None:
    tuned = replace(VERIFIER.weights, few=None)
    assert tuned.second_log_odds(0.65, 0.3, 2.0, 0.2, 1) == tuned.second_log_odds(0.65, 0.3, 2.0, 0.2, 1000)
    assert tuned.version != VERIFIER.weights.version


async def test_a_rewording_is_served_alone_and_not_among_many(both: TwoStageVerifier) -> None:
    asked, stored = "What stops a cut avocado from going brown?", "How do I keep avocado from turning brown?"
    scores = []
    for entries in (1, 1000):
        candidate = StoredCandidate(stored, 0.72, entries)
        (first,) = both.opinions(asked, [candidate])
        second = await both.second_opinion(asked, candidate, first)
        assert second is not None
        assert first.ceiling is not None
        assert first.ceiling >= second.score
        scores.append((second.score >= LEAST, second.is_of_few))
    assert scores == [(True, True), (False, False)]


def test_the_second_opinion_weighs_the_words_that_both_have() -> None:
    alike, other = VERIFIER.opinions(
        "How do I turn the alarm on?",
        [StoredCandidate("How do I turn the lamp on?", 0.8), StoredCandidate("alarm activation", 0.8)],
    )
    assert alike.words_shared == pytest.approx(6 / 8)
    assert other.words_shared == pytest.approx(1 / 8)


def test_scores_are_the_same_each_time() -> None:
    again = LearnedVerifier(load_weights())
    stored = [StoredCandidate(b, 0.9) for _, b in OPPOSITES]
    assert VERIFIER.opinions("x", stored) == again.opinions("x", stored)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    return Path(shutil.copytree(WEIGHTS, tmp_path / "weights"))


def test_weights_that_were_changed_are_refused_with_both_checksums(copied: Path) -> None:
    path = copied / "verifier.npz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(WeightsCorrupt, match=r"verifier\.npz has sha256 .* verifier\.json says"):
        load_weights(copied)


def test_weights_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsCorrupt, match=r"verifier\.json"):
        load_weights(tmp_path)


def test_a_description_that_is_no_json_is_refused(copied: Path) -> None:
    (copied / "verifier.json").write_text("{")
    with pytest.raises(WeightsCorrupt, match="are not valid: Expecting"):
        load_weights(copied)


def test_a_calibration_of_other_bands_is_refused(copied: Path) -> None:
    about = json.loads((copied / "verifier.json").read_bytes())
    about["priors"]["learned"].pop()
    (copied / "verifier.json").write_text(json.dumps(about))
    with pytest.raises(WeightsCorrupt, match="49 bands of learned"):
        load_weights(copied)


def test_a_tree_that_points_outside_is_refused() -> None:
    with np.load(WEIGHTS / "verifier.npz", allow_pickle=False) as file:
        arrays = {name: file[name].copy() for name in file.files}
    arrays["words/left"][0] = 10**6
    with pytest.raises(ValueError, match="points outside"):
        from_arrays(arrays, "words", len(NAMES))


def calls_of(asked: str, *stored: str) -> int:
    """Functions that the opinion calls, built-in ones included: the same on any machine at any load."""
    made = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    candidates = [StoredCandidate(each, 0.9) for each in stored]
    gc.disable()  # what earlier tests have left calls functions, too, when it is collected
    sys.setprofile(count)
    try:
        VERIFIER.opinions(asked, candidates)
    finally:
        sys.setprofile(None)
        gc.enable()
    return made


def test_an_opinion_takes_few_calls() -> None:
    """262 of one neighbour and 744 of four; 785 and 1,310 before docs/decisions/0006, 417 and 928 before 0049."""
    stored = (
        "How do I reset the password of my account?",
        "How can I change the password of my account?",
        "What is the password of my account?",
        "Why was my account closed after two weeks?",
    )
    for each in stored:
        calls_of("anything else", each)  # what is stored has been read before
    one = calls_of("How can I reset my account's password?", stored[0])
    four = calls_of("How could I set my password anew?", *stored)
    assert one <= 290
    assert four <= 790


def walked(arrays: Mapping[str, np.ndarray], row: Sequence[float]) -> float:
    """The log-odds of a row as they were trained: from each root to a leaf."""
    feature, threshold, left, right, value = (arrays[f"words/{name}"] for name in NODES)
    found = []
    for root in arrays["words/roots"]:
        at = int(root)
        while left[at] != at:
            at = int(left[at] if row[feature[at]] <= threshold[at] else right[at])
        found.append(float(value[at]))
    return float(np.array([found], np.float64).sum(1)[0] + arrays["words/depth_base"][1])


NODES = ("feature", "threshold", "left", "right", "value")


def test_what_the_trees_rule_out_is_what_walking_them_finds_to_the_bit() -> None:
    with np.load(WEIGHTS / "verifier.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    forest, draw = load_weights().words, np.random.default_rng(3)
    inner = arrays["words/left"] != np.arange(len(arrays["words/left"]))
    rows = np.zeros((60, len(NAMES)))
    for feature in range(len(NAMES)):  # on thresholds, and on both sides of each
        edges = arrays["words/threshold"][inner & (arrays["words/feature"] == feature)]
        near = np.concatenate([edges, np.nextafter(edges, 9.0), np.nextafter(edges, -9.0), edges + 0.3, [0.0]])
        rows[:, feature] = draw.choice(near, len(rows))
    together = forest.log_odds(rows.tolist())
    assert together == [walked(arrays, row) for row in rows.tolist()]
    assert together[:1] == forest.log_odds(rows[:1].tolist())


def test_trees_that_go_in_a_circle_are_refused() -> None:
    with np.load(WEIGHTS / "verifier.npz", allow_pickle=False) as file:
        arrays = {name: file[name].copy() for name in file.files}
    root = int(arrays["words/roots"][0])
    arrays["words/left"][arrays["words/left"][root]] = root
    with pytest.raises(ValueError, match="no leaf"):
        from_arrays(arrays, "words", len(NAMES))


def test_the_weights_say_what_they_were_made_from() -> None:
    said = json.dumps(provenance())
    assert "CC BY 4.0" in said
    assert "CC BY 3.0" in said


class Reader:
    """Vectors as the gateway's encoder would yield them."""

    def __init__(self, model_dir: Path) -> None:
        self._session = onnxruntime.InferenceSession(str(model_dir / MODEL_FILE), providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        self._tokenizer.no_padding()

        self.read = lru_cache(maxsize=None)(self._read)  # of one text, whoever asks

    def _read(self, text: str) -> np.ndarray:
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        (vectors,) = self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return vectors[0]


@pytest.fixture(scope="module")
def reader() -> Reader:
    if not (MODEL_DIR / MODEL_FILE).exists():
        pytest.skip("the embedding model is not built: run `make setup`")
    return Reader(MODEL_DIR)


KINDS = {"number", "date", "unit", "entity", "negation", "direction", "scope"}


@pytest.mark.parametrize("kinds", [KINDS, {"word-swap"}])
async def test_traps_are_told_apart_and_far_better_than_by_similarity(
    reader: Reader, both: TwoStageVerifier, kinds: set[str]
) -> None:
    """Half of the right pairs stand above all but 5 % of the wrong ones. A young cache serves few of the wrong ones."""
    scores: dict[bool, list[float]] = {True: [], False: []}
    plain: dict[bool, list[float]] = {True: [], False: []}
    for trap in (trap for trap in TRAPS if trap["kind"] in kinds):
        similarity = float(reader.read(trap["asked"]) @ reader.read(trap["stored"]))
        opinion = await last_opinion(both, trap["asked"], trap["stored"], similarity)
        scores[trap["same"]].append(opinion.score if opinion.veto is None else -np.inf)
        plain[trap["same"]].append(similarity)

    def found(by: dict[bool, list[float]]) -> float:
        return float((np.array(by[True]) > np.sort(by[False])[int(0.95 * len(by[False]))]).mean())

    assert found(scores) >= max(0.5, 2 * found(plain))
    assert (np.array(scores[False]) >= LEAST).mean() <= 0.2


def test_judging_four_candidates_takes_a_millisecond_or_so() -> None:
    """Measured on a busy core: 0.6 ms; the bound is loose."""
    stored = [StoredCandidate(b, 0.9) for _, b in OPPOSITES[:4]]
    times = []
    for _ in range(20):
        started = time.process_time()
        VERIFIER.opinions("How do I turn the alarm on?", stored)
        times.append(time.process_time() - started)
    assert min(times) < 0.005
