"""The embedded store as a process: two never share a folder, whatever became of the gateway that started the first."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from redis import Redis

from gateway.adapters import embedded_valkey
from gateway.adapters.child import ChildFailed
from gateway.adapters.embedded_valkey import EmbeddedValkey


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
    monkeypatch.setattr(embedded_valkey, "LINGER_S", 0.05)
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
        path.parent.rmdir()
