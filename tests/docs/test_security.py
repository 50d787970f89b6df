"""The tests that docs/security.md names for its promises exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_promise_has_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    promises = page.partition("### Tests of the promises")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert rows and all(NAMED.search(row) for row in rows)
    named = NAMED.findall(promises)
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []
