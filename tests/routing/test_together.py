"""Everything that a `route:` may say, each once and together: a request gets one answer, from somebody whom the policy
names, for a reason that is documented, and shares hold. Real gateways before scripted endpoints."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path

import orjson
import pytest

from gateway.outcomes import Choice
from gateway.upstream.upstream import COOLDOWN_S
from tests.features.cascade.test_cascade import sure
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Answer, Served
from tests.fixtures.several import behind, counted, policy_of
from tests.routing.test_dispatch import EASY, HARD, answering, backend_of, observe, reasons

DOCS = Path(__file__).parents[2] / "docs"
NAMES = ("small", "mid", "big", "next", "eu", "judge")
PRICED = {"price": {"input_per_million": 1.0, "output_per_million": 1.0}}
PAIR = "light: small, large: big"
GENEROUS = (
    "limits: [{requests: 1M/min, tokens: 900M/day, concurrency: 500, cost: {per_day: 900 USD, per_month: 900 USD}}]"
)

# Every key of `route:` and of `limits:`, with a policy that has it.
KEYS: dict[str, tuple[str, str]] = {
    "backend": ("backend: big", ""),
    "backend: {NAME: SHARE}": ("backend: {big: 60%, next: 40%}", ""),
    "light": (PAIR, ""),
    "large": ("light: {small: 50%, mid: 50%}, large: {big: 60%, next: 40%}", ""),
    "tiers": ("tiers: [small, mid, big], escalate_above: [0.3, 0.999]", ""),
    "escalate_above": (f"{PAIR}, escalate_above: 0.4", ""),
    "fallback": (f"{PAIR}, fallback: [eu]", ""),
    "shadow": (f"{PAIR}, shadow: {{backend: next, share: 100%}}", ""),
    "shadow.per_hour": (f"{PAIR}, shadow: {{backend: next, share: 100%, per_hour: 2}}", ""),
    "cascade.check": (f"{PAIR}, cascade: {{check: logprobs, accept_above: 0.7}}", ""),
    "cascade.accept_above": (f"{PAIR}, cascade: {{check: verifier, accept_above: 0.99}}", ""),
    "cascade.samples": (f"{PAIR}, cascade: {{check: consistency, samples: 2, accept_above: 0.5}}", ""),
    "cascade.judge": (f"{PAIR}, cascade: {{check: verifier, judge: judge, accept_above: 0.7}}", ""),
    "cascade.otherwise": (
        f"{PAIR}, cascade: {{check: logprobs, otherwise: consistency, samples: 2, accept_above: 0.7}}",
        "",
    ),
    "large_share": (f"{PAIR}, large_share: 30%", ""),
    "quality": (f"{PAIR}, quality: 0.95", ""),
    # Nobody listens there, so the gateway's own score counts.
    "complexity": (f"{PAIR}, complexity: {{adapter: http, url: 'http://127.0.0.1:9/', timeout: 20ms}}", ""),
    "complexity.model": (f"{PAIR}, complexity: {{adapter: triton, url: 'grpc://127.0.0.1:9', model: m}}", ""),
    "audit": (f"{PAIR}, audit: 100%", ""),
    "audit.per_hour": (f"{PAIR}, audit: {{share: 100%, per_hour: 2}}", ""),
    "audit.cost_per_day": (f"{PAIR}, audit: {{share: 100%, cost_per_day: 1.0}}", ""),
    "audit.judge": (f"{PAIR}, audit: {{share: 100%, judge: judge}}", ""),
    "rollout": (
        f"{PAIR}, rollout: {{audit: 100%, per_hour: 2, cost_per_day: 1.0, margin: 5%, agreement: 70%, slower: 2, "
        "give_up_after: 1h, keep: 1d, steps: [10%, 100%], webhook: 'http://127.0.0.1:9/'}",
        "",
    ),
    "learn": (f"{PAIR}, quality: 0.9, learn: off", ""),
    "priority": (f"{PAIR}, priority: low", ""),
    "client_priority": (f"{PAIR}, client_priority: on", ""),
    "latency_budget": (f"{PAIR}, latency_budget: 60s", ""),
    "confidence": (f"{PAIR}, latency_budget: 60s, confidence: 99%", ""),
    "confidence_of": (f"{PAIR}, latency_budget: 60s, confidence_of: request", ""),
    "late": (f"{PAIR}, latency_budget: 60s, late: refuse", ""),
    "limits": (PAIR, "limits: {requests: 1M/min}"),
    "limits[].per": (PAIR, "limits: [{per: route, requests: 1M/min}, {per: user, requests: 1M/min}]"),
    "limits[].requests": (PAIR, "limits: {requests: [10k/s, 1M/min]}"),
    "limits[].tokens": (PAIR, "limits: {tokens: 900M/day}"),
    "limits[].requests[].rate": (PAIR, "limits: {requests: {rate: 1M/min, burst: 500}}"),
    "limits[].concurrency": (PAIR, "limits: {concurrency: 50}"),
    "limits[].large_share": (PAIR, "limits: {large_share: 30%}"),
    "limits[].cost.per_day": (PAIR, "limits: {cost: {per_day: 900 USD, per_month: 900 USD}}"),
    "limits[].cost.then": (PAIR, "limits: {cost: {per_day: 0.000001 USD, then: light}}"),
    "limits[].count_hits": (PAIR, "limits: {requests: 1M/min, count_hits: on}"),
}


def one_policy(route: str, more: str = "") -> str:
    return policy_of(route, more=f"    {more}\n" if more else "")


def test_every_documented_key_has_a_policy_here() -> None:
    text = (DOCS / "configuration.md").read_text()
    named = re.findall(r"^\| \[?`routes\[\]\.(route\.[^`]+|limits[^`]*)`", text, re.MULTILINE)
    documented = {name.removeprefix("route.") for name in named}
    written = [" ".join(policy) for policy in KEYS.values()]
    # A key that only another one makes sense of, such as `shadow.share`, is in the policy of that one.
    unwritten = {key for key in documented - set(KEYS) if not any(f"{key.rpartition('.')[2]}: " in p for p in written)}
    assert unwritten == set()
    assert set(KEYS) - documented == {"backend: {NAME: SHARE}"}


def tally(served: Served) -> Counter[str]:
    """Reasons of the misses, by their name."""
    found: Counter[str] = Counter()
    for (_, reason), count in reasons(served).items():
        found[reason] += int(count)
    return found


def documented_reasons() -> set[str]:
    text = (DOCS / "observing.md").read_text()
    return {choice for choice in Choice if f"`{choice}`" in text}


def whole(answer: Answer, question: str) -> bool:
    """One answer, to this question, and nothing of another."""
    if answer.headers["Content-Type"].startswith("application/json"):
        return len(answer.json["choices"]) == 1 and answer.text.count(f"answers: {question}") == 1
    pieces = [orjson.loads(line[6:]) for line in answer.body.split(b"\n\n") if line.startswith(b"data: {")]
    text = "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces if piece["choices"])
    return text.count(f"answers: {question}") == 1 and answer.body.count(b"data: [DONE]") == 1


@pytest.mark.parametrize("key", KEYS)
async def test_each_key_alone_gives_every_request_one_answer(tmp_path: Path, key: str) -> None:
    route, more = KEYS[key]
    async with behind(tmp_path, one_policy(route, more), *NAMES, backends=PRICED) as (served, _):
        members = set(served.gateway.policy.routes[0].target.members)
        asked = [(EASY if i % 2 else HARD, i % 3 == 0, i) for i in range(8)]
        answers = await asyncio.gather(*(served.chat(q, stream=s, seed=i) for q, s, i in asked))
        for (question, _, _), answer in zip(asked, answers, strict=True):
            assert answer.status == 200, answer.body
            assert backend_of(answer) in members
            assert whole(answer, question), answer.body
        # Audits are calls of the gateway's own; they are in the metric, too, and say nothing of these.
        assert sum(tally(served).values()) >= len(asked)
        if "audit" not in key:
            assert sum(tally(served).values()) == len(asked)
        assert set(tally(served)) <= documented_reasons()
        again = await served.chat(asked[0][0], stream=True, seed=0)
        assert again.cache_status.startswith("nearhit; hit"), again.cache_status


# Together

CANARY = "light: small, large: {big: 60%, next: 40%}, fallback: [eu], latency_budget: 60s, late: light"
EVERYTHING = f"{CANARY}, cascade: {{check: logprobs, accept_above: 0.7}}, shadow: {{backend: judge, share: 100%}}"
QUESTIONS = [
    EASY,
    HARD,
    "Prove it.",
    "Why does this loop not end?\n```\nwhile x: y()\n```",
    "Hello",
    "Sum 3 and 4 and 9",
]


async def several(served: Served, count: int, *, at_once: int = 1, first: int = 0) -> list[Answer]:
    """Questions of all sorts, each the opening of a conversation; one after the other unless said otherwise."""
    answers: list[Answer] = []
    for start in range(first, first + count, at_once):
        asked = [
            (f"{QUESTIONS[i % len(QUESTIONS)]} ({i})", i) for i in range(start, min(first + count, start + at_once))
        ]
        answers += await asyncio.gather(*(served.chat(question, seed=i, stream=i % 2 == 0) for question, i in asked))
    return answers


def large_part(answers: list[Answer]) -> float:
    return sum(backend_of(answer) in ("big", "next") for answer in answers) / len(answers)


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
async def test_a_share_holds_beside_a_canary_fallbacks_budgets_and_limits(
    tmp_path: Path, share: float, at_once: int
) -> None:
    """Within what docs/concepts.md says: 2 % of n and 5 requests. Of many at once some are kept from a backend of which
    nothing is known while one finds out: `budget`."""
    policy = one_policy(f"{CANARY}, large_share: {share:.0%}", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, _):
        answers = await several(served, 200, at_once=at_once)
        assert {answer.status for answer in answers} == {200}
        assert abs(large_part(answers) - share) <= 0.02 + 5 / 200 + 1e-9
        assert {backend_of(answer) for answer in answers} == {"small", "big", "next"}
        assert set(tally(served)) <= {"below-threshold", "above-threshold"} | ({"budget"} if at_once > 1 else set())


@pytest.mark.parametrize("accepted", [0.9, 0.1])
async def test_what_a_cascade_settles_counts_as_who_answered(tmp_path: Path, accepted: float) -> None:
    """Accepted answers are the light model's: the share is made up for as far as DEPTH, and never exceeded."""
    policy = one_policy(f"{EVERYTHING}, large_share: 30%", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, upstreams):
        upstreams["small"].answer = sure(accepted)
        answers = await several(served, 120)
        assert {answer.status for answer in answers} == {200}
        part, found = large_part(answers), tally(served)
        if accepted > 0.7:
            assert part == 0.0
            assert found["cascade-accepted"] == counted(served, "cascade")["accepted"] > 0
        else:
            assert abs(part - 0.3) <= 0.02 + 5 / 120 + 1e-9
            assert found["cascade-escalated"] == counted(served, "cascade")["escalated"] > 0
        assert sum(found.values()) == 120
        assert set(found) <= {"below-threshold", "cascade-accepted", "cascade-escalated"}


