from __future__ import annotations

from tests.fixtures.build_environment import python as python  # the fixture
