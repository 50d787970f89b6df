"""Two gateways as the compose file has them: its files as they are, a real HAProxy, a real Valkey, without Docker."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.deploy.test_deploy import DEPLOY, SECRETS
from tests.fixtures.debian import program
from tests.fixtures.processes import Process, served_by_process
from tests.fixtures.stores import OutsideServer
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream, serving

CONFIG = DEPLOY / "haproxy" / "haproxy.cfg"
QUESTION = {"model": "demo", "messages": [{"role": "user", "content": "What is a load balancer?"}]}


def configured(directory: Path, port: int, gateways: list[str]) -> Path:
    """The file of `deploy/`, with addresses of this test."""
    text = CONFIG.read_text().replace("bind :8080", f"bind 127.0.0.1:{port}")
    for number, address in enumerate(gateways, start=1):
        assert f" gateway-{number}:8080" in text
        text = text.replace(f" gateway-{number}:8080", f" {address}")
    file = directory / "haproxy.cfg"
    file.write_text(text)
    return file


def test_haproxy_finds_no_fault(tmp_path: Path) -> None:
    haproxy = program("haproxy", "haproxy")
    file = configured(tmp_path, 8080, ["127.0.0.1:1", "127.0.0.1:2"])
    done = subprocess.run([haproxy, "-c", "-f", file], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


@asynccontextmanager
async def balancer(directory: Path, gateways: list[str]) -> AsyncIterator[str]:
    """HAProxy before `gateways`; yields its base URL once it listens."""
    haproxy, (port,) = program("haproxy", "haproxy"), free_ports(1)
    command = [haproxy, "-db", "-f", str(configured(directory, port, gateways))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(120):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def _listens(port: int) -> bool:
    with suppress(ConnectionRefusedError):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        return True
    return False


@asynccontextmanager
async def gateway(
    name: str, directory: Path, store: OutsideServer, upstream: Upstream, environ: pytest.MonkeyPatch
) -> AsyncIterator[Process]:
    """With the files of `deploy/`: what differs is where things are, and whose models answer."""
    settings = {
        **SECRETS,
        "HOME": str(directory / "home"),
        "NEARHIT_SERVER__LISTEN": "127.0.0.1:0",
        "NEARHIT_SERVER__ADMIN": "127.0.0.1:0",
        "NEARHIT_SERVER__DRAIN_TIMEOUT": "5s",
        "NEARHIT_DATA_DIR": str(directory / name),
        "NEARHIT_STORE__URL": store.url,
        "NEARHIT_STORE__TIMEOUT": "5s",
    }
    for backend in ("LIGHT", "LARGE"):
        settings[f"NEARHIT_BACKENDS__{backend}__ADAPTER"] = "openai"
        settings[f"NEARHIT_BACKENDS__{backend}__URL"] = upstream.url
    for key, value in settings.items():
        environ.setenv(key, value)
    async with served_by_process(DEPLOY / "config.yaml") as process:
        yield process


async def test_two_gateways_share_what_they_know_and_one_may_go(
    tmp_path: Path, outside_store: OutsideServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    program("haproxy", "haproxy")  # skips before anything is started
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(serving(Upstream()))
        both = [
            await stack.enter_async_context(gateway(name, tmp_path, outside_store, upstream, monkeypatch))
            for name in ("gateway-1", "gateway-2")
        ]
        addresses = [process.url.removeprefix("http://") for process in both]
        url = await stack.enter_async_context(balancer(tmp_path, addresses))
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        )

        async def ask() -> tuple[int, str]:
            async with session.post(f"{url}/v1/chat/completions", json=QUESTION) as response:
                await response.read()
                return response.status, response.headers.get("Cache-Status", "")

        said = [await ask() for _ in range(8)]
        assert {status for status, _ in said} == {200}
        assert "fwd=miss" in said[0][1]
        assert all("hit" in cached for _, cached in said[1:]), said
        assert len(upstream.calls) == 1  # of whichever gateway was asked first
        ended = False

        async def keep_asking() -> list[int]:
            statuses = []
            while not ended:
                statuses.append((await ask())[0])
            return statuses

        asking = [asyncio.create_task(keep_asking()) for _ in range(4)]
        both[1].process.terminate()
        await both[1].process.wait()
        statuses = [(await ask())[0] for _ in range(8)]
        ended = True
        statuses += [status for task in asking for status in await task]
        assert set(statuses) == {200}
        assert both[1].process.returncode == 0
        assert not (tmp_path / "home").exists()  # where libraries keep what they tell their makers
