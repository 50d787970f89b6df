from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.adapters.onnx.model_files import MODEL, MODEL_FILE, TOKENIZER_FILE, default_model_dir
from gateway.features.demo.repository.encoders import MiniLm, StaticVectors
from gateway.model_build.reduced_vectors import ensure_reduced_vectors


@dataclass(frozen=True, slots=True)
class Questions:
    answered: list[dict[str, str]]  # ask, section, says
    unanswered: list[str]


@pytest.fixture(scope="session")
def questions() -> Questions:
    given: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("questions.yaml").read_text())
    return Questions(**given)


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """The directory of the embedding model's files; `make setup` fetches them."""
    directory = default_model_dir() / MODEL
    assert (directory / MODEL_FILE).is_file(), f"the embedding model is not in {directory}: run `make setup`"
    return directory


@pytest.fixture(scope="session")
def mini_lm(model_dir: Path) -> MiniLm:
    return MiniLm(model_dir / MODEL_FILE, model_dir / TOKENIZER_FILE)


@pytest.fixture(scope="session")
def static_vectors(model_dir: Path) -> StaticVectors:
    table = ensure_reduced_vectors(model_dir, model_dir.with_name(f"{MODEL}-static"), print)
    return StaticVectors(table, model_dir / TOKENIZER_FILE)