async def test_a_quality_asks_for_more_than_a_tenants_cap_on_the_large_model_and_the_cap_holds(tmp_path: Path) -> None:
    policy = one_policy(f"{EVERYTHING}, quality: 0.95", "limits: {large_share: 20%}")
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, upstreams):
        upstreams["small"].answer = sure(0.1)
        answers = await several(served, 100)
        assert {answer.status for answer in answers} == {200}
        assert 0.1 < large_part(answers) <= 0.25
        found = tally(served)
        assert found["limit"] > 0
        assert sum(found.values()) == 100
        asked_twice = sum(len(up.chats) for name, up in upstreams.items() if name != "judge")
        assert asked_twice == 100 + found["cascade-escalated"], (
            "who is held to the lightest is not tried, and not asked twice"
        )


async def test_a_cap_on_cost_that_is_spent_leaves_the_lightest_unchecked_and_answers_all_the_same(
    tmp_path: Path,
) -> None:
    policy = one_policy(f"{EVERYTHING}, quality: 0.95", "limits: {cost: {per_day: 0.000001 USD, then: light}}")
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, _):
        answers = await several(served, 12)
        assert {(answer.status, backend_of(answer)) for answer in answers} == {(200, "small")}
        assert tally(served) == {"limit": 12}
        assert counted(served, "cascade") == {}


