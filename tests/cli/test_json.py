"""What every command has in common: one JSON object on standard output with --json, the result or the error."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from gateway.cli.commands import build_parser
from tests.admin.test_policy import CHANGED, config_in, serving
from tests.fixtures.gateways import Served
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream

# They have no result: they run until they are told to stop, and log JSON lines. `demo` takes a Triton; its object is
# {"played": [...]} or {"triton": PATH} (tests/features/demo).
NOT_APPLICABLE = {"serve", "stub", "demo"}
STREAM = {"cache export"}  # an object a line
# What is asked for is not there, or no folder, or `auth.mode` is not `keys`: they say so, as who finds no gateway does.
FAILING = {
    "jobs show",
    "cache rekey",
    "keys show",
    "keys change",
    "keys expire",
    "keys rotate",
    "keys revoke",
    "simulate",
    "prices refresh",
    "restart",
    "distill",
    "model build",
    "model triton",
}
OFFLINE: dict[str, list[str]] = {
    "check": ["{files}/new.yaml"],
    "import litellm": ["{files}/old.yaml", "--out", "{files}/imported"],
    "import vllm-semantic-router": ["{files}/router.yaml", "--out", "{files}/routed"],
    "explain": ["{files}/request.json"],
    "eval": ["--prompts", "{files}/prompts.jsonl", "--expect", "{files}/expected.txt"],
    "simulate": ["--policy", "{files}/new.yaml"],
    "capacity": ["--rps", "50000", "--hit-rate", "0.4", "--entries", "1e8"],
    "prices show": [],
    "prices list": ["openai"],
    "prices refresh": ["--output", "{files}/prices.json"],
    "doctor": [],
    "restart": [],
    "completion": ["bash"],
    "schema": ["policy"],
    "distill": ["{files}/answers.jsonl"],
    "tune": ["--list"],
    "index migrate": [],
    "model fetch": [],
    "model build": ["{files}/new.yaml"],
    "model triton": ["{files}/new.yaml"],
}
ASKING: dict[str, list[str]] = {
    "cache stats": [],
    "light": ["list"],
    "spend": [],
    "report": [],
    "cache purge": ["--all"],
    "cache erase": ["--subject", "user:alice"],
    "cache rekey": [],
    "cache export": [],
    "cache import": ["{files}/answers.jsonl"],
    "cache warm": ["{files}/prompts.jsonl", "--url", "{url}"],
    "jobs list": [],
    "jobs show": ["none"],
    "jobs retry": ["--all"],
    "jobs drop": ["--all"],
    "keys create": ["ci", "--tenant", "acme"],
    "keys list": [],
    "keys show": ["none"],
    "keys change": ["none", "--name", "other"],
    "keys expire": ["none", "--in", "7d"],
    "keys rotate": ["none"],
    "keys revoke": ["none"],
    "policy show": [],
    "policy validate": ["{files}/new.yaml", "--as", "default.yaml"],
    "policy apply": ["{files}/new.yaml", "--as", "default.yaml"],
    "policy history": [],
    "policy diff": [],
    "policy rollback": ["1"],
    "audit": [],
    "top": ["--once"],
}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "given").mkdir()
    for name, content in {
        "new.yaml": CHANGED,
        "request.json": json.dumps({"model": "m", "messages": [{"role": "user", "content": "Why?"}]}),
        "answers.jsonl": "",
        "old.yaml": "model_list: [{model_name: m, litellm_params: {model: openai/m}}]",
        "router.yaml": 'version: v0.3\nproviders: {models: [{name: m, backend_refs: [{endpoint: "m:8000"}]}]}',
        "prompts.jsonl": '"alpha"\n',
        "expected.txt": "main\n",
    }.items():
        (tmp_path / "given" / name).write_text(content)
    return tmp_path / "given"


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(config_in(tmp_path, upstream)) as served:
        yield served


def called(name: str, given: list[str], **values: object) -> list[str]:
    return [*name.split(), *(part.format(**values) for part in given), "--json"]


def test_every_command_has_a_case_here() -> None:
    runs = {name for name, command in build_parser().walk() if not command.commands}
    assert runs == OFFLINE.keys() | ASKING.keys() | NOT_APPLICABLE


async def test_what_a_gateway_is_asked_is_one_object(
    served: Served, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await served.chat("alpha")
    for name, given in ASKING.items():
        arguments = called(name, given, files=files, url=served.url)
        where = ["--admin", served.admin_url, "--config", str(files / "none.yaml")]
        code = await asyncio.to_thread(main, [*arguments, *where])
        said = capsys.readouterr()
        lines = [json.loads(line) for line in said.out.splitlines()]
        assert all(isinstance(line, dict) for line in lines), name
        assert len(lines) == 1 or name in STREAM, name
        assert (code, set(lines[-1])) == (1, {"error"}) if name in FAILING else code == 0, (name, lines)


@pytest.mark.parametrize("name", OFFLINE)
def test_what_is_said_without_a_gateway_is_one_object(
    name: str, files: Path, upstream_config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*called(name, OFFLINE[name], files=files), *(["--config", str(upstream_config)])])
    assert isinstance(json.loads(capsys.readouterr().out), dict)
    assert code == (1 if name == "doctor" or name in FAILING else 0)  # the doctor finds that no endpoint listens


@pytest.fixture
def upstream_config(tmp_path: Path) -> Path:
    document: dict[str, Any] = {
        "version": 1,
        "server": {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0"},
        "embedder": {"adapter": "hash"},
        "backends": {"main": {"adapter": "openai", "url": f"http://127.0.0.1:{free_ports(1)[0]}/v1"}},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(document))  # JSON is YAML
    (tmp_path / "policies").mkdir(exist_ok=True)
    (tmp_path / "policies" / "default.yaml").write_text(CHANGED)
    return tmp_path / "config.yaml"


def test_without_a_gateway_each_says_so_as_a_sentence_an_object_and_exit_code_1(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"http://127.0.0.1:{free_ports(1)[0]}"
    for name, given in ASKING.items():
        where = ["--admin", url, "--config", str(files / "none.yaml")]
        assert main([*called(name, given, files=files, url=url), *where]) == 1, name
        said = capsys.readouterr()
        assert said.err.startswith(f"nearhit: no gateway answers at {url}"), name
        assert json.loads(said.out) == {"error": said.err.removeprefix("nearhit: ").rstrip("\n")}, name


def test_faults_of_the_configuration_are_in_the_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.yaml").write_text("version: 1\nbackend: {}\n")
    assert main(["cache", "stats", "--json", "--config", str(tmp_path / "config.yaml")]) == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [(fault["line"], fault["path"]) for fault in faults if "unknown key" in fault["message"]] == [(2, "backend")]


def test_what_does_not_go_together_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["cache", "purge"], ["jobs", "retry"], ["explain"]):
        assert main([*arguments, "--json"]) == 2
        said = capsys.readouterr()
        assert (json.loads(said.out).keys(), said.err.count("\n")) == ({"error"}, 1)
