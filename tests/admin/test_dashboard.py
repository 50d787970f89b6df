"""The dashboard in a real browser, on a real gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.admin.server import PAGE_HEADERS
from tests.fixtures.chromium import Element, find_or_install_chromium, load
from tests.fixtures.gateways import BOTH_CACHES, TIERS
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream

CHECKOUT = Path(__file__).parents[2]
START_S = 20.0


@pytest.fixture(scope="module")
def chromium() -> str:
    found = find_or_install_chromium()
    if found is None:
        pytest.skip("there is no chromium, and Debian's package chromium could not be installed")
    return found


class Running:
    def __init__(
        self, process: asyncio.subprocess.Process, url: str, admin: str, session: aiohttp.ClientSession
    ) -> None:
        self.process, self.url, self.admin, self.session = process, url, admin, session

    async def chat(self, question: str, **headers: str) -> str:
        body = {"model": "m", "messages": [{"role": "user", "content": question}]}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as response:
            await response.read()
            return response.headers["Cache-Status"]

    async def stats(self) -> dict[str, Any]:
        async with self.session.get(f"{self.admin}/admin/stats") as response:
            stats: dict[str, Any] = await response.json()
            return stats

    async def stats_where(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        async with asyncio.timeout(START_S):
            # Of another process there is nothing to wait for but what it says.
            while not holds(stats := await self.stats()):
                await asyncio.sleep(0.05)
        return stats


@asynccontextmanager
async def serving(folder: Path, *arguments: str) -> AsyncIterator[Running]:
    """`nearhit serve` in `folder`, on ports that the system chooses and the gateway announces."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", "serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", *arguments,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "NEARHIT_EMBEDDER__ADAPTER": "hash"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    rest: asyncio.Task[bytes] | None = None
    try:
        said = ""
        async with asyncio.timeout(START_S):
            while not (found := re.search(r"nearhit serves (\S+), admin (\S+)", said)):
                line = await process.stderr.readline()
                assert line, f"the gateway did not start: {said}"
                said += line.decode()
        rest = asyncio.create_task(process.stderr.read())  # a full pipe would stop the gateway
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            yield Running(process, found[1], found[2], session)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(10):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()
        if rest is not None:
            await rest


def table(element: Element) -> dict[str, list[str]]:
    """The texts of each row's cells, by its first."""
    rows = [[cell.text for cell in row if cell.tag in ("th", "td")] for row in element.all("tr")]
    return {row[0]: row[1:] for row in rows}


async def test_shows_what_the_gateway_counts(chromium: str, upstream: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, "--upstream", upstream.url) as gateway:
        for _ in range(3):
            await gateway.chat("How do I reset my password?")
        await gateway.chat("how do I reset my password")
        await gateway.chat("What is 2 plus 3?")
        await gateway.chat("How do I reset my password?", **{"cache-control": "no-store"})
        stats = await gateway.stats_where(lambda s: s["history"][-1]["verdicts"] == s["verdicts"])
        page = await load(chromium, f"{gateway.admin}/dashboard", tmp_path)

    assert stats["requests"] == 6
    assert stats["verdicts"]["exact"] >= 2
    assert stats["verdicts"]["bypass"] == 1
    document = page.document
    verdicts = table(document.by_id("verdicts").all("table")[0])
    for verdict, count in stats["verdicts"].items():
        assert verdicts[verdict][0] == f"{count:.0f}"
        assert verdicts[verdict][1] == f"{100 * count / 6:.1f} %"
        p50 = stats["latency_ms"][verdict]["p50"]
        assert (verdicts[verdict][2] == "–") == (p50 is None)
        if p50 is not None:
            assert float(verdicts[verdict][2]) == pytest.approx(p50, rel=0.05, abs=0.006)
    tiles = {tile.all("dt")[0].text: tile.text for tile in document.by_id("tiles").all("div")}
    assert f"{100 * stats['hit_rate']:.1f} % since start" in tiles["Hit rate"]
    assert "6 since start" in tiles["Requests per second"]
    assert f"Tokens saved {stats['tokens_saved']:,.0f}" in tiles["Tokens saved"]
    assert f"Answers stored {stats['cache']['entries']['store']}" in tiles["Answers stored"]
    assert stats["policy"]["hash"] in document.by_id("policy-link").text
    assert set(table(document.by_id("backends").all("table")[0])) >= set(stats["backends"])
    (promised,) = stats["quality"]
    cells = table(document.by_id("quality").all("table")[0])[promised["route"]]
    assert cells[:3] == ["1.00 %", "not audited yet", "–"]
    assert cells[3] == f"{promised['threshold']:.2f}"
    assert document.by_id("no-rules").text == "No route has two models."
    assert document.by_id("live").text == "live"
    assert document.by_id("start").text == ""
    bars = document.by_id("chart-requests").all("rect")
    assert {bar.attributes["fill"] for bar in bars} >= {"var(--exact)", "var(--miss)", "var(--bypass)"}


