"""`nearhit model build`: a small model with random weights, and what is said where there is no model."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import (
    GRAPH,
    MODEL,
    STATIC_FILE,
    ModelCorrupt,
    ModelMissing,
    default_model_dir,
    load_manifest,
)
from gateway.adapters.onnx.static_encoder import load_table
from gateway.cache.model_factory import build_encoder, build_verifier
from gateway.config.schema import EmbeddingModel, VerifierConfig
from gateway.features.embedding_model.build import build
from gateway.features.triton.encoder import load_reader
from gateway.model_build import fetch as fetching
from gateway.model_build import static_vectors
from gateway.model_build.environment import FetchFailed
from gateway.model_build.static_vectors import has_static_vectors
from tests.contracts.text_encoder_rules import RULES

REPOSITORY = Path(__file__).parents[3]
BUILD_ENV = REPOSITORY / ".venv-build"
# The second and the third differ in case alone.
TEXTS = ["how are you?", "reset it", "RESET It", "ok", "2021", "2022", "a b c d e f g h", "turn it on", "turn it off"]


def silent(line: str) -> None:
    pass


def refused(source: object, models: Path, name: str | None = None) -> str:
    with pytest.raises(FetchFailed) as failed:
        build(str(source), name, models, silent, prompt=None, keep_env=None)
    assert not models.exists()
    return str(failed.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    said = refused(tmp_path / "nowhere", tmp_path / "models")
    assert said == f"there is no folder {tmp_path}/nowhere, expected the folder of a sentence-transformers model"


def test_a_folder_without_modules_is_no_such_model(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    said = refused(tmp_path / "model", tmp_path / "models")
    assert said == f"{tmp_path}/model has no modules.json, expected the folder of a sentence-transformers model"


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The hub is a port that belongs to a socket that does not listen."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        hub = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("HF_ENDPOINT", hub)
        yield hub


def test_a_hub_that_cannot_be_reached_is_said_before_anything_is_made(tmp_path: Path, no_hub: str) -> None:
    said = refused("intfloat/multilingual-e5-small", tmp_path / "models")
    assert said.startswith(f"there is no folder intfloat/multilingual-e5-small, and the hub {no_hub} cannot be reached")


@pytest.mark.parametrize("name", [MODEL, "../up", "a b", ""])
def test_a_name_that_cannot_be_a_folder_of_its_own_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / " ").mkdir()
    assert "cannot name the model" in refused(tmp_path / " ", tmp_path / "models", name)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of tiny_model.py, with the vectors that sentence-transformers gives."""
    if not (BUILD_ENV / "bin" / "python").exists():
        pytest.skip("no build environment with torch: `make torch` leaves one in .venv-build")
    folder = tmp_path_factory.mktemp("sources")
    (folder / "texts.json").write_text(json.dumps(TEXTS))
    script = Path(__file__).with_name("tiny_model.py")
    subprocess.run(
        [BUILD_ENV / "bin" / "python", "-I", script, folder, folder / "texts.json"],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2"},
        capture_output=True,
        check=True,
    )
    return folder


