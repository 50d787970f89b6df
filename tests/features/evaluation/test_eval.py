"""`nearhit eval`: the policy's choices against those that are expected, and the signal of each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from tests.features.classifier.test_classifier import answers, rule
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.several import policy_of
from tests.fixtures.upstream import Upstream, serving
from tests.routing.test_dispatch import EASY, HARD

POLICY = """
version: 1
routes:
  - name: one
    match: {model: "one-*"}
    route: {backend: mid}
  - name: default
    match: {}
    session: {by: [turns]}
    route: {light: small, large: big}
"""
LOOP = {
    "model": "m",
    "messages": [
        {"role": "user", "content": EASY},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ],
}


def prepare(folder: Path, policy: str = POLICY) -> None:
    (folder / "policies").mkdir()
    (folder / "policies" / "default.yaml").write_text(policy)
    backends = {name: {"adapter": "openai", "url": "http://127.0.0.1:9/v1"} for name in ("small", "mid", "big")}
    document = {"version": 1, "embedder": {"adapter": "hash"}, "backends": backends}
    (folder / "config.yaml").write_text(json.dumps(document))


def lines(path: Path, rows: Iterable[object]) -> Path:
    plain = [row if isinstance(row, str) and len(row.splitlines()) < 2 else json.dumps(row) for row in rows]
    path.write_text("".join(f"{row}\n" for row in plain))
    return path


def evaluate(folder: Path, prompts: Iterable[object], expected: Iterable[object], *more: str) -> int:
    given, wanted = lines(folder / "prompts.jsonl", prompts), lines(folder / "expected.txt", expected)
    return main(
        ["eval", "--config", str(folder / "config.yaml"), "--prompts", str(given), "--expect", str(wanted), *more]
    )


def test_it_counts_the_expected_choices_and_the_signal_of_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path)
    prompts = [
        EASY,
        json.dumps(HARD),
        {"id": "a", "prompt": "Hi", "model": "one-1"},
        {"path": "/v1/chat/completions", "body": LOOP},
    ]
    assert evaluate(tmp_path, prompts, ["light", {"tier": "large"}, {"backend": "mid"}, "large"], "--json") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["prompts"], found["as_expected"], found["share"]) == (4, 3, 0.75)
    assert found["chosen"] == {"light": {"light": 1}, "large": {"large": 1, "light": 1}, "mid": {"mid": 1}}
    assert {name: count["prompts"] for name, count in found["signals"].items()} == {"text": 3, "rule": 1}
    assert {name: count["prompts"] for name, count in found["routes"].items()} == {"one": 1, "default": 3}
    (other,) = found["others"]
    assert other["at"] == f"{tmp_path}/prompts.jsonl:4"
    assert (other["expected"], other["chosen"], other["backend"], other["signal"]) == (
        "large",
        "light",
        "small",
        "text",
    )


def test_the_text_names_the_lines_that_went_elsewhere_and_no_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path)
    assert evaluate(tmp_path, [EASY, HARD], ["large", "large"], "--at-least", "50%") == 0
    said = capsys.readouterr().out
    assert said.startswith("2 prompts, 1 as expected (50.0%)\n")
    assert f"{tmp_path}/prompts.jsonl:1: expected large, got light (by text, complexity 0." in said
    assert EASY not in said


def test_too_few_expected_choices_are_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path)
    assert evaluate(tmp_path, [EASY, HARD], ["large", "large"], "--at-least", "90%") == 1
    assert "50.0% are as expected, at least 90.0% were asked for" in capsys.readouterr().err


def test_expectations_with_ids_are_in_any_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path)
    prompts = [{"id": 1, "prompt": EASY}, {"id": "2", "prompt": HARD}]
    assert evaluate(tmp_path, prompts, [{"id": 2, "tier": "large"}, {"id": "1", "tier": "light"}], "--json") == 0
    assert json.loads(capsys.readouterr().out)["as_expected"] == 2


@pytest.mark.parametrize(
    ("prompts", "expected", "fault"),
    [
        (
            [EASY, HARD],
            ["light"],
            "prompts.jsonl:2: this line has no partner, because there are 2 prompts and 1 expect",
        ),
        ([EASY], ["light", "large"], "expected.txt:2: this line has no partner"),
        ([EASY], ["larg"], "expected.txt:1: unknown tier or backend 'larg', did you mean 'large'?"),
        ([EASY, "{"], ["light", "light"], "prompts.jsonl:2: not valid JSON"),
        ([{"prompt": 3}], ["light"], "prompts.jsonl:1: prompt: expected the text of a question"),
        ([{"prompt": "a", "temperature": 1}], ["light"], "prompts.jsonl:1: temperature: expected only"),
        ([{"body": {}}], ["light"], "prompts.jsonl:1"),
        ([{"id": 1, "prompt": "a"}], [{"id": 2, "tier": "light"}], "prompts.jsonl:1: no expectation has the id '1'"),
        ([{"id": 1, "prompt": "a"}] * 2, [{"id": 1, "tier": "light"}], "prompts.jsonl:2: the id '1' is that of"),
        (["a"], [{"id": 1, "tier": "light"}], "prompts.jsonl:1: the line has no id"),
        (["a"], [{"id": 1}], 'expected.txt:1: expected {"id": "...", "tier": "large"}'),
        ([""], ["light"], "prompts.jsonl: the file is empty"),
    ],
)
def test_a_fault_of_a_file_is_named_with_its_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    prompts: list[object],
    expected: list[object],
    fault: str,
) -> None:
    prepare(tmp_path)
    assert evaluate(tmp_path, prompts, expected) == 1
    assert fault in capsys.readouterr().err


def test_a_missing_option_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--prompts", str(tmp_path)]) == 2
    assert "expected --prompts and --expect, or --shadow" in capsys.readouterr().err


@pytest.fixture
async def classifier() -> AsyncIterator[Upstream]:
    async with serving(Upstream("classifier")) as upstream:
        upstream.answer = answers({"tier": "large"})
        yield upstream


@pytest.mark.parametrize("by_gateway", [False, True])
async def test_the_classifier_of_a_route_is_asked(
    tmp_path: Path, classifier: Upstream, capsys: pytest.CaptureFixture[str], by_gateway: bool
) -> None:
    policy = policy_of(rule(classifier, target="light: small, large: big"))
    prepare(tmp_path, policy)
    backends = {name: {"adapter": "openai", "url": "http://127.0.0.1:9/v1"} for name in ("small", "big")}
    async with gateway_of(config_of(tmp_path / "gateway", backends), policy) as served:
        more = ["--admin", served.admin_url] if by_gateway else []
        assert await asyncio.to_thread(evaluate, tmp_path, [EASY, HARD], ["light", "large"], "--json", *more) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["signals"] == {"classifier": {"prompts": 2, "as_expected": 1, "share": 0.5}}
    assert list(found["scored_by"]) == [f"the classifier at {classifier.url.replace('/v1', '/classify')}"]
    assert len(classifier.calls) == 2
