"""Measures how soon the dashboard is usable with thirty days of history, and takes its pictures for docs/.

A real Chromium opens the dashboard: `python -m bench.dashboard [--pictures docs/images]`. The gateway has both caches,
and a light and a large scripted backend. Its store has thirty days of made-up traffic with the shape of office hours.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from playwright.async_api import Browser, Page

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.timeline import RedisTimeline
from gateway.adapters.system.clock import SystemClock
from gateway.admin.history import RETENTION_S, SHARED
from gateway.admin.policy_manager import check_folder
from gateway.observability.metrics import LATENCY_BUCKETS
from tests.fixtures.browser import browser_of
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.stores import outside_server
from tests.fixtures.upstream import Upstream, serving

VIEWS = ("overview", "spend", "backends", "tenants", "questions", "entries", "policy", "live")
# Medians (s) and spreads of the office's requests by how they are answered.
SHAPES = {
    "exact": (0.34, 0.0006, 0.5), "semantic": (0.17, 0.006, 0.4), "stale": (0.01, 0.001, 0.5),
    "coalesced": (0.02, 0.4, 0.5),
    "miss": (0.42, 0.9, 0.8), "bypass": (0.04, 0.7, 0.8),
}  # fmt: skip
STAGES = {
    "exact": (0.0004, 0.4),
    "embed": (0.0035, 0.3),
    "search": (0.0003, 0.4),
    "verify": (0.002, 0.4),
    "upstream": (0.8, 0.8),
}
QUESTIONS = (
    "How do I reset my password?",
    "how can I reset my password",
    "What is your refund policy?",
    "What's the refund policy?",
    "How do I export my invoices as CSV?",
    "Where can I download an invoice?",
    "Explain step by step how rate limits and retries interact, and what a client should do about it",
    "Which regions do you serve?",
    "How do I add a colleague to my workspace?",
    "How do I remove a colleague from my workspace?",
    "Prove that the scheduler never starves a tenant, and derive the bound",
    "Is there a free plan?",
)
POLICY = """\
version: 1
routes:
  - name: support
    match: {headers: {x-app: support}}
    cache:
      exact: {ttl: 24h}
      semantic: {ttl: 6h, max_wrong_hits: 1%, audit: 50%}
    route: {light: light, large: large, large_share: 30%, audit: 50%, shadow: {backend: tiny, share: 50%}}
    record: {prompts: on}
    spend: {budget: 1}
    limits:
      - {per: tenant, requests: 600/min, tokens: 100000/min}
  - name: default
    match: {}
    cache:
      exact: {ttl: 1h}
      semantic: {ttl: 1h, max_wrong_hits: 2%}
    route: {light: light, large: large, escalate_above: 0.5}
    spend: on
"""
# Seconds of an answer, and dollars a million tokens of input and of output.
BACKENDS = {"light": (0.03, 0.25, 2.0), "large": (0.12, 2.5, 15.0), "tiny": (0.02, 0.1, 0.4)}


def latency_buckets(prefix: str, count: int, median: float, spread: float, draw: random.Random) -> dict[str, float]:
    """Return `count` log-normal latencies by bucket, from a few draws."""
    found: dict[str, float] = {}
    draws = 24
    for _ in range(draws):
        seconds = median * math.exp(draw.gauss(0, spread))
        bucket = sum(bound < seconds for bound in LATENCY_BUCKETS)
        found[f"{prefix}.{bucket}"] = found.get(f"{prefix}.{bucket}", 0.0) + round(count / draws)
    return found


def synthetic_slot(at: float, step_s: int, draw: random.Random) -> dict[str, float]:
    """Return the figures of an office's gateway in the slot that begins at `at`."""
    local = time.localtime(at)
    busy = 0.12 + math.exp(-(((local.tm_hour + local.tm_min / 60 - 13.5) / 4.2) ** 2)) * (
        0.3 if local.tm_wday > 4 else 1
    )
    requests = int(step_s * 2.4 * busy * draw.uniform(0.85, 1.15))
    warm = min(1.0, 0.55 + 0.5 * (1 - max(0.0, time.time() - at) / (30 * 86400)))
    part: dict[str, float] = {"up": float(step_s)}
    for verdict, (share, median, spread) in SHAPES.items():
        count = int(requests * share * (warm if verdict in ("exact", "semantic") else 1))
        part[f"verdict.{verdict}"] = count
        part |= latency_buckets(f"seconds.{verdict}", count, median * (1 + busy / 3), spread, draw)
    for stage, (median, spread) in STAGES.items():
        part |= latency_buckets(f"stage.{stage}", requests, median * (1 + busy / 4), spread, draw)
    misses = part["verdict.miss"]
    light = round(misses * draw.uniform(0.66, 0.74))
    part |= {"routed.light.below-threshold": light * 0.9, "routed.light.budget": light * 0.1}
    part |= {"routed.large.above-threshold": (misses - light) * 0.94, "routed.large.fallback": (misses - light) * 0.06}
    part = {name: float(round(value)) for name, value in part.items()}
    hits = part["verdict.exact"] + part["verdict.semantic"]
    part |= {"saved.tokens": hits * 310, "saved.dollars": hits * 0.0021, "saved.backend_s": hits * 1.1}
    wrong = 0.004 + 0.002 * math.sin(at / 200_000)
    known = 0.006 * (1.2 - warm / 2)
    for route, factor in (("support", 1.0), ("default", 1.6)):
        part |= {f"=wrong.share.{route}": wrong * factor, f"=wrong.low.{route}": max(0.0, wrong - known / 2) * factor}
        part[f"=wrong.high.{route}"] = (wrong + known) * factor
    return part


