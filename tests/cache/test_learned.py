"""The learned verifier: what it must refuse, what it must serve, and that its weights are the trained ones."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.cache.calibration import minimum_score
from gateway.cache.features import NAMES, Text, Tokens
from gateway.cache.forest import from_arrays
from gateway.cache.learned import WEIGHTS, LearnedVerifier, WeightsCorrupt, load_weights, provenance
from gateway.messages import Refusal
from gateway.modelkit.files import MODEL, MODEL_FILE, TOKENIZER_FILE, default_model_dir
from gateway.ports import Acceptance, Candidate

VERIFIER = LearnedVerifier(load_weights())
PROMISE = Acceptance(max_wrong_hits=0.01)
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


async def judged(a: str, b: str, similarity: float) -> bool:
    (judgement,) = await VERIFIER.judge(a, [Candidate(b, similarity)], PROMISE)
    return judgement.accepted


@pytest.mark.parametrize(("a", "b"), OPPOSITES)
async def test_an_opposite_is_refused_however_similar(a: str, b: str) -> None:
    assert not await judged(a, b, 0.97)
    assert not await judged(b, a, 0.97)


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
    assert await judged(a, b, 0.95)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.text(max_size=200))
def test_no_question_scores_higher_than_the_same_question(a: str, b: str) -> None:
    (same, other), _ = VERIFIER.scores(Text(a), [Text(a), Text(b)], [1.0, 1.0])
    assert same == 1.0
    assert 0.0 <= other <= 1.0


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_stricter_promise_never_lowers_the_floor(a: float, b: float) -> None:
    strict, lax = sorted((a, b))
    assert VERIFIER.floor(Acceptance(max_wrong_hits=strict)) >= VERIFIER.floor(Acceptance(max_wrong_hits=lax))


async def test_below_the_floor_nothing_is_accepted() -> None:
    below = VERIFIER.floor(PROMISE) - 1e-6
    (judgement,) = await VERIFIER.judge("a question", [Candidate("a question", below)], PROMISE)
    assert (judgement.accepted, judgement.reason) == (False, Refusal.SIMILARITY)


def test_a_promise_of_no_wrong_hits_asks_for_equality() -> None:
    assert VERIFIER.floor(Acceptance(max_wrong_hits=0.0)) == minimum_score([(0.01, 0.8)], 0.0) == 1.0


async def test_min_similarity_is_a_plain_threshold() -> None:
    plain = Acceptance(min_similarity=0.9)
    found = await VERIFIER.judge("in 2021", [Candidate("in 2022", 0.9), Candidate("in 2021", 0.89)], plain)
    assert [judgement.accepted for judgement in found] == [True, False]


async def test_no_candidates_no_judgements() -> None:
    assert await VERIFIER.judge("anything", [], PROMISE) == []


async def test_a_refusal_names_the_difference() -> None:
    (judgement,) = await VERIFIER.judge("Who won in 2021?", [Candidate("Who won in 2022?", 0.97)], PROMISE)
    assert judgement.reason is Refusal.NUMBERS


async def test_a_text_longer_than_is_read_is_served_only_to_its_equal() -> None:
    long = "how do I do this " * 6000
    started = time.process_time()
    found = await VERIFIER.judge(long, [Candidate(long, 1.0), Candidate(long + "now", 1.0)], PROMISE)
    assert [judgement.accepted for judgement in found] == [True, False]
    assert time.process_time() - started < 1.0


def test_scores_are_the_same_each_time() -> None:
    again = LearnedVerifier(load_weights())
    stored = [Text(b) for _, b in OPPOSITES]
    ones = [0.9] * len(stored)
    assert VERIFIER.scores(Text("x"), stored, ones) == again.scores(Text("x"), stored, ones)


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
    with pytest.raises(WeightsCorrupt, match="not as trained"):
        load_weights(copied)


def test_a_tree_that_points_outside_is_refused() -> None:
    with np.load(WEIGHTS / "verifier.npz", allow_pickle=False) as file:
        arrays = {name: file[name].copy() for name in file.files}
    arrays["tokens/left"][0] = 10**6
    with pytest.raises(ValueError, match="points outside"):
        from_arrays(arrays, "tokens", len(NAMES))


def test_the_weights_say_what_they_were_made_from() -> None:
    said = json.dumps(provenance())
    assert "CC BY 4.0" in said
    assert "CC BY 3.0" in said


class Reader:
    """Sentence and token vectors as the gateway's encoder would yield them."""

    def __init__(self, model_dir: Path) -> None:
        self._session = onnxruntime.InferenceSession(str(model_dir / MODEL_FILE), providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(model_dir / TOKENIZER_FILE))
        self._tokenizer.no_padding()

    def __call__(self, text: str) -> tuple[np.ndarray, Text]:
        read = self._tokenizer.encode(text)
        ids = np.array([read.ids], np.int64)
        outputs = ["sentence_embedding", "token_embeddings"]
        vectors, tokens = self._session.run(outputs, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return vectors[0], Text(text, Tokens(tuple(read.tokens[1:-1]), tokens[0, 1:-1]))


@pytest.fixture(scope="module")
def reader() -> Reader:
    model_dir = default_model_dir() / MODEL
    if not (model_dir / MODEL_FILE).exists():
        pytest.skip("the embedding model is not built: run `make setup`")
    return Reader(model_dir)


def shares(reader: Reader, kinds: set[str], aligned: bool) -> tuple[float, float]:
    """Right pairs served and wrong pairs served, over their own number."""
    counts = {True: [0, 0], False: [0, 0]}
    for trap in (trap for trap in TRAPS if trap["kind"] in kinds):
        (a, asked), (b, stored) = reader(trap["asked"]), reader(trap["stored"])
        if not aligned:
            asked, stored = Text(asked.text), Text(stored.text)
        (judgement,) = VERIFIER.decide(asked, [stored], [float(a @ b)], PROMISE)
        counts[trap["same"]][0] += judgement.accepted
        counts[trap["same"]][1] += 1
    return counts[True][0] / counts[True][1], counts[False][0] / counts[False][1]


KINDS = {"number", "date", "unit", "entity", "negation", "direction", "scope"}


@pytest.mark.parametrize(
    ("kinds", "aligned", "right", "wrong"),
    [
        (KINDS, True, 0.80, 0.08),  # measured: 169 and 12 of 204 each
        (KINDS, False, 0.79, 0.11),  # 168 and 18
        ({"word-swap"}, True, 0.90, 0.18),  # 47 and 7 of 50 each
        ({"word-swap"}, False, 0.88, 0.26),  # 46 and 11
    ],
)
def test_right_traps_are_served_and_wrong_ones_refused(
    reader: Reader, kinds: set[str], aligned: bool, right: float, wrong: float
) -> None:
    """Against 180 right and 39 wrong of 204, 48 and 43 of 50, for a threshold with checks at the same error."""
    served_right, served_wrong = shares(reader, kinds, aligned)
    assert served_right >= right
    assert served_wrong <= wrong


def test_judging_four_candidates_takes_a_millisecond_or_so() -> None:
    """Measured on a quiet core: 0.36 ms without token vectors, 0.59 ms with; the bound is loose for a busy machine."""
    stored = [Text(b) for _, b in OPPOSITES[:4]]
    times = []
    for _ in range(20):
        started = time.process_time()
        VERIFIER.scores(Text("How do I turn the alarm on?"), stored, [0.9] * 4)
        times.append(time.process_time() - started)
    assert min(times) < 0.005
