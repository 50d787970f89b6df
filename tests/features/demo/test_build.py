"""The model repository is built from what is there, once, and says in one sentence what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.adapters.onnx.model_files import MODEL, ModelMissing
from gateway.features.demo.build import MODELS, build_repository
from gateway.features.demo.errors import ModelsUnavailable

pytestmark = pytest.mark.slow  # starts nothing, takes seconds


@pytest.fixture
def doc_root(tmp_path: Path) -> Path:
    (tmp_path / "README.md").write_text("# Tea\n\nTea is drunk hot. It is made of leaves.\n")
    return tmp_path


def silent(message: str) -> None: ...


def test_a_missing_encoder_names_the_command_that_fetches_it(doc_root: Path) -> None:
    with pytest.raises(ModelMissing, match="nearhit model fetch"):
        build_repository(doc_root / "nowhere", doc_root, doc_root / "models", silent)


def test_missing_documentation_is_named(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelsUnavailable, match="no documentation"):
        build_repository(model_dir.parent, tmp_path, tmp_path / "models", silent)


def test_every_model_has_its_configuration_code_and_weights(model_dir: Path, doc_root: Path) -> None:
    """Links to weights resolve: Triton follows them."""
    repository = build_repository(model_dir.parent, doc_root, doc_root / "models", silent)
    for name in MODELS:
        assert f'name: "{name}"' in (repository / name / "config.pbtxt").read_text()
        assert "class TritonPythonModel" in (repository / name / "1" / "model.py").read_text()
        assert all(file.stat().st_size for file in (repository / name / "1").iterdir())
    assert (repository / "embedder" / "1" / "model.onnx").samefile(model_dir / "model.onnx")
    assert MODEL in str((repository / "light" / "1" / "static.npz").resolve())


def test_a_repository_is_rebuilt_only_when_something_has_changed(model_dir: Path, doc_root: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        build_repository(model_dir.parent, doc_root, doc_root / "models", said.append)
    assert [message for message in said if "embedding" in message] == ["embedding 1 passages of the documentation"]
    (doc_root / "README.md").write_text("# Tea\n\nTea is drunk cold as well.\n")
    repository = build_repository(model_dir.parent, doc_root, doc_root / "models", said.append)
    assert "cold" in (repository / "large" / "1" / "corpus.json").read_text()
