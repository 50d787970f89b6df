"""`nearhit cache` as an operator meets it, against a gateway that runs."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import stat
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.cli import cache as cache_commands
from gateway.cli import progress, warming
from gateway.config import Config
from gateway.errors import StoreUnavailable
from tests.admin.test_admin_port import TOKEN
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of, store_pid
from tests.fixtures.stores import OutsideServer, frozen
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until

Nearhit = Callable[..., Coroutine[Any, Any, tuple[int, str, str]]]
EXACT = """
version: 1
routes:
  - name: plain
    match: {headers: {x-app: plain}}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.7}}
    route: {backend: main}
"""


def config_for(path: Path, upstream: Upstream, **sections: Any) -> Config:
    return config_of(path, {"main": {"adapter": "openai", "url": upstream.url}}, **sections)


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_of(config_for(tmp_path, upstream), EXACT) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _nothing_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not so long that a line says how far it is, however busy the machine is."""
    monkeypatch.setattr(progress, "LINE_INTERVAL_S", math.inf)


@pytest.fixture
def nearhit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Nearhit:
    """`nearhit cache ...` in a thread of its own -> exit code, standard output, standard error."""

    async def run(*arguments: object, admin: str | None = None) -> tuple[int, str, str]:
        command = ["cache", *map(str, arguments), "--config", str(tmp_path / "none.yaml")]
        code = await asyncio.to_thread(main, [*command, *(["--admin", admin] if admin else [])])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


async def test_purge_shows_what_would_go_and_then_removes_it(served: Served, nearhit: Nearhit) -> None:
    for question in ("alpha", "beta", "gamma"):
        await served.chat(question, headers={"Cache-Tag": f"{question}, all"})
    code, out, _ = await nearhit("purge", "--tag", "alpha", "--tag", "beta", "--dry-run", admin=served.admin_url)
    assert code == 0
    lines = out.splitlines()
    assert lines[-1] == "2 would be removed"
    assert any("alpha,all  alpha" in line for line in lines)
    code, out, _ = await nearhit("purge", "--tag", "alpha", "--route", "default", "--json", admin=served.admin_url)
    assert (code, json.loads(out)["removed"]) == (0, 1)
    code, out, _ = await nearhit("purge", "--all", admin=served.admin_url)
    assert (code, out.splitlines()[-1]) == (0, "2 removed"), "nobody is asked where there is no terminal"


async def test_what_clients_wrote_does_not_reach_the_terminal_as_it_is(served: Served, nearhit: Nearhit) -> None:
    await served.chat("red \x1b[31m alert\nsecond line", model="m\x1b]0;x\x07")
    _, out, _ = await nearhit("purge", "--all", "--dry-run", admin=served.admin_url)
    assert out.count("\n") == 2
    assert "\x1b" not in out


async def test_every_option_of_purge_reaches_the_gateway(served: Served, nearhit: Nearhit) -> None:
    await served.chat("how do I reset my password")
    of_names = [("--tenant", "x"), ("--model", "x"), ("--route", "plain"), ("--backend", "main")]
    for option, value in [*of_names, ("--older-than", "1d"), ("--fingerprint", "0" * 64)]:
        code, out, _ = await nearhit("purge", "--tag", "x", option, value, admin=served.admin_url)
        assert (code, out) == (0, "0 removed\n"), option
    like = ("purge", "--like", "how do I reset my password please", "--json")
    assert json.loads((await nearhit(*like, "--min-similarity", "1", admin=served.admin_url))[1])["removed"] == 0
    assert json.loads((await nearhit(*like, admin=served.admin_url))[1])["removed"] == 1


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
async def test_purge_says_where_nothing_is_called_so(served: Served, nearhit: Nearhit, more: list[str]) -> None:
    await served.chat("alpha")
    code, out, _ = await nearhit("purge", "--route", "plian", "--backend", "nain", *more, admin=served.admin_url)
    assert (code, out.splitlines()) == (
        0,
        [
            "no route of the policy in force is called 'plian' (there are: plain, default)",
            "no backend of the configuration is called 'nain' (there are: main)",
            "0 would be removed" if more else "0 removed",
        ],
    )


