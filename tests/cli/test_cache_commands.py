"""`nearhit cache` as an operator meets it, against a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.__main__ import main
from gateway.cli import cache as cache_commands
from tests.admin.test_admin_port import TOKEN
from tests.fixtures.cache_commands import Nearhit, config_for
from tests.fixtures.cache_commands import _nothing_takes_long as _nothing_takes_long  # fixtures
from tests.fixtures.cache_commands import nearhit as nearhit
from tests.fixtures.cache_commands import served as served
from tests.fixtures.gateways import Served, gateway_of, store_pid
from tests.fixtures.stores import frozen
from tests.fixtures.upstream import Upstream


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


def test_every_command_takes_config_and_json() -> None:
    for command in ("stats", "purge", "export", "import", "warm"):
        with pytest.raises(SystemExit) as exit_:
            main(["cache", command, "--config", "x", "--json", "--admin", "x", "--help"])
        assert exit_.value.code == 0
    assert main([]) == 2
