"""Connections that begin a TLS handshake and do not finish it must not keep others from theirs."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import trustme

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import Bystander, target
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.upstream import Upstream, serving
from tests.fixtures.wire import Wire, connected
from tests.http_server.test_tls import Files, trusting

EVERY_S = 1.0
CUT_S = 90.0  # asyncio ends a handshake after 60 s; the rest is for a busy machine
MOST_KIB = 128.0  # of a handshake that is not finished


def client_hello() -> bytes:
    """Return the first bytes that a client of Python's ssl sends."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    shaken = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        shaken.do_handshake()
    return outgoing.read()


async def drip(wire: Wire, hello: bytes) -> None:
    """Send the handshake a byte at a time; it never ends, because the last byte is not sent."""
    with suppress(ConnectionError):
        for at in range(len(hello) - 1):
            await wire.send(hello[at : at + 1])
            await asyncio.sleep(EVERY_S)


async def count_closed(wires: list[Wire]) -> int:
    """Return how many connections the gateway ends within `CUT_S`."""

    async def ends(wire: Wire) -> bool:
        with suppress(ConnectionError):
            return await wire.reader.read() == b""
        return True

    waiting = [asyncio.create_task(ends(wire)) for wire in wires]
    done, late = await asyncio.wait(waiting, timeout=CUT_S)
    for task in late:
        task.cancel()
    return len(done)


async def run(quick: bool) -> Finding:
    """Hold slow handshakes, and ask as another tenant, with a handshake for each request."""
    count, seconds = (100, 4.0) if quick else (1000, 30.0)
    authority, hello, cut = trustme.CA(), client_hello(), 0
    with tempfile.TemporaryDirectory() as folder:
        tls = Files(Path(folder), authority).section
        async with (
            serving(Upstream()) as upstream,
            target(upstream.url, NO_CACHE, server={"tls": tls}) as it,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting(authority), force_close=True)) as session,
            AsyncExitStack() as stack,
        ):
            it.session, plain = session, it.session
            stack.callback(setattr, it, "session", plain)
            other = Bystander(it)
            await other.ask()
            before = rss_mb(it.process.pid)
            url = it.url.replace("https", "http")
            began = time.monotonic()
            wires = [await stack.enter_async_context(connected(url)) for _ in range(count)]
            dripping = [asyncio.create_task(drip(wire, hello)) for wire in wires]
            await other.ask_for(seconds)
            each_kib = 1024 * (rss_mb(it.process.pid) - before) / count
            if not quick:
                cut = await count_closed(wires)
            lasted_s = time.monotonic() - began
            for wire, task in zip(wires, dripping, strict=True):
                task.cancel()
                wire.writer.transport.abort()
    ended = "" if quick else f", {cut} cut within {lasted_s:.0f} s"
    figure = f"{count} handshakes, {each_kib:.0f} KiB each{ended}; {other.figure}"
    return verdict_of(
        figure,
        {
            **other.levels,
            f"{each_kib:.0f} KiB for a handshake, expected at most {MOST_KIB:g}": each_kib <= MOST_KIB,
            f"{count - cut} handshakes were not cut": quick or cut == count,
        },
    )


PART = Part("slow handshakes", "others: 0 failed, each within 10 s; 128 KiB each at most; all are cut in the end", run)