async def test_on_a_terminal_all_asks_first(served: Served, nearhit: Nearhit, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        said = "n\n"

        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return self.said

    await served.chat("alpha")
    terminal = Terminal()
    monkeypatch.setattr(cache_commands.sys, "stdin", terminal)
    code, _, err = await nearhit("purge", "--all", admin=served.admin_url)
    assert code == 1
    assert err == "Remove every stored answer? [y/N] nearhit: nothing was removed\n"
    terminal.said = "y\n"
    assert (await nearhit("purge", "--all", admin=served.admin_url))[1].endswith("1 removed\n")
    await served.chat("alpha")
    assert (await nearhit("purge", "--all", "--yes", admin=served.admin_url))[2] == ""


async def test_what_is_wrong_is_one_sentence_and_an_exit_code(served: Served, nearhit: Nearhit, tmp_path: Path) -> None:
    code, _, err = await nearhit("purge")
    assert (code, err.count("\n")) == (2, 1)
    assert "no condition given" in err
    code, _, err = await nearhit("stats", admin="http://127.0.0.1:9")
    assert (code, err.count("\n")) == (1, 1)
    assert "no gateway answers at http://127.0.0.1:9" in err
    code, _, err = await nearhit("purge", "--older-than", "soon", admin=served.admin_url)
    assert (code, err) == (
        1,
        "nearhit: older_than: expected a duration such as 250ms, 30s, 5m, 24h or 7d, got 'soon'\n",
    )
    code, _, err = await nearhit("stats", admin=served.url)
    assert code == 1
    code, _, err = await nearhit("stats", admin="nowhere")
    assert (code, "is not a URL" in err) == (1, True)
    assert "no such file" in (await nearhit("import", tmp_path / "none", admin=served.admin_url))[2]


async def test_the_token_comes_from_the_environment(
    upstream: Upstream, tmp_path: Path, nearhit: Nearhit, monkeypatch: pytest.MonkeyPatch
) -> None:
    auth = {"mode": "passthrough", "admin_token_env": "ADMIN_TOKEN"}
    async with gateway_of(config_for(tmp_path, upstream, auth=auth), environ={"ADMIN_TOKEN": TOKEN}) as served:
        code, _, err = await nearhit("purge", "--all", admin=served.admin_url)
        assert (code, "rejected the token" in err) == (1, True)
        monkeypatch.setenv("MY_TOKEN", TOKEN)
        code, _, _ = await nearhit("purge", "--all", "--token-env", "MY_TOKEN", admin=served.admin_url)
        assert code == 0


async def test_without_options_it_is_the_configured_gateway_with_the_configured_token(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADMIN_TOKEN", TOKEN)
    auth = {"mode": "passthrough", "admin_token_env": "ADMIN_TOKEN"}
    async with gateway_of(config_for(tmp_path, upstream, auth=auth), environ={"ADMIN_TOKEN": TOKEN}) as served:
        ports = {"listen": served.url.removeprefix("http://"), "admin": served.admin_url.removeprefix("http://")}
        backends = {"main": {"adapter": "openai", "url": upstream.url}}
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps({"version": 1, "server": ports, "auth": auth, "backends": backends}))
        file = tmp_path / "prompts.jsonl"
        file.write_text('"alpha"')
        for command in (["warm", str(file), "--rate", "100/s"], ["stats"], ["purge", "--all"]):
            assert await asyncio.to_thread(main, ["cache", *command, "--config", str(config)]) == 0
        out = capsys.readouterr().out
    assert "1 stored, 0 hits" in out
    assert out.endswith("1 removed\n")


async def test_stats_say_how_full_and_how_good_the_caches_are(served: Served, nearhit: Nearhit) -> None:
    for question in ("alpha", "alpha", "beta"):
        await served.chat(question)
    _, out, _ = await nearhit("stats", "--json", admin=served.admin_url)
    figures = json.loads(out)
    assert figures["entries"]["store"] == 2
    assert figures["hit_rate"] == pytest.approx(1 / 3)
    _, out, _ = await nearhit("stats", admin=served.admin_url)
    assert "hit rate  33.3%" in out
    assert "met no route" not in out
    assert (await served.post("/v1/chat/completions", b"no JSON")).status == 400
    _, out, _ = await nearhit("stats", admin=served.admin_url)
    assert "hit rate  33.3%" in out
    assert "miss 3, bypass 0; 1 of the misses matched no route and do not count)" in out


async def test_the_data_port_is_not_taken_for_the_admin_port(
    served: Served, upstream: Upstream, nearhit: Nearhit
) -> None:
    """What it says of a path that is none of its own comes from the backend, in the backend's shape."""

    async def unknown(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": f"no {request.path} here", "code": None}}, status=404)

    upstream.answer = unknown
    code, _, error = await nearhit("stats", admin=served.url)
    assert code == 1
    assert error == (
        f"nearhit: {served.url} answered with status 404 in the format of a model endpoint: "
        "expected the admin port (server.admin), not the data port\n"
    )


async def test_stats_of_a_store_that_does_not_answer_are_said_to_be_old(
    served: Served, nearhit: Nearhit, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.chat("alpha")
    _, out, _ = await nearhit("stats", admin=served.admin_url)
    assert "does not answer" not in out
    with frozen(store_pid(served)), monkeypatch.context() as patched:
        patched.setattr(
            served.gateway.stores.redis._store_client, "_timeout_s", 0.1
        )  # from now on it is waited for in vain
        _, out, _ = await nearhit("stats", "--json", admin=served.admin_url)
        figures = json.loads(out)
        assert (figures["store_answers"], figures["entries"]["store"]) == (False, 1)
        _, out, _ = await nearhit("stats", admin=served.admin_url)
        assert "the store does not answer: these are the last known figures\n" in out


async def test_what_was_exported_is_served_by_the_gateway_that_imports_it(
    upstream: Upstream, tmp_path: Path, nearhit: Nearhit, outside_store: OutsideServer
) -> None:
    """Exactly and by similarity, as old as it was, also after all was removed; a second import changes nothing."""
    file = tmp_path / "answers.jsonl"
    async with gateway_of(config_for(tmp_path / "one", upstream), EXACT) as one:
        await one.chat("how do I reset my password", headers={"Cache-Tag": "docs"})
        await one.chat("tell me all about the weather", stream=True)
        await one.chat("bare", headers={"x-app": "plain"})
        code, out, _ = await nearhit("export", "--out", file, admin=one.admin_url)
        assert (code, out) == (0, f"3 entries in {file}\n")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await nearhit("purge", "--all", admin=one.admin_url)
        code, out, _ = await nearhit("import", file, admin=one.admin_url)
        assert (code, out) == (0, "3 imported, 0 already stored, 0 refused, 0 re-embedded\n")
        assert (await one.chat("how do I reset my password")).cache_status.startswith("nearhit; hit; detail=exact")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    asked = {line["question"]: line for line in lines}
    line = asked["how do I reset my password"]
    assert line["answer"] == "upstream answers: how do I reset my password"
    assert (line["route"], line["model"], line["tags"], line["streamed"]) == ("default", "m", ["docs"], False)
    assert asked["tell me all about the weather"]["answer"] == "upstream answers: tell me all about the weather"
    assert asked["bare"]["vector"] is None
    calls = len(upstream.calls)
    store = {"url": outside_store.url}
    async with gateway_of(config_for(tmp_path / "two", upstream, store=store), EXACT) as two:
        await until(lambda: two.gateway.recovery.ready)
        assert (await nearhit("import", file, admin=two.admin_url))[0] == 0
        hit = await two.chat("how do I reset my password")
        assert hit.cache_status.startswith("nearhit; hit; detail=exact")
        assert (await two.chat("how do I reset my password please")).cache_status.endswith("detail=semantic")
        stream = await two.chat("tell me all about the weather", stream=True)
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert (await two.chat("bare", headers={"x-app": "plain"})).cache_status.startswith("nearhit; hit")
        assert len(upstream.calls) == calls
        _, out, _ = await nearhit("import", file, admin=two.admin_url)
        assert out.startswith("0 imported, 3 already stored")
        (entry,) = await entries(two, "tag=docs")
        assert entry["age_s"] > 0


async def entries(served: Served, query: str) -> list[dict[str, Any]]:
    async with served.session.get(f"{served.admin_url}/admin/cache/entries?{query}") as response:
        return list((await response.json())["entries"])


async def test_import_says_which_lines_it_refused_and_why(served: Served, nearhit: Nearhit, tmp_path: Path) -> None:
    await served.chat("alpha")
    file = tmp_path / "answers.jsonl"
    await nearhit("export", "--out", file, admin=served.admin_url)
    await nearhit("purge", "--all", admin=served.admin_url)
    good = json.loads(file.read_text())
    faulty = [
        ("{", "not JSON"),
        ("[]", "expected a JSON object"),
        ({**good, "expires": good["created"] - 1}, "expires: the entry has expired"),
        (
            {**good, "created": good["created"] + 9e6, "expires": good["created"] + 9.1e6},
            "created: expected a time",
        ),
        ({**good, "fingerprint": "xyz"}, "fingerprint"),
        ({**good, "payload": []}, "payload: expected one body"),
        ({**good, "payload": ["{}"]}, "payload: expected a complete, successful answer"),
        ({**good, "payload": ["x" * 2_000_000]}, "payload: expected at most 1048576 bytes"),
        ({**good, "payload": [{"base64": "!"}]}, "payload: expected base64"),
        ({**good, "dialect": "latin"}, "dialect: expected one of anthropic, "),
        ({**good, "vector": "AAAA"}, "vector: expected 32-bit floats"),
        ({**good, "vector": "AAAAAA=="}, "vector: expected a vector of unit length"),
        ({**good, "extra": 1}, "extra: unknown key"),
        ({**good, "streamed": "no"}, "streamed: expected true or false"),
        ({key: value for key, value in good.items() if key != "scope"}, "'scope' is required"),
        ({**good, "created": float("nan")}, "not JSON"),
        ("x" * 8_000_000, "expected a line of at most"),
    ]
    text = [line if isinstance(line, str) else json.dumps(line) for line, _ in faulty]
    file.write_text("\n".join(["", json.dumps(good), *text, "", ""]))
    code, out, err = await nearhit("import", file, admin=served.admin_url)
    assert code == 1
    assert out.startswith(f"1 imported, 0 already stored, {len(faulty)} refused")
    said = err.splitlines()
    assert len(said) == len(faulty)
    for at, (_, sentence) in enumerate(faulty):
        assert said[at].startswith(f"{file}:{at + 3}: "), said[at]
        assert sentence in said[at]


async def test_questions_are_embedded_anew_where_the_embedder_is_another(
    served: Served, nearhit: Nearhit, tmp_path: Path
) -> None:
    await served.chat("how do I reset my password")
    file = tmp_path / "answers.jsonl"
    await nearhit("export", "--out", file, admin=served.admin_url)
    await nearhit("purge", "--all", admin=served.admin_url)
    line = json.loads(file.read_text())
    vector = np.zeros(7, dtype="<f4")
    vector[0] = 1.0
    line |= {"embedder": "of another kind", "vector": base64.b64encode(vector.tobytes()).decode()}
    file.write_text(json.dumps(line))
    assert json.loads((await nearhit("import", file, "--json", admin=served.admin_url))[1])["embedded"] == 1
    assert (await served.chat("how do I reset my password please")).cache_status.endswith("detail=semantic")


async def test_a_chat_export_is_a_data_set_to_train_with(served: Served, nearhit: Nearhit) -> None:
    await served.chat("alpha")
    await served.post("/v1/embeddings", {"model": "m", "input": "alpha"})
    code, out, _ = await nearhit("export", "--format", "chat", admin=served.admin_url)
    assert code == 0
    (line,) = out.splitlines()
    assert json.loads(line) == {
        "messages": [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": "upstream answers: alpha"}]
    }


async def test_an_export_that_breaks_off_is_no_file(
    served: Served, nearhit: Nearhit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for question in ("alpha", "beta"):
        await served.chat(question)
    stored = served.gateway.removal.stored

    async def breaking(conditions: Any) -> AsyncIterator[Any]:
        async for each in stored(conditions):
            yield each
            raise StoreUnavailable("the store failed")

    monkeypatch.setattr(served.gateway.removal, "stored", breaking)
    code, _, err = await nearhit("export", "--out", tmp_path / "answers.jsonl", admin=served.admin_url)
    assert code == 1
    assert "the connection to the gateway" in err
    assert list(tmp_path.glob("answers*")) == []


async def test_warming_stores_what_is_asked_and_says_what_came_of_it(
    served: Served, nearhit: Nearhit, tmp_path: Path, upstream: Upstream
) -> None:
    async def sometimes(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        content = call["messages"][0]["content"]
        if content == "bad":
            return web.json_response({"error": {"message": "no"}}, status=400)
        return web.json_response(
            completion(call, "cut" if content == "cut" else "x", "length" if content == "cut" else "stop")
        )

    upstream.answer = sometimes
    body = {"model": "big", "stream": False, "messages": [{"role": "user", "content": "whole body"}]}
    prompts = ["alpha", "alpha", "bad", "cut", body]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, prompts)) + "\n\n")
    arguments = ("warm", file, "--rate", "500/s", "--url", served.url, "--concurrency", "1")
    code, out, err = await nearhit(*arguments, admin=served.admin_url)
    assert code == 1
    assert out == "2 stored, 1 hits, 1 not stored, 1 failed (first failure: status 400)\n"
    assert err == ""
    assert {call.json["model"] for call in upstream.chats} == {"default", "big"}
    assert (await served.chat("alpha", model="default")).cache_status.startswith("nearhit; hit; detail=exact")


async def test_warming_keeps_to_its_rate_and_to_its_bound(
    served: Served, tmp_path: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(f"prompt {i}") for i in range(12)))
    waits: list[float] = []

    async def noted(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    # Its own clock and sleep, which stand still: what else runs in this process has those there are.
    monkeypatch.setattr(warming, "time", SimpleNamespace(monotonic=FakeClock().monotonic))
    monkeypatch.setattr(warming, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": noted}))
    upstream.gate.clear()
    plan = warming.WarmingPlan(file, served.url, "m", 2.0, 3, {})
    work = asyncio.create_task(warming.warm(plan, 12, lambda *_: None))
    await until(lambda: len(upstream.calls) == 3 and len(waits) == 4)
    upstream.gate.set()
    summary = await work
    assert summary.stored == 12
    assert waits == [i / 2.0 for i in range(12)]


async def test_prompts_that_are_none_are_named_before_anything_is_sent(
    served: Served, nearhit: Nearhit, tmp_path: Path, upstream: Upstream
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"fine"\n\n{"messages": "x"}\nplain text\n""\n')
    code, _, err = await nearhit("warm", file, "--url", served.url)
    assert code == 1
    assert [line.removeprefix("nearhit: ").partition(": ")[0] for line in err.splitlines()] == [
        f"{file}:{line}" for line in (3, 4, 5)
    ]
    assert upstream.calls == []
    file.write_text('"fine"')
    code, _, err = await nearhit("warm", file, "--url", "http://127.0.0.1:9")
    assert (code, "no gateway answers at http://127.0.0.1:9" in err) == (1, True)


@pytest.mark.parametrize("text", ["0", "5/d", "-1/s", "fast", "5 / s", ""])
def test_a_rate_has_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["cache", "warm", "x", "--rate", text])
    assert exit_.value.code == 2
    assert [warming.parse_rate(given) for given in ("5/s", "30/m", "5", "0.5/s")] == [5.0, 0.5, 5.0, 0.5]


def test_every_command_takes_config_and_json() -> None:
    for command in ("stats", "purge", "export", "import", "warm"):
        with pytest.raises(SystemExit) as exit_:
            main(["cache", command, "--config", "x", "--json", "--admin", "x", "--help"])
        assert exit_.value.code == 0
    assert main([]) == 2
