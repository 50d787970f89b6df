"""Builds the default embedding model at the first start. `nearhit serve` imports it only then."""

from __future__ import annotations

from pathlib import Path

from gateway.adapters.onnx.model_files import MODEL
from gateway.cli.progress import step_reporter
from gateway.model_build.fetch import fetch


def build_model(folder: Path) -> None:
    """Build the model in `folder` and say so. Raises `FetchFailed`."""
    with step_reporter(quiet=False) as step:
        step(
            f"the embedding model {MODEL} is not in {folder}: building it once, in some 15 s after a download of 103 MB"
        )
        fetch(folder, step)
