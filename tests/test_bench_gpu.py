"""`python -m bench.gpu` says what it found and what it skipped, on any machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu import inventory, stages, triton_server
from bench.gpu.record import Record, Skipped, StageOptions
from bench.gpu.stages import INVENTORY, Outcome, Stage, outcome_of, run_stage
from bench.gpu.table import tables

GIVEN = StageOptions("cuda", (1000,), None, None, None, None, quick=True)
STAGE = Stage("index", "for a test", 5.0)


def test_without_a_gpu_each_stage_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """CUDA hides its devices where the variable is empty, so this holds on a machine with a GPU too."""
    report = tmp_path / "gpu.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", "--json", str(report), "--quick"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {each["stage"]: each for each in json.loads(report.read_text())["stages"]}
    assert list(found) == [stage.name for stage in stages.STAGES]
    assert {row["part"] for row in found["inventory"]["rows"]} >= {"GPU", "onnxruntime", "faiss", "torch"}
    for name in set(found) - {INVENTORY.name}:
        assert found[name]["status"] == "skipped"
        assert "the NVIDIA driver" in found[name]["reason"]
        assert f"{name}: skipped" in done.stdout


@pytest.mark.parametrize(
    ("rows", "code", "status", "reason"),
    [
        ([{"part": "a", "p50_ms": 1.0}], 0, "measured", ""),
        ([{"part": "a", "p50_ms": 1.0}, {"part": "b", "skipped": "no torch"}], 0, "partly", "b: no torch"),
        ([{"part": "b", "skipped": "no torch"}], 0, "skipped", "b: no torch"),
        ([{"part": "b", "failed": "OSError: gone"}], 0, "failed", "b: OSError: gone"),
        ([{"part": "a", "p50_ms": 1.0}], None, "stopped", "its time was over"),
        ([], 1, "failed", "ImportError: faiss"),
        ([], 0, "skipped", "no figures"),
    ],
)
def test_a_stage_is_judged_by_its_rows_and_its_end(
    rows: list[dict[str, object]], code: int | None, status: str, reason: str
) -> None:
    judged = outcome_of(STAGE, rows, code, "Traceback\nImportError: faiss\n")
    assert (judged.status, judged.reason, judged.rows) == (status, reason, rows)


def test_a_part_that_fails_keeps_its_reason_and_lets_the_next_one_run(tmp_path: Path) -> None:
    record = Record(tmp_path / "rows", 60.0)
    with record.part("one"):
        raise Skipped("no weights")
    with record.part("two"):
        raise ValueError("wrong shape")
    record.row("three", p50_ms=1.23456)
    rows = [json.loads(line) for line in (tmp_path / "rows").read_text().splitlines()]
    assert rows == [
        {"part": "one", "skipped": "no weights"},
        {"part": "two", "failed": "ValueError: wrong shape"},
        {"part": "three", "p50_ms": 1.235},
    ]


def test_a_stage_that_outlives_its_time_is_stopped_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bench_stuck.py").write_text(
        "from bench.gpu.record import stage_arguments\n"
        "given, record = stage_arguments()\n"
        "record.row('a', figure=1)\n"
        "import threading\n"
        "threading.Event().wait()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    monkeypatch.setattr(Stage, "module", "bench_stuck")
    outcome = run_stage(STAGE, GIVEN, 5.0)
    assert (outcome.status, outcome.rows) == ("stopped", [{"part": "a", "figure": 1}])


def test_a_missing_library_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    missing = inventory.Library("frames", ("no-such-frames",), "print()", "no-such-frames")
    with pytest.raises(Skipped, match="not installed: pip install no-such-frames"):
        inventory.record_library(missing, Record(tmp_path / "rows", 60.0))


def test_metrics_of_the_server_are_summed_over_models_and_devices() -> None:
    page = (
        "# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)\n"
        'nv_gpu_utilization{gpu_uuid="GPU-1"} 0.25\n'
        'nv_inference_pending_request_count{model="a",version="1"} 3\n'
        'nv_inference_pending_request_count{model="b",version="1"} 4\n'
        'nv_inference_count{model="a",version="1"} 9\n'
    )
    assert triton_server.metric_sums(page) == {"nv_gpu_utilization": 0.25, "nv_inference_pending_request_count": 7.0}


def test_rows_with_equal_columns_share_a_table() -> None:
    rows = [{"part": "a", "p50_ms": 1.5}, {"part": "b", "p50_ms": 2.0}, {"part": "c", "entries": 1000}]
    text = tables([Outcome("index", "partly", "d: no CAGRA", rows=rows)])
    assert "| part | p50 ms |\n| --- | --- |\n| a | 1.5 |\n| b | 2.0 |\n" in text
    assert "| part | entries |\n| --- | --- |\n| c | 1,000 |\n" in text
    assert "partly: d: no CAGRA" in text
