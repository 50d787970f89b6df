"""The side process of `tune: {every: ...}`: it runs alone, its texts are not logged, and it ends in time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from bench.process import command_line
from gateway.__main__ import main
from gateway.cache.verifier_versions import VerifierVersions
from gateway.cli import serve
from gateway.cli.schedule import TUNE, repeating, run_once
from gateway.config.load import load_config
from gateway.features.tuning.command import _exclusive
from tests.fixtures.waiting import until


def config_in(folder: Path) -> Path:
    document = {"version": 1, "backends": {"main": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}}}
    (folder / "config.yaml").write_text(json.dumps(document | {"data_dir": "var"}))
    return folder / "config.yaml"


async def test_the_report_is_logged_without_texts(tmp_path: Path) -> None:
    said = {"in_force": True, "why": "it serves more", "examples": {"won": [{"a": "a secret"}]}}
    assert await run_once([sys.executable, "-c", f"print({json.dumps(json.dumps(said))})"], os.environ, TUNE.shown) == {
        "in_force": True,
        "why": "it serves more",
    }


async def test_a_process_without_a_report_is_a_fault() -> None:
    found = await run_once([sys.executable, "-c", "raise SystemExit(3)"], os.environ, TUNE.shown)
    assert found == {"error": "no report; exit status 3"}


async def test_a_process_ends_in_time(tmp_path: Path) -> None:
    """The child of the process ends with it."""
    script = f"import subprocess, sys; subprocess.run(['sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 600'])"
    found = await run_once([sys.executable, "-c", script], os.environ, TUNE.shown, limit_s=2.0)
    assert found == {"error": "not done after 2 s"}
    pid = int((tmp_path / "pid").read_text())
    await until(lambda: not command_line(pid))


async def test_a_gateway_tunes_in_a_process_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = config_in(tmp_path)
    with caplog.at_level(logging.INFO, "nearhit.quality"):
        async with repeating(TUNE, 0.01, path, os.environ):
            async with asyncio.timeout(300):
                while not caplog.records:
                    await asyncio.sleep(0.05)
    fields = caplog.records[0].__dict__["fields"]
    assert (fields["in_force"], fields["labels"]) == (False, 0)


async def test_without_the_setting_nothing_runs(tmp_path: Path) -> None:
    path = config_in(tmp_path)
    async with serve.scheduled(load_config(path, os.environ), path, os.environ):
        pass
    assert not (tmp_path / "var").exists()


def test_one_run_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_in(tmp_path)
    with _exclusive(tmp_path / "var"):
        assert main(["tune", "--config", str(path)]) == 1
    assert "expected one at a time" in capsys.readouterr().err
    assert main(["tune", "--config", str(path)]) == 0


def test_the_workers_of_a_gateway_share_its_versions(tmp_path: Path) -> None:
    assert VerifierVersions(tmp_path / "workers" / "2").folder == VerifierVersions(tmp_path).folder
