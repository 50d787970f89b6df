"""The wheel: every file that the gateway reads is in it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from gateway.adapters.onnx.model_files import MODEL, default_model_dir

ROOT = Path(__file__).parents[1]
NOT_SHIPPED = {"gateway/model_build/requirements-export.in"}  # `make lock` reads it


def test_every_file_of_the_gateway_is_in_the_wheel() -> None:
    """A kind of file that no pattern names is in a clone and not in a wheel: the logo was one."""
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "gateway").rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    }
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = about["tool"]["setuptools"]["package-data"]["gateway"]
    shipped = {str(file.relative_to(ROOT)) for pattern in patterns for file in (ROOT / "gateway").glob(pattern)}
    assert files - shipped == NOT_SHIPPED


def test_the_wheel_of_the_model_puts_it_where_the_gateway_looks() -> None:
    about = tomllib.loads((ROOT / "deploy" / "model-wheel" / "pyproject.toml").read_text())
    (target,) = about["tool"]["setuptools"]["data-files"]
    assert default_model_dir() / MODEL == default_model_dir().parents[2] / target
