"""The contract of `TextEncoder`, for every adapter, and what is particular to each."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.embedding.hashing import HashEncoder
from gateway.adapters.onnx.encoder import MAX_BATCH, PADDING, PASS_TOKENS, OnnxEncoder, group_by_length
from gateway.adapters.onnx.model_files import MODEL, default_model_dir, load_manifest
from gateway.ports import TextEncoder
from tests.contracts.text_encoder_rules import LONG, RULES, TEXTS

REPOSITORY = Path(__file__).parents[2]
BUILD_ENV = REPOSITORY / ".venv-build"


@pytest.fixture(scope="module")
def onnx() -> OnnxEncoder:
    return OnnxEncoder(default_model_dir() / MODEL)


@pytest.fixture(params=["hash", "onnx"])
def encoder(request: pytest.FixtureRequest) -> TextEncoder:
    return HashEncoder() if request.param == "hash" else request.getfixturevalue("onnx")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_contract(rule: Callable[[TextEncoder], None], encoder: TextEncoder) -> None:
    rule(encoder)


def test_sentence_transformers_keeps_the_contract_in_the_environment_that_has_it(tmp_path: Path) -> None:
    """The optional adapter is held to the same rules, on the published weights, where torch is installed."""
    python, wheels = BUILD_ENV / "bin" / "python", list((BUILD_ENV / "weights").glob("*.whl"))
    if not python.exists() or not wheels:
        pytest.skip("no build environment with torch and weights: `make torch` leaves one in .venv-build")
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(tmp_path)
    (config,) = tmp_path.glob("*/model/modules.json")
    done = subprocess.run(
        [python, "-m", "tests.contracts.text_encoder_rules", config.parent],
        cwd=REPOSITORY,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("kept:") == len(RULES)
    assert re.search(r"^cuda: (every rule$|embedder\.device cuda: torch .* finds no GPU)", done.stdout, re.MULTILINE)


def similarity(encoder: TextEncoder, a: str, b: str) -> float:
    x, y = encoder.encode([a, b])
    return float(x.vector @ y.vector)


@pytest.mark.parametrize(
    ("question", "paraphrase", "unrelated"),
    [
        ("How do I reset my password?", "I forgot my password, how can I change it?", "How do I bake bread?"),
        ("What is the capital of France?", "Which city is the capital of France?", "Who wrote Hamlet?"),
        ("cancel my subscription", "I want to end my subscription", "what is the weather tomorrow"),
        ("Is my parcel delayed?", "Why has my package not arrived yet?", "Explain recursion in Python."),
    ],
)
def test_a_paraphrase_is_nearer_than_an_unrelated_question(
    onnx: OnnxEncoder, question: str, paraphrase: str, unrelated: str
) -> None:
    """Measured: paraphrases 0.62 to 0.94, unrelated questions 0.00 to 0.20."""
    assert similarity(onnx, question, paraphrase) > 0.5
    assert similarity(onnx, question, unrelated) < 0.3


def test_a_vector_does_not_depend_on_its_batch(onnx: OnnxEncoder) -> None:
    """A batch is a matter of chance; a question must meet its own stored vector at similarity 1. With scales found in
    each pass a shared one moved vectors by up to 0.058 an element (cosine 0.944); constant ones leave what sums are
    rounded to beside padding, 4.5e-8 an element at most."""
    batch = [*TEXTS, LONG, *(f"question number {i} about {'many ' * i}things" for i in range(23))]
    for text, embedding in zip(batch, onnx.encode(batch), strict=True):
        alone = onnx.encode([text])[0]
        np.testing.assert_allclose(embedding.vector, alone.vector, rtol=0, atol=1e-6)
        assert (embedding.tokens, embedding.truncated) == (alone.tokens, alone.truncated)


@given(st.lists(st.integers(2, 256), max_size=40))
def test_a_pass_holds_what_is_cheaper_together(lengths: list[int]) -> None:
    """Every text has a place in one pass, and no pass has more padding than passes of their own would cost."""
    found = list(group_by_length(lengths))
    assert sorted(at for part in found for at in part) == list(range(len(lengths)))
    for part in found:
        inside = [lengths[at] for at in part]
        assert inside == sorted(inside)
        assert len(part) == 1 or (len(part) <= MAX_BATCH and len(part) * inside[-1] <= PASS_TOKENS)
        assert len(part) * inside[-1] - sum(inside) <= PADDING * (len(part) - 1)


def test_a_model_with_scales_of_each_pass_has_a_pass_for_each_text() -> None:
    assert list(group_by_length([9, 9, 7], max_batch=1)) == [[2], [0], [1]]


def test_two_threads_give_what_one_thread_gives(onnx: OnnxEncoder) -> None:
    """Replicas that share a store may run on machines of different size."""
    other = OnnxEncoder(default_model_dir() / MODEL, threads=2)
    for a, b in zip(onnx.encode(TEXTS), other.encode(TEXTS), strict=True):
        np.testing.assert_allclose(a.vector, b.vector, atol=1e-5)


def test_tokens_are_those_that_the_model_read(onnx: OnnxEncoder) -> None:
    """Counted with [CLS] and [SEP]; 256 is the model's limit and not yet a truncation."""
    two, full, over = onnx.encode(["hello world", "word " * 254, "word " * 255])
    assert (two.tokens, two.truncated) == (4, False)
    assert (full.tokens, full.truncated) == (256, False)
    assert (over.tokens, over.truncated) == (256, True)


