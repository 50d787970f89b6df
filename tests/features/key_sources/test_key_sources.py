"""Backends whose key comes from a file or from a command: what reaches them, and what a failure says."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSServerHandshakeError, web

from gateway.cli.doctor.network import inspect_backends
from gateway.config.load import read_config
from gateway.features.key_sources import command
from gateway.features.key_sources.command import Command
from gateway.upstream.http1.errors import NoCredentials
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import NO_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

CLIENT = {"Authorization": "Bearer of-the-client", "api-key": "of-the-client", "x-api-key": "of-the-client"}


@asynccontextmanager
async def keyed(upstream: Upstream, folder: Path, **keys: Any) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": "openai", "url": upstream.url, **keys}}
    async with gateway_of(config_of(folder / "data", backends), NO_CACHE) as served:
        yield served


def accepting(upstream: Upstream, *keys: str) -> None:
    """Let the endpoint refuse all other keys."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in keys:
            return web.json_response({"error": {"message": "bad key", "code": "invalid_api_key"}}, status=401)
        return await upstream._default(request, json.dumps(call).encode())

    upstream.answer = answer


def printing(folder: Path, *, counter: str = "runs") -> list[str]:
    """Return a command that prints the content of `key`, and counts its runs."""
    script = folder / "helper.py"
    script.write_text(
        f"import pathlib\nf = pathlib.Path({str(folder)!r})\n"
        f"(f / {counter!r}).open('a').write('x')\nprint((f / 'key').read_text())\n"
    )
    return [sys.executable, "-S", str(script)]


