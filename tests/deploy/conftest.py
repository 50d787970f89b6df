"""The chart, rendered once for all that the tests of a process ask of it."""

from __future__ import annotations

import pytest

from tests.deploy.charts import REQUESTS, Rendered, render_all


@pytest.fixture(scope="session")
def charts() -> Rendered:
    return render_all(REQUESTS)
