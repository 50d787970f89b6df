"""Help as a manual has it, and the manual page."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from gateway.__main__ import main
from gateway.cli.pages import PAGES
from gateway.cli.parser import COMMANDS, build_parser

PARSER = build_parser()


@pytest.mark.parametrize("name", PAGES)
def test_every_example_is_one_that_the_parser_takes(name: str) -> None:
    for example in PAGES[name].examples:
        words = shlex.split(example.split(" > ")[0])
        assert words[0] == "nearhit" and " ".join(words[1:]).startswith(name)
        PARSER.parse_args(words[1:])


def test_the_list_of_commands_says_what_they_say_of_themselves() -> None:
    listed = next(action for action in PARSER._actions if isinstance(action, argparse._SubParsersAction))
    assert {action.dest: action.help for action in listed._choices_actions} == {
        name: one.text for name, one in COMMANDS.items()
    }


def test_a_command_line_is_parsed_alike_whether_all_commands_are_there_or_the_one_alone() -> None:
    for words in (["cache", "purge", "--all"], ["top", "--once"], ["serve", "--upstream", "http://127.0.0.1:9/v1"]):
        assert vars(build_parser(words).parse_args(words)) == vars(PARSER.parse_args(words))


def test_help_has_a_description_examples_exit_codes_and_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "cache", "purge"]) == 0
    said = capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["cache", "purge", "--help"])
    assert capsys.readouterr().out == said
    parts = ["nothing of what was meant is served", "--older-than DURATION", "examples:", "exit codes:"]
    assert not [part for part in [*parts, "environment:", "NEARHIT_SECTION__KEY"] if part not in " ".join(said.split())]
    assert max(map(len, said.splitlines())) <= 100


def test_help_of_a_group_and_of_all_lists_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == 0
    said = capsys.readouterr().out
    assert all(re.search(rf"^ +{name}\b", said, re.MULTILINE) for name in COMMANDS)
    assert main(["help", "cache"]) == 0
    assert "purge" in capsys.readouterr().out


def test_the_manual_page_has_every_command_and_no_fault_that_a_formatter_finds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help", "--man"]) == 0
    page = capsys.readouterr().out
    assert all(f".SS nearhit {name}\n" in page for name in PAGES)
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    options = ["-man", "-ww", "-Tutf8", "-P-c"]
    run = subprocess.run(["groff", *options], input=page, capture_output=True, text=True, timeout=300, check=True)
    assert run.stderr == ""
    shown = re.sub(".\x08", "", run.stdout)  # printed twice: bold
    assert "nearhit cache purge" in shown and "--older-than DURATION" in shown


def test_a_command_imports_what_it_needs_and_no_more() -> None:
    """The list of commands comes without FAISS and the embedding model's library, which take a second."""
    asked = (
        "import sys; from gateway.__main__ import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=300, check=True)
    loaded = set(run.stdout.splitlines()[-1].split())
    assert not loaded & {"faiss", "onnxruntime", "grpc", "tritonclient", "gateway.app"}