async def test_budgets_go_before_quality_and_the_reason_says_so(tmp_path: Path) -> None:
    policy = one_policy(f"{EVERYTHING}, quality: 0.95", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, upstreams):
        upstreams["small"].answer = sure(0.1)
        for name, seconds in (("small", 0.05), ("big", 2.0), ("next", 2.0)):
            observe(served, name, seconds)
        tight = await served.chat(HARD, headers={"x-latency-budget-ms": "1500"}, seed=1)
        assert (tight.status, backend_of(tight), tally(served)) == (200, "small", {"budget": 1})


async def test_where_nobody_is_in_time_late_decides_and_a_cascade_without_the_time_for_two_is_left_out(
    tmp_path: Path,
) -> None:
    policy = one_policy(f"{EVERYTHING}, quality: 0.95", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED, clock=FakeClock()) as (served, upstreams):
        upstreams["small"].answer = sure(0.1)
        for name in ("small", "big", "next"):
            observe(served, name, 40.0)
        loose = await served.chat(HARD, seed=3)
        assert backend_of(loose) in ("big", "next"), "60 s hold one of both, and not both in a row"
        late = await served.chat(HARD, headers={"x-latency-budget-ms": "1500"}, seed=2)
        assert (late.status, backend_of(late)) == (200, "small"), "late: light"
        assert counted(served, "cascade") == {"skipped": 1}
        assert tally(served) == {"budget": 1, "above-threshold": 1}


