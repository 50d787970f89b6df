"""The report as people run it, on a handful of own pairs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUBJECTS = ("passport", "violin", "kettle", "mortgage", "bicycle", "printer", "garden hose", "tax return")


def test_the_report_runs_own_pairs_through_a_real_gateway(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"a": f"how do I clean my {s}", "b": f"How do I clean my {s}, please?", "y": 1} for s in SUBJECTS]
    rows += [{"a": f"where can I buy a {s}", "b": f"where can I sell a {s}", "y": 0} for s in SUBJECTS]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [
        sys.executable, "-m", "quality", "--pairs", str(pairs), "--folder", str(tmp_path), "--seeds", "2",
        "--budgets", "0.05", "--only", "http", "replay", "cost",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "quality.json").read_text())
    (run,) = found["http"]
    assert run["requests"] == found["stream"]["requests"] == 32
    assert run["error"] <= run["served"] <= 1
    assert {row["budget"] for row in found["replays"]} == {0.05}
    assert found["cost_us"]["opinions"] > 0
    assert set(found["curves"]) == {"similarity", "verifier", "evidence"}
    assert {(rung["score"], len(rung["served"])) for rung in found["ladder"]} == {("similarity", 1), ("verifier", 1)}
    for title in ("Through the gateway", "The ladder", "Promises, replayed", "Cost"):
        assert f"## {title}" in done.stdout
    assert "No change of domain: DATA" in done.stdout
