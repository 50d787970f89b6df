"""Commands of other packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.cli.commands import build_parser
from gateway.errors import StartupError

GREET = """
summary = "Greet somebody."

def register(command):
    command.define(lambda arguments: print("hello", arguments.name) or 0, "you")
    command.add_argument("name")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path with a distribution that has a command, and one that cannot be loaded."""
    (tmp_path / "greeting.py").write_text(GREET)
    about = tmp_path / "greeting-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[nearhit.commands]\ngreet = greeting\nlost = greeting:NOTHING\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "greeting", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])]))
    return tmp_path


def nearhit(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.usefixtures("installed")
def test_a_command_of_another_package_runs_like_one_of_this_wheel() -> None:
    run = nearhit("greet", "you")
    assert (run.returncode, run.stdout) == (0, "hello you\n")
    assert "--config" in nearhit("greet", "--help").stdout


@pytest.mark.usefixtures("installed")
def test_help_and_completion_have_commands_of_other_packages() -> None:
    said = nearhit("--help")
    assert said.returncode == 0
    assert "Greet somebody." in said.stdout
    assert "greet" in nearhit("completion", "bash").stdout


@pytest.mark.usefixtures("installed")
def test_a_command_that_cannot_be_loaded_is_named_with_its_package() -> None:
    assert "lost of greeting cannot be loaded" in " ".join(nearhit("--help").stdout.split())
    run = nearhit("lost", "--json")
    assert run.returncode == 1
    assert run.stderr.startswith("nearhit: nearhit.commands: lost of greeting cannot be loaded from greeting:NOTHING")
    with pytest.raises(StartupError):
        build_parser(["lost"])


@pytest.mark.usefixtures("installed")
def test_no_other_command_imports_a_command_of_another_package(capsys: pytest.CaptureFixture[str]) -> None:
    build_parser(["serve"])
    parser = build_parser(["gret"])
    with pytest.raises(SystemExit):
        parser.parse_args(["gret"])
    assert "did you mean greet?" in capsys.readouterr().err
    assert "greeting" not in sys.modules
