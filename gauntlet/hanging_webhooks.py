"""Receivers of webhooks that hang, redirect or never end must not delay those of other tenants, nor lead elsewhere."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager, suppress

from bench.process import rss_mb
from gauntlet.part import Finding, Part, verdict_of
from gauntlet.target import ONE_REQUEST_S, PATIENCE_S, PAUSE_S, Bystander, in_parallel, target
from tests.features.jobs.asking import ALICE, BOB, submit
from tests.fixtures.gateways import NO_CACHE
from tests.fixtures.upstream import Upstream, serving

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
AT_ONCE, SPARE_MB = 8, 64
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"


class Receivers:
    """One server: the path of a request says how it answers. `called_at`: the time of each good webhook, by its id."""

    def __init__(self) -> None:
        self.port = self.elsewhere = 0
        self.calls: Counter[str] = Counter()
        self.called_at: dict[str, float] = {}
        self.redirects_followed = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                length = int(head.lower().partition("content-length:")[2].partition("\r\n")[0] or 0)
                body = await reader.readexactly(length)
                path = head.split(" ")[1]
                self.calls[path] += 1
                if path == "/good":
                    self.called_at[json.loads(body)["data"]["id"]] = time.monotonic()
                await self._respond(path, writer)

    async def _respond(self, path: str, writer: asyncio.StreamWriter) -> None:
        if path == "/hang":
            await asyncio.Event().wait()
        elif path == "/trickle":
            for byte in HEAD:
                writer.write(bytes([byte]))
                await asyncio.sleep(1.0)
        elif path == "/endless":
            writer.write(HEAD)
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        elif path == "/reset":
            writer.transport.abort()
        else:
            statuses = {"/good": b"204 No Content", "/gone": b"410 Gone", "/fails": b"500 Internal Server Error"}
            status = statuses.get(path, b"307 Temporary Redirect")
            elsewhere = b"Location: http://127.0.0.1:%d/secret\r\n" % self.elsewhere if path not in statuses else b""
            writer.write(b"HTTP/1.1 " + status + b"\r\n" + elsewhere + b"Content-Length: 0\r\n\r\n")

    async def record_redirect(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.redirects_followed += 1
        writer.close()

    def have_all_calls(self, jobs: Set[str]) -> bool:
        """Return whether the good webhooks of all jobs came, and each kind of receiver had a call."""
        return self.called_at.keys() >= jobs and self.calls.keys() == KINDS

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


# A fourth of the receivers hang, so they hold all places for a while before the last kinds are asked.
BAD = ("/hang", "/trickle", "/redirect", "/endless", "/hang", "/reset", "/fails", "/gone")
KINDS = {*BAD, "/good"}


@asynccontextmanager
async def serve_receivers() -> AsyncIterator[Receivers]:
    receivers = Receivers()
    async with (
        await asyncio.start_server(receivers.answer, "127.0.0.1", 0) as server,
        await asyncio.start_server(receivers.record_redirect, "127.0.0.1", 0) as other,
    ):
        receivers.port, receivers.elsewhere = (each.sockets[0].getsockname()[1] for each in (server, other))
        try:
            yield receivers
        finally:
            receivers.close()


async def run(quick: bool) -> Finding:
    """Let one tenant name bad receivers, and another one good receivers, and measure when these are told."""
    bad, good = (48, 12) if quick else (1000, 100)
    os.environ["GAUNTLET_HOOK"] = SECRET
    submitted: dict[str, float] = {}
    async with serving(Upstream()) as upstream, serve_receivers() as receivers:
        url = f"http://127.0.0.1:{receivers.port}"
        jobs = {"webhook_secret_env": "GAUNTLET_HOOK", "webhook_hosts": [f"127.0.0.1:{receivers.port}"]}
        async with target(upstream.url, NO_CACHE, jobs=jobs) as it:
            other = Bystander(it)
            await other.ask()
            before = rss_mb(it.process.pid)
            named = (submit(it, f"bad {n}", ALICE, webhook=url + BAD[n % len(BAD)]) for n in range(bad))
            await in_parallel(AT_ONCE, named)

            async def ask(number: int) -> None:
                job = await submit(it, f"good {number}", BOB, webhook=url + "/good")
                submitted[job] = time.monotonic()

            for number in range(good):
                await ask(number)
                await other.ask()
            until = time.monotonic() + PATIENCE_S
            while not receivers.have_all_calls(submitted.keys()) and time.monotonic() < until:
                await asyncio.sleep(PAUSE_S)
            grown = rss_mb(it.process.pid) - before
    delays = [receivers.called_at.get(job, time.monotonic()) - at for job, at in submitted.items()]
    tried = sum(number for path, number in receivers.calls.items() if path != "/good")
    figure = (
        f"{bad} jobs with bad receivers ({tried} attempts), {len(receivers.called_at)} of {good} others told within "
        f"{max(delays):.1f} s; {receivers.redirects_followed} connections elsewhere; +{grown:.0f} MB; {other.figure}"
    )
    return verdict_of(
        figure,
        {
            **other.levels,
            f"a webhook of another tenant took {max(delays):.1f} s": max(delays) <= ONE_REQUEST_S,
            f"{receivers.redirects_followed} connections to where a redirect pointed": not receivers.redirects_followed,
            f"memory grew by {grown:.0f} MB, expected at most {SPARE_MB}": grown <= SPARE_MB,
            f"only {len(receivers.calls)} kinds of receivers were asked": receivers.calls.keys() == KINDS,
        },
    )


PART = Part("hanging webhooks", "those of others told within 10 s; redirects lead nowhere; 64 MB at most", run)
