"""The systemd unit: systemd itself reads it, and it gives the gateway the time it may take."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.__main__ import build_parser
from gateway.config import Config
from gateway.config.environment import apply_environment

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "nearhit.service"
STORE_STOPS_S = 10.0  # gateway/adapters/redis/embedded_valkey.py


def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copy = tmp_path / "nearhit.service"  # verify looks for the program, which is not installed here
    copy.write_text(UNIT.read_text().replace("/opt/nearhit/bin/nearhit", sys.executable))
    run = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=300)
    assert (run.returncode, [line for line in run.stderr.splitlines() if "nearhit.service" in line]) == (0, [])


def test_what_it_starts_is_a_command() -> None:
    words = service()["ExecStart"].split()
    arguments = build_parser().parse_args(words[1:])
    assert arguments.config == Path("/etc/nearhit/config.yaml")


def test_it_is_hardened_and_gives_the_gateway_its_folder() -> None:
    unit = service()
    assert (unit["DynamicUser"], unit["ProtectSystem"], unit["NoNewPrivileges"]) == ("yes", "strict", "yes")
    name, _, value = unit["Environment"].split()[0].partition("=")
    document = {"version": 1, "backends": {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}}
    config = Config.model_validate(apply_environment(document, {name: value}).value)
    assert config.data_dir == Path("/var/lib") / unit["StateDirectory"]


def test_it_waits_longer_than_requests_and_the_store_may_take() -> None:
    unit = service()
    drain_s = Config.model_fields["server"].get_default(call_default_factory=True).drain_timeout
    assert float(unit["TimeoutStopSec"]) > drain_s + STORE_STOPS_S
    assert unit["KillMode"] == "mixed"  # the store outlives the requests
    assert int(unit["LimitNOFILE"]) >= 65536
