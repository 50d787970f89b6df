"""`nearhit completion`, by the shell itself; and what every command has in common."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.cli import build_parser, main
from gateway.commands.completion import SHELLS
from gateway.commands.manual import tree


def completed(script: Path, *words: str) -> set[str]:
    """What a real bash offers for the last of these words."""
    asked = f"""
source {script}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
_shtab_nearhit nearhit '{words[-1]}' '{words[-2]}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    run = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, timeout=30, check=True)
    return {line.strip() for line in run.stdout.splitlines()}


@pytest.fixture
def bash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "nearhit.bash").write_text(capsys.readouterr().out)
    return tmp_path / "nearhit.bash"


def test_bash_completes_commands_options_and_choices(bash: Path) -> None:
    assert completed(bash, "nearhit", "do") == {"doctor"}
    assert completed(bash, "nearhit", "cache", "ex") == {"export"}
    assert completed(bash, "nearhit", "cache", "purge", "--older") == {"--older-than"}
    assert {"active", "dead"} <= completed(bash, "nearhit", "jobs", "list", "--state", "")


def test_bash_completes_files_where_a_file_is_expected(bash: Path, tmp_path: Path) -> None:
    (tmp_path / "request.json").touch()
    assert completed(bash, "nearhit", "explain", f"{tmp_path}/req") == {f"{tmp_path}/request.json"}


@pytest.mark.parametrize("shell", SHELLS)
def test_each_script_is_one_that_its_shell_reads(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["completion", shell, "--json"]) == 0
    script = json.loads(capsys.readouterr().out)["script"]
    assert "doctor" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    subprocess.run([shell, "-n", tmp_path / "script"], timeout=30, check=True)


def test_every_command_takes_a_configuration_and_speaks_json() -> None:
    for name, command in tree(build_parser()):
        options = {option for action in command._actions for option in action.option_strings}
        assert command.get_default("command") is None or {"--config", "--json", "--help"} <= options, name


def test_a_command_without_its_argument_exits_with_2() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion"])
    assert ended.value.code == 2
