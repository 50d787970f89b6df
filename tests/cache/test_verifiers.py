"""The learned verifier: what it must score low, what high, and that its weights are the trained ones.

"Served" here: its score reaches the threshold of a route that has learnt nothing yet and may err in 1 % of requests.
"""

from __future__ import annotations

import gc
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, TOKENIZER_FILE, default_model_dir
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.features import NAMES
from gateway.cache.forest import from_arrays
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import RouteControl
from gateway.cache.verifiers import WEIGHTS, LearnedVerifier, load_weights, provenance
from gateway.messages import Refusal
from gateway.ports import Acceptance, Opinion, StoredCandidate

VERIFIER = LearnedVerifier(load_weights())
LEAST = RouteControl(VERIFIER.prior, VERIFIER.basis).threshold(Acceptance(max_wrong_hits=0.01))
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


async def opinion_of(a: str, b: str, similarity: float) -> Opinion:
    (opinion,) = VERIFIER.opinions(a, [StoredCandidate(b, similarity)])
    return opinion


async def served(a: str, b: str, similarity: float) -> bool:
    opinion = await opinion_of(a, b, similarity)
    return opinion.veto is None and opinion.score >= LEAST


@pytest.mark.parametrize(("a", "b"), OPPOSITES)
async def test_an_opposite_is_refused_however_similar(a: str, b: str) -> None:
    assert not await served(a, b, 0.97)
    assert not await served(b, a, 0.97)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("How do I reset my password?", "How can I reset my password?"),
        ("What is the capital of France?", "Tell me the capital of France"),
        ("flights from Oslo to Rome", "Which flights go from Oslo to Rome?"),
        ("Why doesn't it work?", "Why does it not work?"),
    ],
)
async def test_a_paraphrase_is_served(a: str, b: str) -> None:
    assert await served(a, b, 0.95)


async def test_the_same_question_scores_1_and_is_all_but_sure() -> None:
    opinion = await opinion_of("How do I turn the alarm on?", "How do I turn  the alarm on?", 1.0)
    assert opinion.score == 1.0
    assert opinion.probability > 0.9
    assert (opinion.veto, opinion.doubt) == (None, None)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200), st.floats(0, 1))
def test_no_question_scores_higher_than_the_same_question(a: str, b: str, similarity: float) -> None:
    same, other = VERIFIER.opinions(a, [StoredCandidate(a, 1.0), StoredCandidate(b, similarity)])
    assert same.score == 1.0
    assert other.score <= 1.0
    assert 0.0 <= other.probability <= same.probability <= 1.0


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_a_higher_margin_never_lowers_score_or_probability(a: float, b: float) -> None:
    low, high = (VERIFIER.opinion(margin) for margin in sorted((a, b)))
    assert low.score <= high.score
    assert low.probability <= high.probability


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


async def test_a_text_longer_than_is_read_is_served_only_to_its_equal() -> None:
    long = "how do I do this " * 6000
    started = time.process_time()
    equal, longer = VERIFIER.opinions(long, [StoredCandidate(long, 1.0), StoredCandidate(long + "now", 1.0)])
    assert (equal.score >= LEAST, longer.score >= LEAST) == (True, False)
    assert time.process_time() - started < 1.0


def test_a_route_that_knows_nothing_yet_serves_something_and_not_everything() -> None:
    assert 0.7 < LEAST < 1.0


def test_the_prior_is_of_all_bands_and_never_worse_for_a_better_score() -> None:
    wrong, rates = zip(*VERIFIER.prior, strict=True)
    assert len(wrong) == BANDS
    assert list(wrong) == sorted(wrong, reverse=True)
    assert 0.0 < sum(rates) <= 1.0


def test_the_basis_names_the_weights() -> None:
    assert VERIFIER.basis == f"learned-{str(provenance()['sha256'])[:8]}"


def test_scores_are_the_same_each_time() -> None:
    again = LearnedVerifier(load_weights())
    stored = [b for _, b in OPPOSITES]
    ones = [0.9] * len(stored)
    assert VERIFIER.margins("x", stored, ones) == again.margins("x", stored, ones)


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
    model_dir = default_model_dir() / MODEL
    if not (model_dir / MODEL_FILE).exists():
        pytest.skip("the embedding model is not built: run `make setup`")
    return Reader(model_dir)


def shares(reader: Reader, kinds: set[str]) -> tuple[float, float]:
    """Right pairs served and wrong pairs served, over their own number."""
    counts = {True: [0, 0], False: [0, 0]}
    for trap in (trap for trap in TRAPS if trap["kind"] in kinds):
        asked, stored = trap["asked"], trap["stored"]
        (margin,) = VERIFIER.margins(asked, [stored], [float(reader.read(asked) @ reader.read(stored))])
        counts[trap["same"]][0] += VERIFIER.opinion(margin).score >= LEAST
        counts[trap["same"]][1] += 1
    return counts[True][0] / counts[True][1], counts[False][0] / counts[False][1]


KINDS = {"number", "date", "unit", "entity", "negation", "direction", "scope"}


@pytest.mark.parametrize(
    ("kinds", "right", "wrong"),
    [
        (KINDS, 0.63, 0.02),  # measured: 131 and 4 of 204 each
        ({"word-swap"}, 0.84, 0.02),  # 44 and 0 of 50 each
    ],
)
def test_right_traps_are_served_and_wrong_ones_refused(
    reader: Reader, kinds: set[str], right: float, wrong: float
) -> None:
    """Similarity alone serves 161 right and 69 wrong of 204, 47 and 50 of 50, at the threshold of the same route."""
    served_right, served_wrong = shares(reader, kinds)
    assert served_right >= right
    assert served_wrong <= wrong


def test_judging_four_candidates_takes_a_millisecond_or_so() -> None:
    """Measured on a busy core: 0.6 ms; the bound is loose."""
    stored = [b for _, b in OPPOSITES[:4]]
    times = []
    for _ in range(20):
        started = time.process_time()
        VERIFIER.margins("How do I turn the alarm on?", stored, [0.9] * 4)
        times.append(time.process_time() - started)
    assert min(times) < 0.005
