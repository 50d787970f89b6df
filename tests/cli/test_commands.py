"""The command line as an operator meets it: output, sentences, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.__main__ import main
from gateway.pipeline import SHARED
from tests.fixtures.gateways import NO_CACHE, TIERS
from tests.fixtures.processes import write_config

ROOT = Path(__file__).parents[2]
TWO = {
    "light": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"},
    "large": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"},
}
EASY = {"model": "m", "messages": [{"role": "user", "content": "What is a scope?"}]}
HARD = {
    "model": "m",
    "messages": [
        {
            "role": "user",
            "content": "Prove step by step that the algorithm terminates, compare its complexity with quicksort, "
            "derive the recurrence equation, and explain why the bound must be at least n log n. Answer in a table.",
        }
    ],
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write_config(tmp_path, TWO, TIERS)
    return tmp_path


def ask(home: Path, request: object, *more: str) -> int:
    (home / "request.json").write_text(json.dumps(request))
    return main(["explain", str(home / "request.json"), "--config", str(home / "config.yaml"), *more])


def test_the_shipped_configuration_has_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--config", str(ROOT / "config.yaml")]) == 0
    assert capsys.readouterr().out == "2 files, no faults\n"


@pytest.mark.parametrize("example", sorted((ROOT / "policies" / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_the_shipped_examples_have_no_fault(example: Path) -> None:
    assert main(["check", str(example), "--config", str(ROOT / "config.yaml")]) == 0


def test_check_lists_every_fault_of_all_files_with_its_line(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "policies" / "policy.yaml").write_text(
        TIERS.replace("semantic:", "semantc:").replace("light: light", "light: ligth")
    )
    assert main(["check", "--config", str(home / "config.yaml")]) == 1
    faults = capsys.readouterr().out.splitlines()
    file = home / "policies" / "policy.yaml"
    assert faults[0].startswith(f"{file}:6: routes[0].cache.semantc: unknown key, did you mean 'semantic'?")
    assert faults[1].startswith(f"{file}:7: routes[0].route.light: ") and "did you mean 'light'?" in faults[1]


def test_check_speaks_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "policies" / "policy.yaml").write_text("version: 2\n")
    assert main(["check", "--json", "--config", str(home / "config.yaml")]) == 1
    assert {fault["line"] for fault in json.loads(capsys.readouterr().out)["faults"]} >= {1}


def test_explain_says_where_a_request_would_go_and_why(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(home, EASY) == 0
    text = capsys.readouterr().out
    assert f"default ({home / 'policies' / 'policy.yaml'}:4)" in text
    assert "light (below-threshold, escalates above 0.50)" in text
    assert "on, max_wrong_hits 1.00%" in text


def test_explain_speaks_json_and_the_fingerprint_is_that_of_the_question(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(home, EASY, "--json")
    easy = json.loads(capsys.readouterr().out)
    ask(home, {"path": "/v1/chat/completions", "headers": {"x-latency-budget-ms": "900"}, "body": HARD}, "--json")
    hard = json.loads(capsys.readouterr().out)
    assert (easy["tier"], hard["tier"]) == ("light", "large")
    assert easy["complexity"] < 0.5 < hard["complexity"]
    assert easy["scope"] == hard["scope"]  # all but the question is equal
    assert easy["fingerprint"] != hard["fingerprint"]


def test_explain_prints_the_steps_of_a_route(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(home, EASY, "--steps") == 0
    steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert steps[0] == "ExactFastPath" and steps[-1] == "Dispatch"
    assert "SemanticCache" in steps and "RateLimit" not in steps
    (home / "policies" / "policy.yaml").write_text(NO_CACHE.replace("main", "light"))
    assert ask(home, EASY, "--steps", "--json") == 0
    found = [name for name, _ in json.loads(capsys.readouterr().out)["steps"]]
    assert found == [step.name for step in SHARED] + ["Negotiate", "ResourceAffinity", "Dispatch"]


def test_explain_can_be_held_to_an_expectation(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(home, EASY, "--expect", "light") == 0
    assert ask(home, EASY, "--expect", "large") == 1
    assert "expected large, but the choice is light" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "not valid JSON"),
        ("[]", "expected an object"),
        ('{"path": "/v1/files", "body": {}}', "is passed through, there is nothing to explain"),
        ('{"model": "m", "messages": []}', "'messages' is an empty array: expected a non-empty array"),
    ],
)
def test_explain_says_in_one_sentence_what_is_wrong_with_a_request(
    home: Path, capsys: pytest.CaptureFixture[str], content: str, sentence: str
) -> None:
    (home / "request.json").write_text(content)
    assert main(["explain", str(home / "request.json"), "--config", str(home / "config.yaml")]) == 1
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1


def test_without_a_configuration_the_message_names_the_ways_to_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--config", str(tmp_path / "config.yaml")]) == 1
    assert "--upstream URL starts without one" in capsys.readouterr().err


def test_a_missing_model_is_one_sentence_with_the_command_that_makes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(
        tmp_path, TWO, TIERS, embedder={"adapter": "onnx", "model": "own", "model_dir": str(tmp_path)}
    )
    assert main(["serve", "--config", str(config)]) == 1
    assert "run `nearhit model build`" in capsys.readouterr().err


def test_usage_errors_exit_with_2() -> None:
    assert (main([]), main(["cache"])) == (2, 2)
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--listen", "nowhere"])
    assert exit_.value.code == 2


def test_every_command_takes_config_and_json() -> None:
    for command in (["serve"], ["demo"], ["check"], ["explain"], ["model", "fetch"]):
        with pytest.raises(SystemExit) as exit_:
            main([*command, "--config", "x", "--json", "--help"])
        assert exit_.value.code == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            ["sreve"],
            "nearhit: error: unknown command 'sreve' (did you mean serve?); see `nearhit --help`",
        ),
        (["xyz"], "nearhit: error: unknown command 'xyz'; see `nearhit --help`"),
        (
            ["--config", "x.yaml", "serve"],
            "nearhit: error: options follow the command: move --config after it",
        ),
        (
            ["cache", "prge"],
            "nearhit cache: error: unknown command 'prge' (did you mean purge?); see `nearhit cache --help`",
        ),
        (
            ["cache", "purge", "--tags", "x"],
            "nearhit cache purge: error: unknown option --tags (did you mean --tag?); see `nearhit cache purge --help`",
        ),
        (
            ["check", "--nothing-of-the-kind"],
            "nearhit check: error: unknown option --nothing-of-the-kind; see `nearhit check --help`",
        ),
        (
            ["serve", "config.yaml"],
            "nearhit serve: error: unexpected argument 'config.yaml'; see `nearhit serve --help`",
        ),
    ],
)
def test_what_is_not_understood_is_told_by_the_command_that_was_meant(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(given)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == said
