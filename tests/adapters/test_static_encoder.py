"""Static vectors point where the model's own vectors do, and a damaged table is no table."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import (
    MODEL,
    STATIC_FILE,
    ModelCorrupt,
    ModelMissing,
    default_model_dir,
    load_manifest,
)
from gateway.adapters.onnx.static_encoder import StaticEncoder, StaticTable, load_table

QUESTIONS = [
    "How do I reset my password?",
    "What is the weather like today?",
    "Which wine goes well with grilled fish?",
    "How long does it take to fly from Berlin to Tokyo?",
    "Why does my Python script raise a KeyError in the second loop?",
    "Write a polite e-mail that declines an invitation to a wedding.",
    "Can I deduct the cost of my home office from my taxes?",
    "How do vaccines train the immune system?",
]
SHORT, LONG = 30, 160  # words; a question of more than 1,000 characters is split


@pytest.fixture(scope="module")
def folder() -> Path:
    model = default_model_dir() / MODEL
    if not (model / STATIC_FILE).is_file():
        pytest.skip("the model has no static vectors: run `nearhit model fetch`")
    return model


@pytest.fixture(scope="module")
def encoder(folder: Path) -> StaticEncoder:
    return StaticEncoder(folder)


def test_static_vectors_find_the_question_among_the_real_ones(folder: Path, encoder: StaticEncoder) -> None:
    real = np.stack([each.vector for each in OnnxEncoder(folder).encode(QUESTIONS)])
    static = np.stack([each.vector for each in map(encoder.encode, QUESTIONS) if each is not None])
    similarities = static @ real.T
    np.testing.assert_allclose(np.linalg.norm(static, axis=1), 1.0, atol=1e-5)
    assert static.dtype == np.float32
    assert similarities.diagonal().min() > 0.7
    assert (similarities - np.eye(len(QUESTIONS)) * similarities).max() < 0.4


def test_it_says_what_the_model_reads_as_the_model_does(folder: Path, encoder: StaticEncoder) -> None:
    texts = [
        *QUESTIONS,
        "0x7f 1a-2b; " * 60,
        "如何重置我的密码？",
        "how 🎉 nice",
        "one more word " * 900,
        "?",
        "half \ud83d here",
    ]
    for real, static in zip(OnnxEncoder(folder).encode(texts), map(encoder.encode, texts), strict=True):
        assert static is not None
        assert (static.tokens, static.truncated, static.unreadable) == (real.tokens, real.truncated, real.unreadable)


def test_a_text_without_a_token_has_no_vector(encoder: StaticEncoder) -> None:
    assert encoder.encode("") is None
    assert encoder.encode("   ") is None


@pytest.mark.slow
@pytest.mark.parametrize(("words", "most_s"), [(SHORT, 0.4e-3), (LONG, 1.6e-3)])
def test_a_text_takes_a_fraction_of_a_forward_pass(encoder: StaticEncoder, words: int, most_s: float) -> None:
    """Measured: 0.1 and 0.35 ms. The best of many runs, and room for a busy machine."""
    text, took = " ".join((" ".join(QUESTIONS).split() * 9)[:words]), []
    for _ in range(200):
        started = time.perf_counter()
        encoder.encode(text)
        took.append(time.perf_counter() - started)
    assert min(took) < most_s


def _empty(file: Path, table: StaticTable) -> None:
    file.write_bytes(b"")


def _cut(file: Path, table: StaticTable) -> None:
    file.write_bytes(file.read_bytes()[:-2000])


def _changed(file: Path, table: StaticTable) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def _other_model(file: Path, table: StaticTable) -> None:
    replace(table, model="0" * 64).write(file)


def _other_shape(file: Path, table: StaticTable) -> None:
    replace(table, scales=table.scales[1:]).write(file)


def _other_type(file: Path, table: StaticTable) -> None:
    replace(table, mapping=table.mapping.astype(np.float64)).write(file)


def _text(file: Path, table: StaticTable) -> None:
    file.write_text("nothing like a table")


@pytest.mark.parametrize("damage", [_empty, _cut, _changed, _other_model, _other_shape, _other_type, _text])
def test_a_damaged_table_is_named(folder: Path, tmp_path: Path, damage: Callable[[Path, StaticTable], None]) -> None:
    model = Path(shutil.copytree(folder, tmp_path / MODEL))
    damage(model / STATIC_FILE, load_table(model, load_manifest(model).identity))
    with pytest.raises(ModelCorrupt, match=r"static\.npz .* run `nearhit model fetch`"):
        StaticEncoder(model)


def test_a_missing_table_is_named(folder: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(folder, tmp_path / MODEL, ignore=shutil.ignore_patterns(STATIC_FILE)))
    with pytest.raises(ModelMissing, match=r"static\.npz is missing: run `nearhit model fetch`"):
        StaticEncoder(model)
