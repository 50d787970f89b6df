from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from gateway.modelkit.files import default_model_dir

from gateway.demo.build import ENCODER_NAME
from gateway.demo.repository.encoders import MiniLm, StaticVectors
from gateway.demo.static_vectors import ensure_static_vectors


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
    directory = default_model_dir() / ENCODER_NAME
    assert (directory / "model.onnx").is_file(), f"the embedding model is not in {directory}: run `make setup`"
    return directory


@pytest.fixture(scope="session")
def mini_lm(model_dir: Path) -> MiniLm:
    return MiniLm(model_dir / "model.onnx", model_dir / "tokenizer.json")


@pytest.fixture(scope="session")
def static_vectors(model_dir: Path) -> StaticVectors:
    model, tokenizer = model_dir / "model.onnx", model_dir / "tokenizer.json"
    table = ensure_static_vectors(model, tokenizer, model_dir.with_name(f"{ENCODER_NAME}-static"), print)
    return StaticVectors(table, tokenizer)
