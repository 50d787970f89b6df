"""`nearhit policy` as an operator meets it, against a gateway that runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from tests.admin.test_policy import CHANGED, DEFAULT, SUPPORT, WRONG, config_in, serving
from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream

Nearhit = Callable[..., Coroutine[Any, Any, tuple[int, str, str]]]


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(config_in(tmp_path, upstream)) as served:
        yield served


@pytest.fixture
def nearhit(served: Served, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Nearhit:
    """`nearhit policy ...` in a thread of its own -> exit code, standard output, standard error."""

    async def run(*arguments: object) -> tuple[int, str, str]:
        where = ["--config", str(tmp_path / "none.yaml"), "--admin", served.admin_url]
        code = await asyncio.to_thread(main, ["policy", *map(str, arguments), *where])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "new").mkdir()
    return tmp_path / "new" / "default.yaml"


async def test_a_change_is_tried_applied_listed_compared_and_taken_back(nearhit: Nearhit, file: Path) -> None:
    file.write_text(CHANGED)
    code, out, _ = await nearhit("validate", file)
    assert (code, "-  - {name: default" in out, "no faults: this would be policy" in out) == (0, True, True)
    code, out, _ = await nearhit("apply", file, "--author", "alice", "--comment", "a trial")
    assert (code, "is in force; it replaces" in out) == (0, True)
    code, out, _ = await nearhit("show")
    assert (code, CHANGED in out) == (0, True)
    code, out, _ = await nearhit("history")
    first, second = out.splitlines()
    assert (first.endswith("alice (api)  a trial"), second.endswith("file (file)")) == (True, True)
    _, last, _ = await nearhit("diff")
    assert last == (await nearhit("diff", "1", "2"))[1]
    assert "+  - {name: changed" in last
    assert "+  - {name: default" in (await nearhit("diff", "2", "1"))[1]
    code, out, _ = await nearhit("rollback", "1", "--author", "bob")
    assert (code, "is in force; it replaces" in out) == (0, True)
    assert "no change: policy" in (await nearhit("rollback", "1"))[1]
    assert DEFAULT in (await nearhit("show"))[1]


async def test_a_file_may_have_another_name_there(nearhit: Nearhit, file: Path, tmp_path: Path) -> None:
    file.write_text(SUPPORT)
    assert (await nearhit("apply", file, "--as", "support.yaml"))[0] == 0
    assert (tmp_path / "policies" / "support.yaml").read_text() == SUPPORT


async def test_a_file_with_faults_that_would_be_one_more_is_said_to_be_so(nearhit: Nearhit, file: Path) -> None:
    other = file.with_name("new.yaml")
    other.write_text(DEFAULT)
    code, _, err = await nearhit("apply", other)
    assert code == 1
    assert err == (
        "new.yaml would be a new file next to default.yaml: --as default.yaml would replace that one instead\n"
    )
    assert (await nearhit("apply", other, "--as", "default.yaml"))[::2] == (0, "")


@pytest.mark.parametrize("command", ["validate", "apply"])
async def test_faults_are_listed_with_their_lines_and_exit_code_1(nearhit: Nearhit, file: Path, command: str) -> None:
    file.write_text(WRONG)
    code, out, _ = await nearhit(command, file)
    assert code == 1
    assert "default.yaml:3: routes[0].route.backend: unknown backend 'mian'" in out
    code, out, _ = await nearhit(command, file, "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


async def test_what_is_wrong_is_one_sentence_and_an_exit_code(nearhit: Nearhit, file: Path) -> None:
    file.write_text(CHANGED)
    code, _, err = await nearhit("apply", file, "--if-match", "0123456789ab")
    assert (code, "not '0123456789ab': expected its hash" in err) == (1, True)
    assert (await nearhit("apply", file.parent / "gone.yaml"))[0] == 1
    assert (await nearhit("diff", "99"))[2].startswith("nearhit: no version is '99'")
    assert (await nearhit("diff", "1", "1", "1"))[0] == 2


def test_without_a_gateway_a_file_is_held_against_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("version: 1\nbackends:\n  main: {adapter: openai, url: https://host/v1}\n")
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(DEFAULT)
    file.write_text(SUPPORT)
    command = ["policy", "validate", str(file), "--offline", "--config", str(config)]
    assert main([*command, "--as", "support.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["routes"] == ["support", "default"]
    assert main(command) == 1, "it is the last file, and has no default"


async def test_check_asks_a_gateway_what_only_it_can_know(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_in(tmp_path, upstream)
    document = DEFAULT.replace("{backend: main}", "{backend: main, latency_budget: 100ms}")
    (config.policies / "default.yaml").write_text(document)
    (tmp_path / "config.yaml").write_text("version: 1\nbackends: {main: {adapter: openai, url: https://host/v1}}\n")
    command = ["check", "--config", str(tmp_path / "config.yaml")]
    async with serving(config) as served:
        for _ in range(20):
            served.gateway.parts.telemetry.backend_seconds.observe(1.0, "main")
        code = await asyncio.to_thread(main, [*command, "--admin", served.admin_url, "--json"])
    (warning,) = json.loads(capsys.readouterr().out)["warnings"]
    assert (code, warning["line"]) == (0, 3)
    assert "route 'default': no answer of main has come within 0.1 s" in warning["message"]
    assert main(command) == 0
    assert "warning" not in capsys.readouterr().out
