"""`nearhit explain --stored ... --asked ...`, offline and by a running gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.__main__ import main
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.processes import write_config
from tests.fixtures.upstream import Upstream

PAIR = ["explain", "--stored", "How do I turn the alarm on?", "--asked", "How do I turn the alarm off?"]
CHECKS = {"adapter": "checks"}
ONE = {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1"}}


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path / "served", {"main": {"adapter": "openai", "url": upstream.url}}, verifier=CHECKS)
    async with gateway_of(config) as gateway:
        yield gateway


@pytest.fixture
def config(tmp_path: Path) -> list[str]:
    return ["--config", str(write_config(tmp_path, ONE, BOTH_CACHES, verifier=CHECKS))]


def test_offline_it_says_why_a_stored_answer_is_not_served(
    config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PAIR, *config]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["route"] == "default, max_wrong_hits 1.00%, nothing learnt yet"
    assert lines["features"] == "antonym 1"
    assert lines["decision"] == "not served: antonym: a veto, whatever the score"


def test_offline_it_speaks_json(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PAIR, "--route", "default", "--json", *config]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["served"], found["reason"], found["labels"], found["evidence_shift"]) == (False, "antonym", 0, 0.0)


@pytest.mark.parametrize(
    ("stored", "asked", "decision"),
    [
        ("{} Who signs?", "{} Who signs?\n", "served: the same words"),
        (
            "{} Who signs?",
            "{} Then rest. Who signs?",
            "not served: too-long: the prompts differ outside the question itself",
        ),
        (
            "{} Question: How do I turn the alarm on?",
            "{} Question: How do I turn the alarm off?",
            "not served: antonym: a veto, whatever the score",
        ),
    ],
)
def test_long_prompts_are_compared_by_the_part_that_asks(
    stored: str, asked: str, decision: str, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    text = "Drivers sign the list of their load before they leave the yard. " * 20
    pair = ["explain", "--stored", stored.format(text), "--asked", asked.format(text)]
    assert main([*pair, *config]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["decision"].startswith(decision)


def test_a_route_that_is_not_there_is_one_sentence(config: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PAIR, "--route", "none", *config]) == 1
    assert capsys.readouterr().err == "nearhit: no route is called 'none': expected default\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--stored", "a"],
        ["--asked", "a"],
        ["request.json", "--stored", "a", "--asked", "b"],
        ["--stored", "a", "--asked", "b", "--expect", "light"],
        ["request.json", "--route", "default"],
    ],
    ids=" ".join,
)
def test_half_of_either_form_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *arguments]) == 2
    assert "expected REQUEST.json" in capsys.readouterr().err


async def test_a_running_gateway_gives_the_same_answer(
    served: Served, config: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert await asyncio.to_thread(main, [*PAIR, "--json", "--admin", served.admin_url + "/"]) == 0
    asked = json.loads(capsys.readouterr().out)
    assert await asyncio.to_thread(main, [*PAIR, "--json", *config]) == 0
    assert asked == json.loads(capsys.readouterr().out)
    assert await asyncio.to_thread(main, [*PAIR, "--admin", served.admin_url]) == 0
    assert "not served: antonym" in capsys.readouterr().out


async def test_what_the_gateway_refuses_is_one_sentence(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert await asyncio.to_thread(main, [*PAIR, "--admin", served.admin_url, "--route", "none"]) == 1
    said = f"nearhit: {served.admin_url} answers with status 400: no route is called 'none': expected default\n"
    assert capsys.readouterr().err == said


async def test_a_token_comes_from_the_environment(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = {"mode": "passthrough", "admin_token_env": "TOKEN"}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, auth=auth)
    monkeypatch.setenv("MINE", "secret")
    async with gateway_of(config, environ={"TOKEN": "secret"}) as guarded:
        ask = [*PAIR, "--admin", guarded.admin_url]
        assert await asyncio.to_thread(main, ask) == 1
        assert "status 401: a bearer token is required" in capsys.readouterr().err
        assert await asyncio.to_thread(main, [*ask, "--token-env", "MINE"]) == 0
        assert await asyncio.to_thread(main, [*ask, "--token-env", "NONE_SUCH"]) == 1
        assert "--token-env names the environment variable NONE_SUCH" in capsys.readouterr().err


async def test_whatever_else_answers_there_is_told_apart(
    served: Served, upstream: Upstream, capsys: pytest.CaptureFixture[str]
) -> None:
    for url, sentence in (
        (upstream.url.removesuffix("/v1"), "answers otherwise than this version expects: 'promise' is missing"),
        ("http://127.0.0.1:9", "no answer from http://127.0.0.1:9: "),
        ("127.0.0.1:9090", "is not a URL: expected one such as http://127.0.0.1:9090"),
        ("ftp://127.0.0.1", "is not a URL: expected one such as http://127.0.0.1:9090"),
    ):
        assert await asyncio.to_thread(main, [*PAIR, "--admin", url]) == 1, url
        error = capsys.readouterr().err
        assert sentence in error, error
        assert error.count("\n") == 1
