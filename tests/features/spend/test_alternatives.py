"""`nearhit report --shadow` against endpoints that count: a forecast is what another policy then costs and keeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.features.spend.alternatives import alternatives_section, alternatives_tiles
from gateway.features.spend.digest import markdown
from gateway.features.spend.picture import png
from gateway.features.spend.savings import savings
from tests.cli.test_json import main
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.several import counted, policy_of
from tests.fixtures.upstream import Upstream, completion, question_of, serving
from tests.fixtures.waiting import until

PRICES = {"light": 100.0, "large": 1000.0, "tiny": 50.0}  # dollars a million tokens
LENGTHS = {"light": 20, "large": 30, "tiny": 45}  # tokens of an answer
INPUT = 10
TIERS = "light: light, large: large, escalate_above: {above}"
MORE = "    spend: on\n    record: on\n"
HERE, OTHER = "The river Danube flows through ten countries.", "Bring the eggs to room temperature before you start."
QUESTIONS = [f"What is the name of city number {number}?" for number in range(12)] + [
    f"Prove step by step why algorithm {number} terminates, and derive its complexity in detail." for number in range(6)
]


def says(name: str) -> Any:
    """The tiny model differs from the others in each fourth answer. All tell their own number of tokens."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        text = OTHER if name == "tiny" and "3" in question_of(call) else HERE
        usage = {"prompt_tokens": INPUT, "completion_tokens": LENGTHS[name], "total_tokens": INPUT + LENGTHS[name]}
        return web.json_response({**completion(call, text), "usage": usage})

    return answer


@asynccontextmanager
async def fleet(tmp_path: Path, route: str, more: str = MORE) -> AsyncIterator[tuple[Served, dict[str, Upstream]]]:
    """A gateway before three endpoints with prices."""
    light, large, tiny = (Upstream(name) for name in PRICES)
    async with serving(light), serving(large), serving(tiny):
        upstreams = {each.name: each for each in (light, large, tiny)}
        for name, upstream in upstreams.items():
            upstream.answer = says(name)
        backends = {
            name: {
                "adapter": "openai", "url": upstream.url, "model": name,
                "price": {"input_per_million": PRICES[name], "output_per_million": PRICES[name]},
            }
            for name, upstream in upstreams.items()
        }  # fmt: skip
        async with gateway_of(config_of(tmp_path, backends), policy_of(route, more=more)) as served:
            yield served, upstreams


async def play(served: Served) -> None:
    for question in QUESTIONS:
        assert (await served.chat(question)).status == 200


async def alternatives(served: Served, traffic: str = "last-1h") -> dict[str, Any]:
    async with served.session.get(f"{served.admin_url}/admin/report/alternatives?traffic={traffic}") as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


def dollars(name: str, calls: int) -> float:
    return calls * PRICES[name] * (INPUT + LENGTHS[name]) / 1e6


async def test_what_another_choice_would_cost_is_what_it_then_costs(tmp_path: Path) -> None:
    """Each question is audited or copied, so nothing is left to guess but the length of answers."""
    route = TIERS.format(above=0.5) + ", audit: 100%, shadow: {backend: tiny, share: 100%}"
    async with fleet(tmp_path / "recorded", route) as (served, upstreams):
        await play(served)
        calls = {name: len(each.chats) for name, each in upstreams.items()}
        await until(lambda: sum(counted(served, "shadow").values()) == len(QUESTIONS))
        await until(lambda: sum(counted(served, "light_audits").values()) == 12)
        found = await alternatives(served)
    (told,) = found["routes"]
    now, others = told["present"], told["others"]
    assert (found["traffic"]["requests"], told["left_out"], now["light_requests"]) == (18, 0, 12)
    assert now["cost"]["value"] == pytest.approx(dollars("light", 12) + dollars("large", 6))
    assert calls["light"] == 12
    for light, above in (("light", 1.0), ("tiny", 1.0), ("tiny", 0.5)):
        threshold = above if above == 1.0 else max(each["threshold"] for each in others if each["light_requests"] == 12)
        said = next(each for each in others if (each["light"], each["threshold"]) == (light, threshold))
        other = TIERS.format(above=above).replace("light: light", f"light: {light}")
        async with fleet(tmp_path / light / str(above), other) as (real, ends):
            await play(real)
            billed = sum(dollars(name, len(each.chats)) for name, each in ends.items())
        assert said["cost"]["value"] == pytest.approx(billed), light
        assert said["cost"]["low"] <= billed <= said["cost"]["high"] + 1e-9


async def test_what_is_kept_is_what_the_comparisons_found(tmp_path: Path) -> None:
    """A shadow is compared with the best model where it answered, and else with the light one, which audits compare."""
    route = "backend: large, shadow: {backend: tiny, share: 100%}"
    async with fleet(tmp_path, route) as (served, _):
        await play(served)
        await until(lambda: sum(counted(served, "shadow").values()) == len(QUESTIONS))
        (told,) = (await alternatives(served))["routes"]
        (tiny,) = told["others"]
    differs = sum("3" in question for question in QUESTIONS)
    assert (tiny["worse"], tiny["as_good"], tiny["failed"]) == (differs, len(QUESTIONS) - differs, 0)
    assert tiny["kept"]["value"] == pytest.approx(1 - differs / len(QUESTIONS))
    assert 0.4 < tiny["kept"]["low"] < tiny["kept"]["value"] < tiny["kept"]["high"] < 1.0
    assert told["best"] is None, "all of the large model's answers are known to be kept"