@pytest.fixture(scope="module")
def models(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    with few_questions(models):
        build(str(sources / "tiny"), None, models, silent, prompt=None, keep_env=BUILD_ENV)
    return models


@contextmanager
def few_questions(folder: Path) -> Iterator[None]:
    """Fit the map of static vectors to some questions only: all 8,000 take seconds."""
    file = folder.with_name("questions.txt")
    file.write_text("".join(static_vectors.QUESTIONS.read_text().splitlines(keepends=True)[:500]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(static_vectors, "QUESTIONS", file)
        yield


@pytest.mark.slow
def test_a_built_model_gives_the_vectors_of_the_original(sources: Path, models: Path) -> None:
    """Pooling, dense layer, lower-casing, prompt and normalising are those of its files."""
    encoder = build_encoder(EmbeddingModel(model="tiny", model_dir=models))
    expected = np.array(json.loads((sources / "tiny.json").read_text()), np.float32)
    found = np.stack([each.vector for each in encoder.encode(TEXTS)])
    assert found.shape == expected.shape == (len(TEXTS), encoder.dimension)
    assert (found * expected).sum(1).min() > 0.98
    np.testing.assert_array_equal(found[1], found[2])


@pytest.mark.slow
def test_a_built_model_keeps_the_contract_of_encoders(models: Path) -> None:
    for rule in RULES:
        rule(OnnxEncoder(models / "tiny"))


@pytest.mark.slow
def test_a_built_model_reads_as_many_tokens_as_its_files_say(models: Path) -> None:
    encoder = OnnxEncoder(models / "tiny")
    full, over = encoder.encode(["a " * 42, "a " * 43])  # "ask:" has four tokens, and [CLS] and [SEP] are two
    assert (full.tokens, full.truncated) == (48, False)
    assert (over.tokens, over.truncated) == (48, True)
    assert encoder.encode(["\u4f60\u597d"])[0].unreadable


@pytest.mark.slow
def test_the_manifest_says_how_it_was_made(models: Path, sources: Path) -> None:
    manifest = load_manifest(models / "tiny")
    assert manifest.about["reads"] == {"prompt": "ask: ", "max_tokens": 48, "unknown": "[UNK]"}
    assert manifest.about["cosine_agreement"]["mean"] >= 0.995
    assert not manifest.about["shared_part"]["subtracted"]
    assert "model.safetensors" in manifest.about["source"]["sha256"]
    assert has_static_vectors(models / "tiny")
    assert sorted(file.name for file in models.iterdir()) == ["tiny"]


@pytest.mark.slow
def test_a_model_whose_static_vectors_are_damaged_gets_them_without_a_new_export(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As does a model that was built before there were any. No other file changes."""
    model = Path(shutil.copytree(models / "tiny", tmp_path / "models" / MODEL))
    about = json.loads((model / "manifest.json").read_text())
    (model / "manifest.json").write_text(json.dumps(about | {"graph": GRAPH}))
    former = load_table(model, load_manifest(model).identity)
    (model / STATIC_FILE).write_bytes(b"damaged")
    before = times_of(model)
    lines: list[str] = []

    def no_step(*_: object) -> None:
        raise AssertionError("a step ran")

    monkeypatch.setattr(fetching, "run_step", no_step)
    with few_questions(tmp_path / "models"):
        assert fetching.fetch(model.parent, lines.append) == model
    assert lines[0].startswith("distilling static token vectors")
    made = load_table(model, load_manifest(model).identity)
    np.testing.assert_array_equal(made.tokens, former.tokens)
    np.testing.assert_allclose(made.scales, former.scales)
    assert times_of(model) == before


def times_of(model: Path) -> dict[str, int]:
    """When each file of the model was written, but for its static vectors."""
    return {file.name: file.stat().st_mtime_ns for file in model.iterdir() if file.name != STATIC_FILE}


@pytest.mark.slow
def test_the_fingerprint_changes_with_the_prompt(models: Path, tmp_path: Path) -> None:
    """The graph is the same, and the vectors are not."""
    other = Path(shutil.copytree(models / "tiny", tmp_path / "tiny"))
    about = json.loads((other / "manifest.json").read_text())
    about["reads"]["prompt"] = ""
    (other / "manifest.json").write_text(json.dumps(about))
    assert OnnxEncoder(other).fingerprint != OnnxEncoder(models / "tiny").fingerprint
    reader, _ = load_reader(models / "tiny" / "tokenizer.json")
    assert len(reader.read("ok").ids) == 2 + 4 + 2  # a served model reads its prompt, too


@pytest.mark.slow
def test_a_damaged_model_names_the_command_that_makes_it(models: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(models / "tiny", tmp_path / "tiny"))
    (other / "tokenizer.json").unlink()
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.json is missing: run `nearhit model build`"):
        load_manifest(other)
    with pytest.raises(ModelMissing, match="run `nearhit model build`"):
        load_manifest(tmp_path / "none" / "other")


@pytest.mark.slow
def test_a_model_without_its_weights_is_refused(sources: Path) -> None:
    """The library would draw them at random."""
    assert re.search(r"tiny (lacks some of the weights|cannot be read)", (sources / "lacking.txt").read_text())


def test_a_refusal_of_the_converter_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    environment, source = tmp_path / "environment", tmp_path / "tiny"
    source.mkdir()
    (source / "modules.json").write_text("[]")
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").write_text("#!/bin/sh\necho tiny lacks some of the weights >&2\nexit 1\n")
    (environment / "bin" / "python").chmod(0o755)
    requirements = Path(fetching.__file__).with_name("requirements-build.txt").read_bytes()
    digest = hashlib.sha256(fetching.TORCH.encode() + requirements).hexdigest()
    (environment / "nearhit-build.sha256").write_text(digest)
    with pytest.raises(FetchFailed, match="the model could not be converted: tiny lacks some of the weights"):
        build(str(source), None, tmp_path / "models", silent, prompt=None, keep_env=environment)
    assert list((tmp_path / "models").iterdir()) == []


def test_the_cross_encoder_reads_beside_another_embedder(tmp_path: Path) -> None:
    """It needs the words of the default model, wherever the vectors come from."""
    here = EmbeddingModel(model="another", model_dir=default_model_dir())
    verifier = build_verifier(VerifierConfig(), here)
    assert "+" in verifier.basis
    verifier.close()
    assert "+" not in build_verifier(VerifierConfig(), EmbeddingModel(model="another", model_dir=tmp_path)).basis