def test_a_megabyte_of_text_costs_no_more_than_the_limit(onnx: OnnxEncoder) -> None:
    """The tokenizer is never given more than the limit could need: blanks and endless words included."""
    for text in (" " * 1_000_000, "x" * 1_000_000, "a b " * 250_000):
        assert onnx.encode([text])[0].truncated


def test_the_int8_model_agrees_with_the_published_one() -> None:
    """Stated by the build, on the texts of export.py: mean cosine at least 0.995 (measured 0.9972)."""
    manifest = load_manifest(default_model_dir() / MODEL)
    assert manifest.about["cosine_agreement"]["mean"] >= 0.995
    assert manifest.about["cosine_agreement"]["texts"] >= 150


def test_the_onnx_fingerprint_changes_with_the_weights(onnx: OnnxEncoder) -> None:
    digest = load_manifest(default_model_dir() / MODEL).sha256["model.onnx"]
    assert onnx.fingerprint == f"all-MiniLM-L6-v2/onnx-int8/{digest[:12]}"


def test_hash_vectors_are_the_same_in_every_process() -> None:
    """Python's own hash() is seeded anew by every process; this one is not."""
    script = (
        "from gateway.adapters.embedding.hashing import HashEncoder\n"
        "print(HashEncoder().encode(['How do I reset my password?'])[0].vector.tobytes().hex())"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def test_hash_vectors_are_those_of_its_fingerprint() -> None:
    """To the bit: entries are found by vectors that were made by older gateways."""
    texts = [
        "How do I reset my password?",
        "HOW do_I  reset\tmy\x1cpassword 2?",
        "Gr\u00fc\u00dfe, \u00c4RGER und \u6f22\u5b57 \ud800!",
        "",
        " ?! ",
        "a " * 300,
    ]
    digest = hashlib.sha256()
    encoder = HashEncoder()
    for made in encoder.encode(texts):
        digest.update(made.vector.astype("<f4").tobytes() + bytes([made.truncated]) + made.tokens.to_bytes(2, "big"))
    assert encoder.fingerprint == "hash/384/v2"
    assert digest.hexdigest() == "31674825c8c694acfa50fbf2fc4a4d8d1e4447ff478d7872d321a1233c02ef56"


def test_hash_vectors_see_words_not_case_or_punctuation() -> None:
    encoder = HashEncoder(dimension=64)
    assert encoder.dimension == 64
    assert similarity(encoder, "Reset my PASSWORD!", "reset my password") == pytest.approx(1)
    assert similarity(encoder, "reset my password", "cancel that order") < 0.5


@pytest.mark.parametrize(
    ("text", "unreadable"),
    [
        ("How do I cancel?", False),
        ("great \N{GRINNING FACE} thanks, how do I cancel?", False),
        ("Wie kündige ich? ¿Cómo cancelo? caf\u00e9", False),
        ("如何取消订阅？", True),
        ("what does 猫 mean?", True),
        ("what is the \u2211 of 1 and 2?", True),
        ("half a \ud83d pair", False),
    ],
)
def test_what_the_model_cannot_read_is_told(onnx: OnnxEncoder, text: str, unreadable: bool) -> None:
    """Two such texts can have the same tokens and ask for different things."""
    (embedding,) = onnx.encode([text])
    assert embedding.unreadable is unreadable
    assert embedding.partial is unreadable
