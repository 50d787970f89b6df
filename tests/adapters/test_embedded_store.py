"""The embedded store as a process: two never share a folder, whatever became of the gateway that started the first."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from redis import Redis

from gateway.adapters.redis import embedded_valkey
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey, LoadingProbe, wait_until_loaded
from gateway.adapters.system.child_process import ChildFailed, ChildProcess


def closed_to_others(path: Path) -> bool:
    return path.stat().st_mode & 0o077 == 0


async def test_a_store_waits_for_its_predecessor_to_end(tmp_path: Path) -> None:
    """The predecessor ends after the gateway that was killed: it would take the socket of its successor with it."""
    old = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    with Redis.from_url(old.url) as client:
        client.set("a", 1)
    os.kill(old.pid, signal.SIGTERM)
    new = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    try:
        await old.stop()
        with Redis.from_url(new.url) as client:  # a new connection: it needs the socket's name
            assert client.get("a") == b"1"
    finally:
        await new.stop()


async def test_a_store_that_does_not_end_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_valkey, "LOCK_TIMEOUT_S", 0.05)
    old = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    try:
        with pytest.raises(ChildFailed, match="of another gateway still runs"):
            await EmbeddedValkey.start(tmp_path, max_memory=2**26)
        with Redis.from_url(old.url) as client:
            assert client.ping()
    finally:
        await old.stop()


async def test_the_socket_is_its_owners_alone(tmp_path: Path) -> None:
    server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    try:
        path = Path(server.url.removeprefix("unix://"))
        assert closed_to_others(path)
        assert closed_to_others(path.parent)
    finally:
        await server.stop()


async def test_a_data_directory_with_a_long_name_gets_its_socket_elsewhere(tmp_path: Path) -> None:
    """A socket's path holds some hundred bytes; a checkout in a deep folder must work all the same."""
    deep = tmp_path / ("d" * 120)
    server = await EmbeddedValkey.start(deep, max_memory=2**26)
    try:
        path = Path(server.url.removeprefix("unix://"))
        assert len(str(path)) <= embedded_valkey.SOCKET_PATH_MAX
        assert closed_to_others(path.parent)
        with Redis.from_url(server.url) as client:
            assert client.ping()
    finally:
        await server.stop()
    assert not path.parent.exists()


class Loading:
    """What a server says that reads its file: each time it is asked how far it is, `step` bytes further."""

    def __init__(self, size: int, step: int) -> None:
        self._size = size
        self._step = step
        self._read = 0
        self.asked = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over = self._read >= self._size
        if (await reader.readline()).startswith(b"PING"):
            writer.write(b"+PONG\r\n" if over else b"-LOADING Valkey is loading the dataset in memory\r\n")
        elif over:  # its PONG came too late
            writer.write(b"# Persistence\r\nloading:0\r\n")
        else:
            self.asked += 1
            self._read += self._step
            percent = 100 * self._read / self._size
            told = f"loading_total_bytes:{self._size}\r\nloading_loaded_bytes:{self._read}\r\n"
            writer.write(f"# Persistence\r\nloading:1\r\n{told}loading_loaded_perc:{percent:.2f}\r\n".encode())
        writer.close()


@pytest.mark.parametrize(("step", "asked"), [(400, 3), (0, 1)])
async def test_a_store_that_reads_its_file_is_waited_for_as_long_as_it_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: int, asked: int
) -> None:
    monkeypatch.setattr(embedded_valkey, "QUERY_TIMEOUT_S", 60.0)
    child = await ChildProcess.start(
        "toy", [sys.executable, "-c", "import time; time.sleep(600)"], log=tmp_path / "toy.log"
    )
    loading, path = Loading(1000, step), tmp_path / "s"
    server = await asyncio.start_unix_server(loading, path)
    try:
        with caplog.at_level(logging.INFO, "nearhit"):
            if step:
                await wait_until_loaded(child, LoadingProbe(path), 0.01)
            else:
                with pytest.raises(ChildFailed, match=r"toy was not ready within 0\.01 s"):
                    await wait_until_loaded(child, LoadingProbe(path), 0.01)
        assert loading.asked == asked
        assert [each.fields["percent"] for each in caplog.records if hasattr(each, "fields")] == [40.0, 80.0, 120.0][
            : asked if step else 0
        ]
    finally:
        server.close()
        await child.stop()


async def test_how_far_a_store_is_can_be_read_from_a_real_one(tmp_path: Path) -> None:
    server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    try:
        reading = LoadingProbe(Path(server.url.removeprefix("unix://")))
        assert await reading.is_answering()
        assert await reading.is_progressing(), "it is done"
    finally:
        await server.stop()