async def test_asks_nobody_else_and_logs_nothing(chromium: str, upstream: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, "--upstream", upstream.url) as gateway:
        await gateway.chat("How do I reset my password?")
        page = await load(chromium, f"{gateway.admin}/dashboard", tmp_path)
        assert f"{gateway.admin}/admin/stats" in page.requests
        assert [url for url in page.requests if not url.startswith(f"{gateway.admin}/")] == []
        assert page.console == []


async def test_says_how_to_begin_without_traffic(chromium: str, upstream: Upstream, tmp_path: Path) -> None:
    async with serving(tmp_path, "--upstream", upstream.url) as gateway:
        page = await load(chromium, f"{gateway.admin}/dashboard", tmp_path)
    assert "curl -si" in page.document.by_id("start").text
    assert page.console == []


async def test_shows_which_rule_chooses_the_large_model(chromium: str, upstream: Upstream, tmp_path: Path) -> None:
    backend = {"adapter": "openai", "url": upstream.url}
    (tmp_path / "config.yaml").write_text(json.dumps({"version": 1, "backends": {"light": backend, "large": backend}}))
    (tmp_path / "policies").mkdir()
    rule = TIERS.replace("escalate_above: 0.5", "quality: 0.9, learn: off")
    (tmp_path / "policies" / "default.yaml").write_text(rule)
    async with serving(tmp_path) as gateway:
        await gateway.chat("How do I reset my password?")
        (known,) = (await gateway.stats())["routing"]
        page = await load(chromium, f"{gateway.admin}/dashboard", tmp_path)
    cells = table(page.document.by_id("rules").all("table")[0])["default"]
    kept = known["quality_kept"]
    assert cells[:2] == ["quality: 0.9", f"{known['threshold']:.2f}"]
    assert cells[3] == f"{100 * kept['part']:.1f} % ({100 * kept['low']:.1f} % to {100 * kept['high']:.1f} %)"
    assert cells[4] == "none; frozen"
    assert page.console == []


async def test_shows_each_of_several_upstreams(chromium: str, upstream: Upstream, tmp_path: Path) -> None:
    gone = f"http://127.0.0.1:{free_ports(1)[0]}/v1"
    backend = {"adapter": "openai", "upstreams": [upstream.url, gone]}
    (tmp_path / "config.yaml").write_text(json.dumps({"version": 1, "backends": {"main": backend}}))
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "default.yaml").write_text(BOTH_CACHES)
    async with serving(tmp_path) as gateway:
        await gateway.chat("How do I reset my password?")
        page = await load(chromium, f"{gateway.admin}/dashboard", tmp_path)
    cells = table(page.document.by_id("backends").all("table")[0])
    assert cells["main"] == cells[f"– {upstream.url}"] == cells[f"– {gone}"] == ["closed", "0"]
    assert page.console == []


async def test_a_rejected_policy_is_on_top_as_text(chromium: str, upstream: Upstream, tmp_path: Path) -> None:
    backend = {"adapter": "openai", "url": upstream.url}
    (tmp_path / "config.yaml").write_text(json.dumps({"version": 1, "backends": {"light": backend, "large": backend}}))
    policies = tmp_path / "policies"
    policies.mkdir()
    (policies / "default.yaml").write_text(TIERS)
    async with serving(tmp_path) as gateway:
        hash_in_force = (await gateway.stats())["policy"]["hash"]
        # What a file says is shown as text, whatever it is.
        (policies / "default.yaml").write_text(TIERS.replace("ttl: 1h", "ttl: <img src=x onerror=alert(1)>", 1))
        gateway.process.send_signal(signal.SIGHUP)
        stats = await gateway.stats_where(lambda s: s["policy"]["faults"])
        page = await load(chromium, f"{gateway.admin}/dashboard", tmp_path)
    alert = page.document.by_id("alert-policy")
    assert "policy on disk was rejected" in alert.text
    assert hash_in_force in alert.text
    assert [item.text for item in alert.all("li")] == stats["policy"]["faults"]
    assert "<img src=x" in alert.text
    assert page.document.all("img") == []
    assert page.document.all("title")[0].text.startswith("Policy rejected")
    assert page.console == []


async def test_says_that_the_connection_is_lost(chromium: str, tmp_path: Path) -> None:
    async def dashboard(_: web.Request) -> web.Response:
        html = (resources.files("gateway.admin") / "dashboard.html").read_bytes()
        return web.Response(body=html, content_type="text/html", headers=PAGE_HEADERS)

    app = web.Application()
    app.router.add_get("/dashboard", dashboard)  # and no /admin/stats
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = "http://{}:{}/dashboard".format(*runner.addresses[0][:2])
        page = await load(chromium, url, tmp_path)
    finally:
        await runner.cleanup()
    assert "status 404" in page.document.by_id("alert-lost").text
    assert page.document.by_id("live").text == "connection lost"
    assert page.document.by_id("figures").text == ""
