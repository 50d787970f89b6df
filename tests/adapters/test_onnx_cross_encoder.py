"""The cross-encoder: what it tells apart, that it is the same each time, and that its weights are the trained ones."""

from __future__ import annotations

import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from gateway.adapters.onnx.cross_encoder import ABOUT_FILE, GRAPH_FILE, UNREAD_LOGIT, OnnxCrossEncoder, load_word_table
from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, TOKENIZER_FILE, ModelCorrupt, default_model_dir
from gateway.adapters.onnx.tokenizer import MAX_PAIR_TOKENS
from gateway.adapters.system.weight_files import WeightsCorrupt
from gateway.cache.features import FloatArray
from gateway.cache.verifiers import WEIGHTS

MODEL_DIR = default_model_dir() / MODEL
ASKED = "How do I reset my password?"
STORED = ("What are the steps to reset a password?", "How do I reset my router?", "How do I change my e-mail address?")
GOLDEN = json.loads((Path(__file__).parent / "cross_encoder_golden.json").read_text(encoding="utf-8"))
TOLERANCE = 0.5  # of a logit: int8 kernels of another processor round otherwise; logits spread over about 8


@pytest.fixture(scope="module")
def cross() -> OnnxCrossEncoder:
    return OnnxCrossEncoder(MODEL_DIR, WEIGHTS)


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for name in (GRAPH_FILE, ABOUT_FILE):
        shutil.copyfile(WEIGHTS / name, tmp_path / name)
    return tmp_path


def test_a_paraphrase_scores_above_another_question(cross: OnnxCrossEncoder) -> None:
    same, *others = cross.score(ASKED, STORED)
    assert same > max(others) + 1.0


@pytest.mark.parametrize("pair", GOLDEN, ids=lambda pair: pair["stored"][:40])
def test_scores_are_those_that_were_measured(cross: OnnxCrossEncoder, pair: dict[str, str | float]) -> None:
    (logit,) = cross.score(str(pair["asked"]), [str(pair["stored"])])
    assert logit == pytest.approx(pair["logit"], abs=TOLERANCE)


def test_which_question_came_first_changes_nothing(cross: OnnxCrossEncoder) -> None:
    for pair in GOLDEN:
        assert cross.score(pair["asked"], [pair["stored"]]) == cross.score(pair["stored"], [pair["asked"]])


def test_a_score_does_not_depend_on_its_company(cross: OnnxCrossEncoder) -> None:
    together = cross.score(ASKED, STORED)
    assert together == [cross.score(ASKED, [other])[0] for other in STORED]
    assert together[::-1] == cross.score(ASKED, STORED[::-1])
    assert cross.score(ASKED, []) == []


