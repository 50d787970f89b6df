"""What --help says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from gateway.__main__ import main
from gateway.cli.commands import COMMANDS, build_parser

PARSER = build_parser()
RUN = {name: command for name, command in PARSER.walk() if not command.commands}


def help_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", RUN)
def test_every_command_has_examples_that_the_parser_takes(name: str) -> None:
    examples = re.findall(r"^  (nearhit .*)$", RUN[name].format_help(), re.MULTILINE)
    assert examples
    for example in examples:
        words = shlex.split(example.split(" > ")[0])
        assert " ".join(words[1:]).startswith(name)
        PARSER.parse_args(words[1:])


def test_a_command_line_is_parsed_alike_whether_all_commands_are_there_or_the_one_alone() -> None:
    for words in (["cache", "purge", "--all"], ["top", "--once"], ["serve", "--upstream", "http://127.0.0.1:9/v1"]):
        assert vars(build_parser(words).parse_args(words)) == vars(PARSER.parse_args(words))


def test_help_has_a_description_examples_exit_codes_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    said = help_of(capsys, "cache", "purge")
    parts = ["no gateway on the store serves a matching", "--older-than DURATION", "examples:", "exit codes:"]
    assert not [part for part in [*parts, "environment:", "NEARHIT_SECTION__KEY"] if part not in " ".join(said.split())]
    assert max(map(len, said.splitlines())) <= 100


def test_help_of_a_group_and_of_all_lists_commands(capsys: pytest.CaptureFixture[str]) -> None:
    said = help_of(capsys)
    assert all(re.search(rf"^ +{name}\b", said, re.MULTILINE) for name in COMMANDS.names())
    assert "purge" in help_of(capsys, "cache")


def test_a_command_imports_what_it_needs_and_no_more() -> None:
    """The list of commands comes without FAISS and the embedding model's library, which take a second."""
    asked = (
        "import sys; from gateway.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=300, check=True)
    loaded = set(run.stdout.splitlines()[-1].split())
    assert not loaded & {"faiss", "onnxruntime", "grpc", "tritonclient", "gateway.app"}
