"""How many files may be open: in a process of its own, which has its limits lowered first."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.processes import write_config

ASKED = """
import logging, resource, sys
from pathlib import Path
from gateway.http_server.listening import allow_files
from gateway.config.load import load_config
logging.basicConfig(stream=sys.stdout, format="%(message)s %(fields)s")
config = load_config(Path(sys.argv[1]), {})
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[3])))
def refused(*_):
    raise ValueError("not allowed to raise maximum limit")  # what it makes of EPERM
if "refused" in sys.argv:
    resource.setrlimit = refused
allow_files(config)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def allowed(config: Path, soft: int, hard: int, *more: str) -> list[str]:
    """-> what is logged, and the limit then."""
    given = [sys.executable, "-c", ASKED, str(config), str(soft), str(hard), *more]
    return subprocess.run(given, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """1024 requests in flight, 64 calls, 82 others."""
    return write_config(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}})


def test_a_low_limit_is_raised_to_what_is_ample(config: Path) -> None:
    assert allowed(config, 64, HARD) == ["2340"]


def test_a_high_limit_stays(config: Path) -> None:
    assert allowed(config, 4000, HARD) == ["4000"]


def test_a_limit_that_the_system_keeps_low_is_told(config: Path) -> None:
    warning, limit = allowed(config, 64, 400)
    assert limit == "400"
    assert warning.startswith("the limit of open files is too low {'may_be_open': 400, 'needed': 1170,")


def test_a_gateway_starts_where_it_may_not_raise_its_limit(config: Path) -> None:
    """Sandboxes refuse the call, and so does a kernel whose `fs.nr_open` is below the hard limit."""
    warning, limit = allowed(config, 64, 400, "refused")
    assert limit == "64"
    assert warning.startswith("the limit of open files is too low {'may_be_open': 64, 'needed': 1170,")
    assert allowed(config, 1200, HARD, "refused") == ["1200"]  # enough, if not ample