def test_threads_that_ask_at_once_get_what_one_gets(cross: OnnxCrossEncoder) -> None:
    alone, found = cross.score(ASKED, STORED), list[list[float]]()
    threads = [threading.Thread(target=lambda: found.append(cross.score(ASKED, STORED))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 8


def test_a_pair_too_long_to_be_read_to_its_end_is_never_the_same(cross: OnnxCrossEncoder) -> None:
    long = "How do I reset my password " + "again and " * MAX_PAIR_TOKENS
    assert cross.score(long, [long, ASKED]) == [UNREAD_LOGIT, UNREAD_LOGIT]
    assert cross.score(ASKED, ["a" * 1_000_000, ASKED])[0] == UNREAD_LOGIT
    assert cross.probability(UNREAD_LOGIT) < 0.001


@pytest.mark.parametrize("odd", ["", " ", "?", "\ud800", "\x00", "\N{GRINNING FACE}" * 20, "如何重置我的密码？"])
def test_any_text_has_a_finite_score(cross: OnnxCrossEncoder, odd: str) -> None:
    assert np.isfinite(cross.score(odd, [odd, ASKED])).all()


def test_a_longer_text_that_fits_is_read_to_its_end(cross: OnnxCrossEncoder) -> None:
    start = "My phone does not charge any more, neither by the cable nor on the pad, since I was in the rain with it. "
    same, other = cross.score(start + "Can it be repaired?", [start + "Can it be repaired", start + "Who invented it?"])
    assert same > other


def test_probability_rises_with_the_logit(cross: OnnxCrossEncoder) -> None:
    found = [cross.probability(logit) for logit in (-8.0, -1.0, 0.0, 1.0, 8.0)]
    assert found == sorted(found) and 0.0 <= found[0] < 0.2 and 0.8 < found[-1] <= 1.0


def test_a_changed_graph_is_refused(copied: Path) -> None:
    content = bytearray((copied / GRAPH_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / GRAPH_FILE).write_bytes(content)
    with pytest.raises(WeightsCorrupt, match=r"cross_encoder\.onnx has sha256"):
        OnnxCrossEncoder(MODEL_DIR, copied)


@pytest.mark.parametrize("name", [GRAPH_FILE, ABOUT_FILE])
def test_a_missing_file_is_named(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(WeightsCorrupt, match=name.replace(".", r"\.")):
        OnnxCrossEncoder(MODEL_DIR, copied)


@pytest.mark.parametrize("said", ["", "[]", "{}", '{"sha256": 1, "table_sha256": 2, "platt": 3}'])
def test_a_description_that_says_something_else_is_refused(copied: Path, said: str) -> None:
    (copied / ABOUT_FILE).write_text(said)
    with pytest.raises(WeightsCorrupt, match="cross_encoder"):
        OnnxCrossEncoder(MODEL_DIR, copied)


def test_the_table_of_another_embedder_is_refused(copied: Path) -> None:
    about = json.loads((copied / ABOUT_FILE).read_text())
    (copied / ABOUT_FILE).write_text(json.dumps({**about, "table_sha256": "0" * 64}))
    with pytest.raises(WeightsCorrupt, match="trained on another table"):
        OnnxCrossEncoder(MODEL_DIR, copied)


def test_the_table_read_from_the_embedder_holds_every_word() -> None:
    table = load_word_table(MODEL_DIR)
    assert table.rows.shape == (30522, 384) and not table.rows.flags.writeable
    assert table.digest() == json.loads((WEIGHTS / ABOUT_FILE).read_text())["table_sha256"]


def test_words_of_one_kind_lie_nearer_than_others_in_the_table() -> None:
    """As they would not if rows, scale or zero point were misread."""
    table, tokenizer = load_word_table(MODEL_DIR), Tokenizer.from_file(str(MODEL_DIR / TOKENIZER_FILE))
    monday, tuesday, bread = table(np.array([tokenizer.token_to_id(word) for word in ("monday", "tuesday", "bread")]))

    def cosine(a: FloatArray, b: FloatArray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    assert cosine(monday, tuesday) > 0.5 > cosine(monday, bread)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x3a\x05hello", b"no graph at all"])
def test_a_model_without_a_table_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MODEL_FILE).write_bytes(content)
    with pytest.raises(ModelCorrupt, match="holds no table of word embeddings"):
        load_word_table(tmp_path)


def test_the_graph_says_what_it_takes() -> None:
    session = onnxruntime.InferenceSession(str(WEIGHTS / GRAPH_FILE), providers=["CPUExecutionProvider"])
    assert {(each.name, each.type) for each in session.get_inputs()} == {
        ("word_embeddings", "tensor(float)"),
        ("attention_mask", "tensor(int64)"),
        ("token_type_ids", "tensor(int64)"),
    }
    assert [(each.name, each.type, each.shape) for each in session.get_outputs()] == [
        ("logit", "tensor(float)", ["batch"])
    ]


def test_provenance_is_complete() -> None:
    about = json.loads((WEIGHTS / ABOUT_FILE).read_text())
    assert about["bytes"] == (WEIGHTS / GRAPH_FILE).stat().st_size < 7_000_000
    assert about["licence"] == "Apache-2.0" and "CC BY 4.0" in about["made_from"]["banking77"]
    assert {"layers", "steps", "seed"} <= about["training"].keys()
    assert about["versions"].keys() >= {"torch", "onnx", "onnxruntime"}


def test_two_pairs_of_questions_cost_little(cross: OnnxCrossEncoder) -> None:
    """1.7 ms a pair of 15-token questions on one core; CPU time, as a busy machine has little of its own."""
    asked = "How do I reset the password of my account when I have lost my phone?"
    times = []
    for _ in range(30):
        started = time.thread_time()
        cross.score(asked, [asked.replace("phone", "keys"), asked.replace("reset", "change")])
        times.append(time.thread_time() - started)
    assert min(times) < 0.02
