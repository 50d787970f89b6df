"""The tests that docs/security.md names for its promises exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.(?:py|yaml))::([^`]+)`")


def test_every_promise_has_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    promises = page.partition("### Tests of the promises")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ")][1:]
    assert rows and all(NAMED.search(row) for row in rows)
    named = NAMED.findall(promises)
    missing = [f"{file}::{name}" for file, name in named if not is_there(ROOT / file, name)]
    assert missing == []


def is_there(file: Path, name: str) -> bool:
    """Return whether a file has a test, or a scene with that claim."""
    begins = f"def {name}(" if file.suffix == ".py" else f"- claim: {name}\n"
    return file.exists() and begins in file.read_text()