async def test_the_command_tells_it_on_the_same_page_and_simulates_another_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    route = TIERS.format(above=0.5) + ", audit: 100%"
    async with fleet(tmp_path / "data", route) as (served, _):
        await play(served)
        await until(lambda: sum(counted(served, "light_audits").values()) == 12)
        new = tmp_path / "new.yaml"
        new.write_text(policy_of(TIERS.format(above=1.0), more=MORE))
        where = ["--admin", served.admin_url, "--config", str(tmp_path / "none.yaml"), "--since", "1h"]
        picture = tmp_path / "week.png"
        assert await asyncio.to_thread(main, ["report", *where, "--shadow", str(new), "--png", str(picture)]) == 0
        page = capsys.readouterr().out
        assert page.startswith("# What nearhit saved\n")
        assert "## Other choices on the recorded traffic" in page
        assert "| light, as it was |  | 12 of 18 |" in page
        assert "## The policy in new.yaml" in page
        assert "| Large model's share | 33.3 % | 0.0 % |" in page
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert await asyncio.to_thread(main, ["report", *where, "--shadow", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["alternatives"]["routes"][0]["present"]["requests"] == 18 and "simulation" not in found
        for given, says in (
            ([str(tmp_path / "none")], "none: cannot be read (No such file or directory), expected a policy file"),
            (["--from", "2026-11-01"], "--shadow reads recorded traffic: expected --since"),
        ):
            there = where if given[0] != "--from" else where[:-2]
            assert await asyncio.to_thread(main, ["report", *there, "--shadow", *given]) != 0
            assert says in capsys.readouterr().err
        new.write_text("version: 1\nroutes: []\n")
        assert await asyncio.to_thread(main, ["report", *where, "--shadow", str(new)]) == 1
        assert "new.yaml: " in capsys.readouterr().err


async def test_a_gateway_that_records_nothing_says_so(tmp_path: Path) -> None:
    async with (
        fleet(tmp_path, TIERS.format(above=0.5), "    spend: on\n") as (served, _),
        served.session.get(f"{served.admin_url}/admin/report/alternatives?traffic=last-7d") as response,
        served.session.get(f"{served.admin_url}/admin/report/alternatives?traffic=week") as refused,
    ):
        assert (response.status, refused.status) == (422, 400)
        assert "expected routes with record: on" in (await response.json())["error"]
        assert "expected a window such as last-24h" in (await refused.json())["error"]


def estimate(value: float | None, low: float | None, high: float | None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def figures(light: str, threshold: float | None, cost: Any, kept: Any, taken: int = 12) -> dict[str, Any]:
    return {
        "light": light, "threshold": threshold, "requests": 18, "light_requests": taken, "cost": cost, "kept": kept,
        "light_kept": kept, "as_good": 3, "worse": 0, "undecided": 0, "failed": 0, "covered": 1.0,
    }  # fmt: skip


def test_names_and_unknown_figures_break_no_format() -> None:
    best = figures("a|b", 0.62, estimate(1.5, None, None), estimate(None, 0.9, 1.0))
    route = {
        "route": "r|s",
        "present": figures("light", None, estimate(2.0, 2.0, 2.0), estimate(0.97, 0.92, 0.99)),
        "others": [best, figures("c", 1.0, estimate(None, None, None), estimate(None, 0.0, 1.0), 18)],
        "best": best,
        "single": figures("d", 1.0, estimate(1.5, 1.5, 1.5), estimate(0.98, 0.96, 0.99), 18),
        "left_out": 1,
    }
    found = {"traffic": {"requests": 18, "since": 0.0, "until": 60.0, "notes": ["x is cut off"]}, "routes": [route]}
    text = "\n".join(alternatives_section(found))
    assert "One model would do as well: d alone for $1.50, with 98.0 % (95 %: 96.0 % to 99.0 %) kept." in text
    assert (
        "Route r\\|s: a\\|b up to a complexity of 0.62 would have cost $1.50 in place of $2.00, "
        "and kept 90.0 % to 100.0 %" in text
    )
    assert "| a\\|b | 0.62 | 12 of 18 | $1.50 | not known | - | 90.0 % to 100.0 % | 3 |" in text
    assert "| c | 1.00 | 18 of 18 | not priced | not known | - | 0.0 % to 100.0 % | 3 |" in text
    assert "Left out: 1 call of unknown tokens" in text and "x is cut off" in text
    empty = {**savings({}, {}, {}), "since": "2026-11-01T00:00:00Z", "until": "2026-11-02T00:00:00Z"}
    assert png(empty, alternatives_tiles(found)).startswith(b"\x89PNG") and markdown(empty)
    nothing = "\n".join(alternatives_section({**found, "routes": []}))
    assert "there is nothing to compare" in nothing