async def test_the_next_request_after_a_key_file_is_replaced_has_the_new_key(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Kubernetes does: the path leads through a link that is renamed."""
    for version in ("one", "two"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "key").write_text(f"sk-{version}\n")
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "key").symlink_to("..data/key")
    async with keyed(upstream, tmp_path, api_key_file=str(tmp_path / "key")) as served:
        assert (await served.chat("a", headers=CLIENT)).status == 200
        (tmp_path / "..new").symlink_to("two")
        (tmp_path / "..new").rename(tmp_path / "..data")
        assert (await served.chat("b", headers=CLIENT)).status == 200
        listed = await served.get("/v1/models", CLIENT)
        (tmp_path / "..data").unlink()  # what has served goes on
        assert (await served.chat("c", headers=CLIENT)).status == 200
    assert listed.status == 200
    sent = [call.headers.get("Authorization") for call in upstream.calls]
    assert sent == ["Bearer sk-one", "Bearer sk-two", "Bearer sk-two", "Bearer sk-two"]
    assert not [call for call in upstream.calls if "of-the-client" in str(call.headers)]
    assert "sk-" not in caplog.text


async def test_a_key_that_a_change_within_the_same_instant_hid_is_found_at_the_401(
    upstream: Upstream, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_text("sk-one")
    accepting(upstream, "sk-one", "sk-two")
    async with keyed(upstream, tmp_path, api_key_file=str(file)) as served:
        await served.chat("a")
        status = file.stat()
        with file.open("r+") as same:
            same.write("sk-two")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        accepting(upstream, "sk-two")
        for stream in (False, True):
            assert (await served.chat(f"b{stream}", stream=stream)).status == 200
    assert len(upstream.calls) == 4


async def test_a_command_runs_once_for_requests_that_wait_and_again_at_a_401(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").write_text("sk-one")
    accepting(upstream, "sk-one")
    async with keyed(upstream, tmp_path, api_key_command=printing(tmp_path)) as served:
        answers = await asyncio.gather(*(served.chat(str(i), headers=CLIENT) for i in range(8)))
        assert {each.status for each in answers} == {200}
        assert (tmp_path / "runs").read_text() == "x"
        (tmp_path / "key").write_text("sk-two")
        accepting(upstream, "sk-two")
        answers = await asyncio.gather(*(served.chat(f"again {i}", stream=bool(i % 2)) for i in range(8)))
        assert {each.status for each in answers} == {200}
        assert (tmp_path / "runs").read_text() == "xx"
        accepting(upstream, "sk-three")
        before = len(upstream.calls)
        for i in range(3):
            assert (await served.chat(f"refused {i}")).status == 401
        assert len(upstream.calls) == before + 3  # the same key is not tried again
        assert (tmp_path / "runs").read_text() == "xxx"
    assert "sk-" not in caplog.text


async def test_an_upload_that_was_refused_is_not_sent_again_and_the_next_one_has_the_new_key(
    upstream: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("sk-one")
    accepting(upstream, "sk-one")
    async with keyed(upstream, tmp_path, api_key_command=printing(tmp_path)) as served:

        async def upload() -> int:
            async def pieces() -> AsyncIterator[bytes]:
                for _ in range(64):
                    yield bytes(8192)

            async with served.session.post(served.url + "/upload", data=pieces()) as response:
                return response.status

        assert await upload() == 200
        (tmp_path / "key").write_text("sk-two")
        accepting(upstream, "sk-two")
        assert await upload() == 401
        assert len(upstream.calls) == 2
        assert await upload() == 200


async def test_a_websocket_that_was_refused_is_opened_with_the_new_key(upstream: Upstream, tmp_path: Path) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        if request.headers["Authorization"] != f"Bearer {accepted}":
            return web.json_response({"error": {"message": "bad key"}}, status=401)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(f"hello {accepted}")
        await socket.close()
        return socket

    upstream.answer = answer
    (tmp_path / "key").write_text("sk-one")
    async with keyed(upstream, tmp_path, api_key_command=printing(tmp_path)) as served:
        for accepted in ("sk-one", "sk-two"):
            (tmp_path / "key").write_text(accepted)
            async with served.session.ws_connect(served.url + "/v1/realtime", headers=CLIENT) as socket:
                assert await socket.receive_str() == f"hello {accepted}"
        accepted = "sk-three"
        with pytest.raises(WSServerHandshakeError) as raised:
            await served.session.ws_connect(served.url + "/v1/realtime", headers=CLIENT)
        assert raised.value.status == 401
    assert len(upstream.calls) == 4
    assert (tmp_path / "runs").read_text() == "xxx"


async def test_a_command_that_fails_is_told_in_the_log_and_reaches_no_endpoint(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9"
    failing = ["sh", "-c", f"echo 'session ended: run login. was {secret}' >&2; exit 3"]
    with caplog.at_level(logging.WARNING):
        async with keyed(upstream, tmp_path, api_key_command=failing) as served:
            answer: Answer = await served.chat("a", headers=CLIENT)
    assert answer.status == 502
    message = answer.json["error"]["message"]
    assert "no credentials for backend 'main': api_key_command: it ended with status 3" in message
    assert "session ended" not in message
    fields = [record.__dict__["fields"] for record in caplog.records if "credentials of a backend" in record.message]
    assert fields[0]["key"] == "backends.main.api_key_command"
    assert fields[0]["detail"] == "session ended: run login. was ***"
    assert secret not in str(fields)
    assert not upstream.calls


async def run(text: str, timeout_s: float = 60.0) -> str:
    source = Command(["sh", "-c", text], FakeClock(), timeout_s)
    return (await source.read()).value


FAILING = {
    "status": ("exit 7", "it ended with status 7"),
    "signal": ("kill -9 $$", "it ended with signal 9"),
    "nothing": ("true", "the text is empty"),
    "too much": ("yes", "it prints more than 65536 bytes"),
    "two lines": ("echo a; echo b", "several lines"),
}


@pytest.mark.parametrize(("text", "why"), FAILING.values(), ids=FAILING)
async def test_a_command_without_a_key_says_why(text: str, why: str) -> None:
    with pytest.raises(NoCredentials, match=why):
        await run(text)


async def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(NoCredentials, match=r"did not end within 0\.5 s") as raised:
        await run(f"echo waiting >&2; sleep 600 & echo $! > {pids}; wait", timeout_s=0.5)
    assert raised.value.detail == "waiting"
    child = int(pids.read_text())
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child}/stat").exists() and " Z " not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_child_that_holds_the_output_open_delays_no_key(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    assert await run(f"echo sk-1; sleep 600 & echo $! > {pids}") == "sk-1"
    os.kill(int(pids.read_text()), 9)


async def test_a_command_gets_no_input_and_much_error_output_stops_nothing() -> None:
    assert await run("cat; i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789 >&2; "
                     "i=$((i+1)); done; echo sk-1") == "sk-1"  # fmt: skip
    assert command.MAX_OUTPUT < 3000 * 41


async def test_what_a_failing_command_printed_is_not_in_its_error_output() -> None:
    with pytest.raises(NoCredentials) as raised:
        await run("set -x; echo horse; false")
    assert "echo" in raised.value.detail
    assert "horse" not in raised.value.detail


FAULTS = {
    "api_key_file: missing.txt": "backends.main.api_key_file: missing.txt: it cannot be read: No such file",
    "api_key_file: empty.txt": "backends.main.api_key_file: empty.txt: the text is empty",
    "api_key_file: .": "backends.main.api_key_file: .: it",
    "api_key_command: [no-such-program, sk-secret]": "backends.main.api_key_command: 'no-such-program' is no program",
    "api_key_command: ./helper": "backends.main.api_key_command: '",
    'api_key_command: "\'sk-secret"': "backends.main.api_key_command: expected a command such as",
    "api_key_command: []": "backends.main.api_key_command: expected a command such as",
    "api_key_command: [1, 2]": "backends.main.api_key_command: expected a command such as",
    "api_key_command: echo sk-1, api_key_file: key.txt": "backends.main.api_key_command: cannot stand next to "
    "'api_key_file', expected only one of the two",
}


@pytest.mark.parametrize(("keys", "sentence"), FAULTS.items(), ids=FAULTS)
def test_check_tells_each_fault_of_a_key_and_no_secret(tmp_path: Path, keys: str, sentence: str) -> None:
    (tmp_path / "key.txt").write_text("sk-1\n")
    (tmp_path / "empty.txt").write_text("\n")
    backend = f"{{adapter: openai, url: https://host/v1, {keys}}}"
    file = tmp_path / "config.yaml"
    file.write_text(f"version: 1\nbackends:\n  main: {backend}\n")
    faults = [f"{'.'.join(map(str, each.path))}: {each.message}" for each in read_config(file, {}).faults]
    assert len(faults) == 1
    assert faults[0].startswith(sentence)
    assert "sk-secret" not in faults[0]


def test_paths_of_keys_are_those_of_the_file_and_each_upstream_may_have_its_own(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("sk-1\n")
    (tmp_path / "helper").write_text("#!/bin/sh\necho sk-2\n")
    (tmp_path / "helper").chmod(0o700)
    upstreams = "[{url: https://a/v1, api_key_file: key.txt}, {url: https://b/v1, api_key_command: ./helper --x}]"
    file = tmp_path / "config.yaml"
    file.write_text(f"version: 1\nbackends:\n  main: {{adapter: openai, upstreams: {upstreams}}}\n")
    read = read_config(file, {})
    assert not read.faults
    assert read.config is not None
    backend: Any = read.config.backends["main"]
    assert backend.has_credentials
    assert backend.upstreams[0].api_key_file == tmp_path / "key.txt"
    assert backend.upstreams[1].api_key_command == (str(tmp_path / "helper"), "--x")


async def test_the_doctor_says_why_a_backend_has_no_credentials(tmp_path: Path) -> None:
    backends = {"main": {"adapter": "openai", "url": "http://127.0.0.1:9/v1", "api_key_command": "false"}}
    (finding,) = await inspect_backends(config_of(tmp_path, backends), {})
    assert "is not called: the gateway has no credentials" in finding.found
    assert "api_key_command: it ended with status 1" in finding.found
