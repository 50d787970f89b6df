"""The environment where torch is: what needs it is skipped where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.tools.embedding_model.environment import FetchFailed
from gateway.tools.embedding_model.fetch import build_environment
from tests.fixtures.triton import CHECKOUT

BUILD_ENV = CHECKOUT / ".venv-build"


@pytest.fixture(scope="session")
def python() -> Path:
    """Its interpreter."""
    try:
        return build_environment(BUILD_ENV, print, make=False)
    except FetchFailed as reason:
        pytest.skip(f"{reason} (`nearhit distill --prepare` makes it)")
