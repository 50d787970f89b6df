"""`nearhit light`, from the answers of a route to a version that answers, and the ways in which it makes none."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.cli.output import CommandFailed
from gateway.features.light.command import _distil
from tests.features.light.routes import Models, routed
from tests.fixtures.build_environment import BUILD_ENV
from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream, completion, question_of

WORDS = {"lost": ("card", "purse", "key"), "price": ("cost", "fee", "charge")}
FRAMES = [f"{start} {{}} {end}" for start in ("my", "what of the", "about a") for end in ("", "please", "today", "now")]


async def intent(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    words = question_of(call).split()
    return web.json_response(completion(call, next(kind for kind, of in WORDS.items() if {*words} & {*of})))


async def nearhit(capsys: pytest.CaptureFixture[str], served: Served, folder: Path, *words: str) -> tuple[int, Any]:
    """Run a command as a person does, beside the gateway of this loop."""
    config = folder / "config.yaml"
    backends = {"main": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}}
    config.write_text(json.dumps({"version": 1, "backends": backends, "light": {"min_rows": 60}}))
    capsys.readouterr()
    line = ["light", *words, "--config", str(config), "--admin", served.admin_url, "--json"]
    status = await asyncio.to_thread(main, line)
    text = capsys.readouterr().out
    return status, json.loads(text)


async def test_a_route_makes_its_own_light_model(
    python: Path,
    models: Models,
    upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with routed(models, upstream, tmp_path / "var", "intents") as route:
        upstream.answer = intent
        status, found = await nearhit(capsys, route.served, tmp_path, "--route", "default")
        assert (status, found["routes"][0]["started"]) == (0, None)
        assert "expected 60 questions" in found["routes"][0]["why"]

        texts = [
            f"{frame.format(word)} {n}" for n in (1, 2) for frame in FRAMES for of in WORDS.values() for word in of
        ]
        for text in texts:
            assert (await route.served.chat(text)).headers["x-nearhit-backend"] == "main"
        where = ["--repository", str(models.repository), "--build-env", str(BUILD_ENV), "--epochs", "6"]
        status, found = await nearhit(capsys, route.served, tmp_path, "--route", "default", *where)
        (report,) = found["routes"]
        assert (status, report["started"]) == (0, "1"), found
        assert (report["rows"], report["held_out"]) == (115, 29)
        state = await route.state()
        assert (state["candidate"], state["report"]["rows"]) == ("1", 115)
        status, _ = await nearhit(capsys, route.served, tmp_path, "promote", "--route", "default")
        assert status == 0
        async with asyncio.timeout(60):
            while (answer := await route.served.chat("my purse now")).headers["x-nearhit-backend"] != "light":
                await asyncio.sleep(0)  # until the gateway has found that the model is there
        assert answer.text == "lost"

        status, found = await nearhit(
            capsys, route.served, tmp_path, "rollback", "--route", "default", "--why", "a try"
        )
        assert found["rollout"]["events"][0]["why"] == "a try"
        assert found["rollout"]["events"][0]["change"] == "withdrawn"


async def test_questions_can_be_written_to_a_file_for_their_owner_alone(
    models: Models,
    upstream: Upstream,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with routed(models, upstream, tmp_path / "var", models.model()) as route:
        await route.ask()
        out = tmp_path / "rows.jsonl"
        assert await nearhit(capsys, route.served, tmp_path, "--rows", str(out)) == (0, {"rows": 1})
        assert json.loads(out.read_text()) == {"text": "1 a or b red", "label": "red"}
        assert oct(out.stat().st_mode & 0o777) == "0o600"


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"the training failed: .*nowhere\.csv"):
        _distil([str(tmp_path / "nowhere.csv"), "--json"])


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["promote"], "expected --route NAME"),
        (["start", "--route", "r"], "expected --version N with start"),
        (["list", "--version", "3"], "without it otherwise"),
        (["stop"], "invalid choice"),
    ],
)
def test_wrong_usage_is_told(words: list[str], fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["light", *words])
    except SystemExit as ended:
        status = int(str(ended.code))
    assert status == 2
    assert fault in capsys.readouterr().err