async def fill_history(url: str) -> None:
    """Write thirty days, up to an hour ago, and the last day in finer slots."""
    clock, draw = SystemClock(), random.Random(7)
    store = RedisStore(connect(url), embedder="", timeout_s=10.0, clock=clock)
    timeline = RedisTimeline(store)
    for step_s, resolution in SHARED.items():
        now = resolution.slot_of(clock.wall())
        for first in range(now - resolution.slots + 1, now, 48):
            slots = range(first, min(first + 48, now))
            await timeline.write({(step_s, n): synthetic_slot(n * step_s, step_s, draw) for n in slots}, RETENTION_S)
    await store.close()


@asynccontextmanager
async def gateway_with_history(folder: Path, *, days: bool = True) -> AsyncIterator[Served]:
    """Run a gateway that has something to show."""
    with outside_server(folder) as server:
        if days:
            await fill_history(server.url)
        async with AsyncExitStack() as stack:
            backends = {}
            for name, (takes_s, dollars_in, dollars_out) in BACKENDS.items():
                upstream = await stack.enter_async_context(serving(Upstream(name)))
                upstream.answer = _answer_after(takes_s)
                price = {"input_per_million": dollars_in, "output_per_million": dollars_out}
                shared = {"adapter": "openai", "model": name, "max_concurrency": 32}
                backends[name] = {**shared, "url": upstream.url, "price": price}
            policies = folder / "policies"
            policies.mkdir()
            (policies / "default.yaml").write_text(POLICY)
            config = config_of(folder / "var", backends, store={"url": server.url, "timeout": "10s"})
            config = config.model_copy(update={"policies": policies, "embedder": type(config.embedder)()})
            async with gateway_of(config, check_folder(policies, config), policies=policies) as served:
                await send_traffic(served, random.Random(3))
                yield served


def _answer_after(takes_s: float) -> Any:
    async def answer(_: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(takes_s * random.uniform(0.7, 1.8))
        words = "Open Settings, choose Security, then follow the link that we send you. " * 3
        message = {"role": "assistant", "content": words}
        return web.json_response({
            "id": "c", "object": "chat.completion", "created": 1, "model": body.get("model", ""),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 24, "completion_tokens": 180, "total_tokens": 204},
        })  # fmt: skip

    return answer


async def send_traffic(served: Served, draw: random.Random, requests: int = 160) -> None:
    for i in range(requests):
        question = draw.choice(QUESTIONS) if draw.random() < 0.8 else f"What does error E{draw.randint(100, 999)} mean?"
        headers = {
            "Cache-Tag": "handbook" if i % 3 else "pricing",
            "Authorization": f"Bearer tenant-{draw.randint(1, 4)}",
        }
        if draw.random() < 0.6:
            headers["x-app"] = "support"
        if draw.random() < 0.03:
            headers["Cache-Control"] = "no-store"
        await served.chat(question, headers=headers)


async def open_view(browser: Browser, served: Served, view: str, theme: str = "light", width: int = 1440) -> Page:
    page = await browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)  # type: ignore[arg-type]
    await page.goto(f"{served.admin_url}/dashboard#/{view}")
    await page.locator("#live.good").wait_for()
    return page


async def load_times(browser: Browser, served: Served, runs: int) -> list[float]:
    """Return the seconds from a request for the page, with an empty cache, until its charts are drawn."""
    took = []
    for _ in range(runs):
        page = await browser.new_page()
        began = time.monotonic()
        await page.goto(f"{served.admin_url}/dashboard#/overview?span=30d", wait_until="commit")
        await page.locator("#traffic canvas").wait_for()
        await page.locator("#traffic .legend b").first.wait_for()
        took.append(time.monotonic() - began)
        await page.close()
    return took


async def take_pictures(browser: Browser, served: Served, folder: Path, views: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        for view in views if theme == "light" else {"overview"}.intersection(views):
            name = f"dashboard-{view}{'-dark' if theme == 'dark' else ''}.png"
            page = await open_view(browser, served, view + ("?span=7d" if view == "overview" else ""), theme)
            await asyncio.sleep(1.0)  # what is drawn after the first figures
            if view == "live":
                await send_traffic(served, random.Random(5), 24)
            if view == "policy":
                await page.get_by_label("Policy file").fill(
                    POLICY.replace("ttl: 24h", "ttl: 12h").replace("30%", "130%")
                )
                await page.locator(".faults li").first.wait_for()
            if view == "spend":
                await page.get_by_role("button", name="Try other choices").click()
                await page.locator("#alternatives tbody tr").first.wait_for()
            if view == "entries":
                await page.get_by_role("button", name="Look at").first.click()
            await asyncio.sleep(0.6)
            await page.evaluate("scrollTo(0, 0)")
            await page.screenshot(path=folder / name, full_page=view in ("overview", "spend"))
            await page.close()
    quantise = shutil.which("pngquant")  # Debian's package: a third of the size
    if quantise is not None:
        for picture in folder.glob("dashboard-*.png"):
            subprocess.run([quantise, "--force", "--ext", ".png", "--quality", "70-95", "64", str(picture)], check=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, help="where to, besides measuring")
    parser.add_argument(
        "--view", action="append", choices=VIEWS, help="take the picture of this view alone; repeatable"
    )
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        async with gateway_with_history(Path(scratch)) as served, browser_of() as browser:
            took = await load_times(browser, served, given.runs)
            print(
                json.dumps(
                    {"runs": len(took), "median_s": round(statistics.median(took), 3), "worst_s": round(max(took), 3)}
                )
            )
            if given.pictures:
                await take_pictures(browser, served, given.pictures, given.view or VIEWS)


if __name__ == "__main__":
    asyncio.run(main())
