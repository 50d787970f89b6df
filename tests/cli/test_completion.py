"""`nearhit completion`, by the shell itself; and what every command has in common."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gateway.__main__ import build_parser, main
from gateway.cli.completion import SHELLS
from tests.fixtures.terminal import on_a_terminal, read_until


def completed(script: Path, *words: str) -> set[str]:
    """What a real bash offers for the last of these words."""
    asked = f"""
source {script}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
_shtab_nearhit nearhit '{words[-1]}' '{words[-2]}'
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    run = subprocess.run(["bash", "--norc", "-c", asked], capture_output=True, text=True, timeout=300, check=True)
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


CASES = [
    ("nearhit doc", "nearhit doctor"),
    ("nearhit cache ex", "nearhit cache export"),
    ("nearhit cache purge --older", "nearhit cache purge --older-than"),
    ("nearhit jobs list --state a", "nearhit jobs list --state active"),
    ("nearhit explain req", "nearhit explain request.json"),
]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_choices_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "request.json").touch()
    assert main(["completion", "fish"]) == 0
    (tmp_path / "nearhit.fish").write_text(capsys.readouterr().out)
    for typed, meant in CASES:
        asked = f"source nearhit.fish; complete -C '{typed}'"
        run = subprocess.run(
            ["fish", "--no-config", "-c", asked], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=True
        )
        assert [line.split("\t")[0] for line in run.stdout.splitlines()] == [meant.split()[-1]]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
async def test_zsh_completes_commands_options_choices_and_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its prompt, on a pseudo-terminal: it completes nowhere else."""
    (tmp_path / "request.json").touch()
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "_nearhit").write_text(capsys.readouterr().out)
    async with on_a_terminal("zsh", "-f", "-i", cwd=tmp_path, TERM="dumb") as (_, ours):
        os.write(ours, b"fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; print rea''dy\n")
        await read_until(ours, "ready")
        for typed, meant in CASES:
            os.write(ours, f"{typed}\t".encode())
            await read_until(ours, f"{meant} ")
            os.write(ours, b"\x15")  # ^U: the line away


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
    subprocess.run([shell, "-n", tmp_path / "script"], timeout=300, check=True)


def test_every_command_takes_a_configuration_and_speaks_json() -> None:
    for name, command in build_parser().walk():
        options = {option for action in command._actions for option in action.option_strings}
        assert command.commands or {"--config", "--json", "--help"} <= options, name


def test_a_command_without_its_argument_exits_with_2() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion"])
    assert ended.value.code == 2