async def test_when_all_tiers_fail_the_fallback_answers_each_request_once(tmp_path: Path) -> None:
    policy = one_policy(f"{EVERYTHING}, quality: 0.95", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, upstreams):
        for name in ("small", "big", "next"):
            upstreams[name].answer = answering(500)
        answers = await several(served, 24)
        assert {(answer.status, backend_of(answer)) for answer in answers} == {(200, "eu")}
        assert len(upstreams["eu"].chats) == 24
        assert set(tally(served)) <= {"fallback", "cascade-escalated"}
        assert sum(tally(served).values()) == 24


async def test_an_outage_of_the_large_model_is_made_up_for_by_a_handful_and_no_more(tmp_path: Path) -> None:
    """The bound of `gateway/routing/share_controller.py` for a stretch after what had no choice: 2 % of n, and 12
    requests."""
    clock, policy = FakeClock(), one_policy(f"{CANARY}, large_share: 30%", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED, clock=clock) as (served, upstreams):
        for name in ("big", "next"):
            upstreams[name].answer = answering(500)
        during = await several(served, 60)
        assert {(answer.status, backend_of(answer)) for answer in during} == {(200, "small")}
        for name in ("big", "next"):
            upstreams[name].answer = None
        clock.advance(COOLDOWN_S)
        after = await several(served, 160, first=1000)
        assert {answer.status for answer in after} == {200}
        assert 0.3 < large_part(after) <= 0.3 + 0.02 + 12 / 160


async def test_a_refusal_by_budget_is_the_only_answer_and_no_limit_counts_it(tmp_path: Path) -> None:
    route = f"{CANARY.replace('late: light', 'late: refuse')}, quality: 0.95"
    policy = one_policy(route, "limits: {requests: 3/min, large_share: 30%}")
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, upstreams):
        for name in ("small", "big", "next"):
            observe(served, name, 70.0)
        refused = [await served.chat(HARD, seed=seed) for seed in range(8)]
        assert {answer.status for answer in refused} == {504}
        assert [len(up.calls) for up in upstreams.values()] == [0] * len(NAMES)
        assert tally(served) == {}


async def test_what_explain_foretells_is_what_happens(tmp_path: Path) -> None:
    """With rules that follow the traffic, a canary and a cascade: the state is looked at, and not moved."""
    policy = one_policy(f"{EVERYTHING}, large_share: 40%", GENEROUS)
    async with behind(tmp_path, policy, *NAMES, backends=PRICED) as (served, upstreams):
        upstreams["small"].answer = sure(0.1)
        for seed in range(60):
            question = QUESTIONS[seed % len(QUESTIONS)]
            body = {"model": "m", "messages": [{"role": "user", "content": question}], "seed": seed}
            for _ in range(2):
                async with served.session.post(served.admin_url + "/admin/explain", json=body) as response:
                    told = orjson.loads(await response.read())
            before = len(upstreams["small"].chats)
            assert backend_of(await served.chat(question, seed=seed)) == told["backend"]
            tried = len(upstreams["small"].chats) - before - (told["backend"] == "small")
            assert tried == (told["tried_first"] == "small")
