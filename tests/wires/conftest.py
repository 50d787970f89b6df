"""A gateway before a server whose answers a test writes in bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.wires.scripted import Pair, before_raw


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with before_raw(tmp_path) as both:
        yield both


@pytest.fixture(params=["own", "aiohttp"])
async def either(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Pair]:
    """The same, with each HTTP client."""
    more: dict[str, Any] = {} if request.param == "own" else {"client": "aiohttp"}
    async with before_raw(tmp_path, **more) as both:
        yield both
