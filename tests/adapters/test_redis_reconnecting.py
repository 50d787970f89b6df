"""The connection that commands share, on real sockets: before real servers and a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import hiredis
import pytest
from redis.asyncio.connection import DefaultParser

from gateway.adapters.redis import connection as reconnecting
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store_client import Script, StoreClient
from gateway.adapters.system.clock import SystemClock
from gateway.circuit_breaker import BreakerState
from gateway.errors import StoreUnavailable
from tests.fixtures.clock import FakeClock
from tests.fixtures.stores import OutsideServer, outside_server
from tests.fixtures.triton import free_ports
from tests.fixtures.waiting import until

PATIENCE_S = 60.0
SHORT_S = 0.05


@dataclass
class Scripted:
    """A server on a unix socket that answers each command with what `says` makes of it; signing in it always grants."""

    url: str
    says: Callable[[list[bytes]], bytes | None]
    commands: list[list[bytes]] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        parser = hiredis.Reader()
        while data := await reader.read(65_536):
            parser.feed(data)
            while (command := parser.gets()) is not False:
                if command[0] in (b"CLIENT", b"SELECT", b"AUTH"):
                    writer.write(b"+OK\r\n")
                    continue
                self.commands.append(command)
                reply = self.says(command)
                if reply is not None:
                    writer.write(reply)
        writer.close()

    def hang_up(self) -> None:
        for writer in self.writers:
            writer.close()
        self.writers.clear()


@asynccontextmanager
async def scripted(path: Path, says: Callable[[list[bytes]], bytes | None]) -> AsyncIterator[Scripted]:
    it = Scripted(f"unix://{path}/s", says)
    server = await asyncio.start_unix_server(it.serve, path / "s")
    try:
        yield it
    finally:
        server.close()
        it.hang_up()
        await asyncio.sleep(0)


@asynccontextmanager
async def guard_of(
    url: str, timeout_s: float = PATIENCE_S, clock: FakeClock | None = None
) -> AsyncIterator[StoreClient]:
    guard = StoreClient(connect(url, PATIENCE_S), timeout_s, clock or SystemClock())
    try:
        yield guard
    finally:
        await guard.close()


def echo(command: list[bytes]) -> bytes:
    return b"$%d\r\n%s\r\n" % (len(command[-1]), command[-1])


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(StoreUnavailable) as error:
        await asked
    return str(error.value)


async def test_redis_py_hands_over_its_connection_with_all_that_it_signed_in_for(
    outside_store: OutsideServer,
) -> None:
    """Password and database; TLS is in the contract suites, sentinels in tests/faults/test_store_failover.py."""
    async with guard_of(outside_store.url.removesuffix("/0") + "/5") as guard:
        await guard.send("SET", "here", "x")
        assert (await guard.send("CLIENT", "INFO")).count(b"db=5 ") == 1
    assert outside_store.client.get("here") is None


async def test_many_at_once_share_one_connection(outside_store: OutsideServer) -> None:
    async with guard_of(outside_store.url) as guard:
        before = int(outside_store.client.info("stats")["total_connections_received"])
        said = await asyncio.gather(*(guard.send("ECHO", f"{number}") for number in range(2_000)))
        assert said == [b"%d" % number for number in range(2_000)]
        assert int(outside_store.client.info("stats")["total_connections_received"]) == before + 1


async def test_a_server_that_is_killed_amid_its_replies_fails_who_waits_and_the_next_one_is_asked(
    tmp_path: Path,
) -> None:
    (port,) = free_ports(1)
    clock = FakeClock()
    with outside_server(tmp_path, port=port) as first:
        async with guard_of(first.url, clock=clock) as guard:
            await guard.send("SET", "large", b"x" * 2**20)
            asked = [asyncio.create_task(guard.send("GET", "large")) for _ in range(50)]
            await asyncio.wait([asked[0]])
            first.kill()
            said = await asyncio.gather(*asked, return_exceptions=True)
            whole = [reply for reply in said if isinstance(reply, bytes)]
            assert all(len(reply) == 2**20 for reply in whole)
            assert all(isinstance(reply, bytes | StoreUnavailable) for reply in said)
            clock.advance(1.1)  # the breaker's cooldown
            with outside_server(tmp_path, port=port):
                assert await guard.send("ECHO", "back") == b"back"
                assert guard.breaker is BreakerState.CLOSED


async def test_a_connection_that_the_server_closes_is_opened_anew(tmp_path: Path) -> None:
    async with scripted(tmp_path, echo) as server, guard_of(server.url) as guard:
        assert await guard.send("ECHO", "1") == b"1"
        server.hang_up()
        line = guard._connection
        assert line is not None
        await until(lambda: line._exchange is None)
        assert await guard.send("ECHO", "2") == b"2"


async def test_a_server_that_hangs_costs_the_time_limit_and_then_the_connection(tmp_path: Path) -> None:
    async with scripted(tmp_path, echo) as server, guard_of(server.url, SHORT_S) as guard:
        assert await guard.send("ECHO", "a", timeout_s=PATIENCE_S) == b"a"
        server.says = lambda _: None
        assert "TimeoutError" in await refused(guard.send("GET", "a"))
        server.says = echo
        assert await guard.send("ECHO", "b", timeout_s=PATIENCE_S) == b"b"
        assert len(server.writers) == 2, "the first connection was given up"


async def test_a_server_that_takes_connections_and_never_answers_fails_who_asks_within_its_time(tmp_path: Path) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(silent, tmp_path / "s")
    async with guard_of(f"unix://{tmp_path}/s", SHORT_S) as guard:
        for _ in range(3):
            assert "TimeoutError" in await refused(guard.send("GET", "a"))
    server.close()


@pytest.mark.parametrize(
    ("reply", "said", "lives"),
    [
        (b"-NOAUTH Authentication required.\r\n", "the store failed: AuthenticationError", False),
        (b"-LOADING the dataset\r\n", "the store failed: BusyLoadingError", False),
        (b"-MOVED 7 10.0.0.1:6379\r\n", "the store refused: ", True),
        (b"-OOM command not allowed\r\n", "the store refused: command not allowed", True),
        (b"-WRONGTYPE Operation\r\n", "the store refused: ", True),
        (b"nonsense\r\n", "the store failed: InvalidResponse", False),
    ],
)
async def test_what_a_server_says_is_told_as_redis_py_would(
    tmp_path: Path, reply: bytes, said: str, lives: bool
) -> None:
    """A server that answers is no reason to open the breaker."""
    async with scripted(tmp_path, lambda _: reply) as server, guard_of(server.url, clock=FakeClock()) as guard:
        for _ in range(6):
            assert said in await refused(guard.send("GET", "a"))
            if guard.breaker is BreakerState.OPEN:
                break
        assert (guard.breaker is BreakerState.CLOSED) is lives
        assert len(server.writers) == (1 if lives else 5)


async def test_a_script_that_the_server_does_not_know_is_sent_once(tmp_path: Path) -> None:
    script = Script("return {KEYS[1], ARGV[1], ARGV[2]}")
    server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
    async with guard_of(server.url) as guard:
        for _ in range(2):
            assert await guard.run(script, ["k"], [b"\x00\xff", 7]) == [b"k", b"\x00\xff", b"7"]
        stats = (await guard.send("INFO", "commandstats")).decode()
        assert "cmdstat_eval:calls=1," in stats
        assert "cmdstat_evalsha:calls=2," in stats
    await server.stop()


async def test_a_task_that_is_cancelled_while_the_connection_opens_leaves_the_others(tmp_path: Path) -> None:
    async with scripted(tmp_path, echo) as server, guard_of(server.url) as guard:
        leaves, stays = (asyncio.create_task(guard.send("ECHO", name)) for name in ("leaves", "stays"))
        await asyncio.sleep(0)
        leaves.cancel()
        assert await stays == b"stays"


async def test_closing_lets_what_was_asked_be_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting, "CLOSE_S", PATIENCE_S)
    async with scripted(tmp_path, echo) as server:
        guard = StoreClient(connect(server.url, PATIENCE_S), PATIENCE_S, SystemClock())
        asked = [asyncio.create_task(guard.send("ECHO", f"{number}")) for number in range(20)]
        await asyncio.sleep(0)
        await guard.close()
        assert await asyncio.gather(*asked) == [b"%d" % number for number in range(20)]
        assert "ConnectionError" in await refused(guard.send("ECHO", "late"))


def test_errors_are_made_by_redis_py() -> None:
    """Of a class that its own package does not name in public."""
    assert str(DefaultParser.parse_error("ERR x")) == "x"
