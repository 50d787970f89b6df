"""Handshakes of any content must not keep others from theirs, and no client may ask for a second one."""

from __future__ import annotations

import asyncio
import random
import ssl
import tempfile
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import trustme

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.slow_handshakes import client_hello
from gauntlet.smuggling import mutate
from gauntlet.target import Bystander, in_parallel, stalls_of, target
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.processes import Process
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.wire import connected
from tests.http_server.test_tls import Files, trusting

AT_ONCE, QUIET_S, SPARE_MB = 16, 0.3, 64
NAME = b"localhost"  # of the hello that is changed; other names have its length
NAMES = (b"elsewhere", b"127.0.0.1", b"a\0b.local", b"\xff" * 9, b"..\\..\\etc", b"*.*.*.*.*", b" " * 9, b"xn--a-ecp")
ALLOWED = frozenset({b"", b"\x15", b"\x16"})  # the connection ends, an alert (RFC 8446, section 6), or a handshake


def records() -> dict[str, bytes]:
    """Return first bytes that no client sends."""
    hello = client_hello()
    return {
        "plain HTTP": b"GET /v1/models HTTP/1.1\r\nHost: g\r\n\r\n",
        "a record of 64 KB": b"\x16\x03\x01\xff\xff" + bytes(65_535),
        "an empty record": b"\x16\x03\x01\0\0" * 1000,
        "an alert": b"\x15\x03\x01\0\x02\x02\x28",
        "a heartbeat (CVE-2014-0160)": b"\x18\x03\x02\0\x03\x01\x40\0",
        "data before the handshake": b"\x17\x03\x03\0\x05hello",
        "SSL 2": b"\x80\x2e\x01\0\x02\0\x15\0\0\0\x10" + bytes(37),
        "the hello twice": hello + hello,
        "half a hello": hello[: len(hello) // 2],
    } | {f"the name {name!r}": hello.replace(NAME, name) for name in NAMES}


async def first_byte(url: str, sent: bytes) -> bytes:
    """Return the type of the first record that comes back; empty if the connection ends or stays quiet."""
    async with connected(url) as wire:
        first = b""
        with suppress(ConnectionError, TimeoutError):
            wire.writer.write(sent)
            first = await asyncio.wait_for(wire.reader.read(1), QUIET_S)
        wire.writer.transport.abort()
    return first


async def renegotiates(it: Process) -> bool:
    """Return whether a client of TLS 1.2 gets another handshake in its connection. Raise `ValueError` if unknown."""
    client = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-tls1_2", "-connect", it.url.removeprefix("https://")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await client.communicate(b"R\n")
    after = said.partition(b"RENEGOTIATING")[2]
    if b"no renegotiation" in after:
        return False
    if b"verify return" in after:
        return True
    raise ValueError(f"expected the end of a renegotiation, got {said[-300:]!r}")


async def status_for_name(it: Process, trusted: ssl.SSLContext, name: str) -> int:
    """Return the status of a request over a connection for that server name; 0: the handshake was refused."""
    trusted.check_hostname = False
    try:
        async with it.session.get(it.url + "/healthz", ssl=trusted, server_hostname=name) as answer:
            return answer.status
    except (aiohttp.ClientError, ValueError):  # a name that Python's ssl does not send either
        return 0


async def run(quick: bool) -> Finding:
    """Send odd names, records and mutated hellos to the data port and to the gRPC port, and ask as another tenant."""
    mutations, draw, authority = 300 if quick else 6_000, random.Random(13), trustme.CA()
    odd, grpc = list[str](), f"127.0.0.1:{free_ports(1)[0]}"
    with tempfile.TemporaryDirectory() as folder:
        tls = Files(Path(folder), authority).section
        async with (
            serving(Upstream()) as upstream,
            target(upstream.url, NO_CACHE, server={"tls": tls, "grpc": grpc}) as it,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(authority), force_close=True)) as session,
            AsyncExitStack() as stack,
        ):
            it.session, plain = session, it.session
            stack.callback(setattr, it, "session", plain)
            ports = (it.url.replace("https", "http"), f"http://{grpc}")
            other = Bystander(it)
            await other.ask()
            before = rss_mb(it.process.pid)

            async def send(what: str, data: bytes, port: str) -> None:
                if (first := await first_byte(port, data)) not in ALLOWED:
                    odd.append(f"{what} got {first!r}")

            async with stalls_of(it) as stalls, asyncio.TaskGroup() as group:
                asking = group.create_task(other.ask_for(3600.0))
                listed = [(what, data, port) for port in ports for what, data in records().items()]
                await in_parallel(AT_ONCE, (send(*each) for each in listed))
                hello = client_hello()
                drawn = (mutate(hello, draw) for _ in range(mutations))
                await in_parallel(AT_ONCE, (send("a mutation", data, draw.choice(ports)) for data in drawn))
                statuses = [
                    await status_for_name(it, trusting(authority), name) for name in ("elsewhere.example", "a" * 60)
                ]
                again = await renegotiates(it)
                asking.cancel()
            grown = rss_mb(it.process.pid) - before
    figure = (
        f"{len(listed)} odd records and names, {mutations} mutated hellos, renegotiation "
        f"{'accepted' if again else 'refused'}; +{grown:.0f} MB; {stalls.figure}; {other.figure}"
    )
    return verdict_of(
        figure,
        {
            **other.levels,
            **stalls.levels,
            f"{len(odd)} handshakes got something else than an alert, the first: {''.join(odd[:1])}": not odd,
            "a client could renegotiate": not again,
            f"other server names got {statuses}, expected 200 or a refusal": set(statuses) <= {0, 200},
            f"memory grew by {grown:.0f} MB, expected at most {SPARE_MB}": grown <= SPARE_MB,
        },
    )


PART = Part("fuzzed handshakes", "alerts or an end; no renegotiation; no stall above 100 ms; others within 10 s", run)
