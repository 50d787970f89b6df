"""A route's own classifier over HTTP: its score or tier decides, and every failure means the gateway's own score."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config.policy.load import policy_from_text
from gateway.config.policy.model import Target, Tier
from gateway.features.classifier.classifier import FAILURES, MAX_INFLIGHT, MAX_TEXT, score_of
from gateway.features.classifier.question import ClassifierAnswer, ClassifierAnswerInvalid
from tests.docs.recipes import DOCS
from tests.features.sessions.test_sessions import CALL, RESULT, said, user
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of
from tests.fixtures.several import Behind, behind, counted, policy_of
from tests.fixtures.targets import light_and_large
from tests.fixtures.upstream import Upstream, serving
from tests.routing.test_dispatch import EASY, HARD, observe

Script = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
PATIENT = "5s"  # where the classifier answers
SHORT = "20ms"  # where the test waits for the time to pass
COUNTS = "classifier_requests"


def answers(value: Any, status: int = 200) -> Script:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(value, status=status)

    return answer


def raw(body: bytes) -> Script:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=body)

    return answer


def rule(classifier: Upstream, timeout: str = PATIENT, target: str = "light: light, large: large") -> str:
    url = classifier.url.replace("/v1", "/classify")
    return f"{target}, complexity: {{adapter: http, url: '{url}', timeout: {timeout}}}"


@asynccontextmanager
async def classified(
    tmp_path: Path, classifier: Upstream, within: str = PATIENT, *, route: str = "", more: str = "", **options: Any
) -> AsyncIterator[Behind]:
    policy = policy_of(route or rule(classifier, within), more=more)
    async with behind(tmp_path, policy, "light", "large", **options) as found:
        yield found


@pytest.fixture
async def classifier() -> AsyncIterator[Upstream]:
    async with serving(Upstream("classifier")) as upstream:
        upstream.answer = answers({"score": 0.73})
        yield upstream


async def asked(served: Served, question: str, **headers: str) -> tuple[str, str]:
    """Return the backend and the complexity of a question."""
    answer = await served.chat(question, headers=headers)
    assert answer.status == 200, answer.body
    return answer.headers["x-nearhit-backend"], answer.headers["x-nearhit-complexity"]


async def test_its_score_chooses_the_tier_and_is_the_one_in_the_header(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        assert await asked(served, EASY) == ("large", "0.73")
        classifier.answer = answers({"score": 0.21, "model": "of no interest"})
        assert await asked(served, HARD) == ("light", "0.21")
        assert counted(served, COUNTS) == {"answered": 2}


async def test_its_tier_chooses_the_tier(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        classifier.answer = answers({"tier": "large"})
        assert await asked(served, EASY) == ("large", "0.75")
        classifier.answer = answers({"tier": "light"})
        assert await asked(served, HARD) == ("light", "0.25")


@pytest.mark.parametrize(
    ("name", "score"), [("light", 0.1), ("mid", 0.5), ("large", 0.9), ("big", 0.9), ("other", 0.5)]
)
def test_a_tier_stands_for_the_middle_of_its_scores(name: str, score: float) -> None:
    target = Target((Tier("light", "small"), Tier("mid", "mid"), Tier("large", "big")), (0.2, 0.8))
    if name == "other":
        with pytest.raises(ClassifierAnswerInvalid, match="expected one of light, mid, large"):
            score_of(ClassifierAnswer(tier=name), target)
    else:
        assert score_of(ClassifierAnswer(tier=name), target) == pytest.approx(score)


@pytest.mark.parametrize("threshold", [0.0, 0.01, 0.5, 0.99])
def test_the_score_of_a_tier_chooses_that_tier(threshold: float) -> None:
    target = light_and_large("small", "big", threshold)
    assert (
        score_of(ClassifierAnswer(tier="light"), target) <= threshold < score_of(ClassifierAnswer(tier="large"), target)
    )


async def test_it_gets_the_text_and_no_credentials(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        headers = {"authorization": "Bearer secret", "cookie": "a=b", "x-api-key": "secret"}
        await served.chat(EASY, headers=headers, max_tokens=50)
        (call,) = classifier.calls
        assert call.json == {
            "text": EASY,
            "route": "default",
            "model": "m",
            "operation": "chat.completions",
            "max_tokens": 50,
        }
        assert (call.method, call.path) == ("POST", "/classify")
        assert not {"authorization", "cookie", "x-api-key", "user-agent"} & {name.lower() for name in call.headers}
        assert b"secret" not in call.body


@pytest.mark.parametrize("action", ["bypass", "redact-key"])
async def test_it_gets_no_personal_data_that_the_route_keeps_out(
    classifier: Upstream, tmp_path: Path, action: str
) -> None:
    cache = "cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.9}}"
    rules = f"{cache}\n    privacy: {{pii: [email], action: {action}}}"
    async with behind(tmp_path, policy_of(rule(classifier), rules), "light", "large") as (served, _):
        await asked(served, "Write to ann@example.org")
        assert classifier.calls[0].json["text"] == "Write to <email>"


async def test_a_long_text_is_cut(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        await served.chat("word " * MAX_TEXT)
        assert len(classifier.calls[0].json["text"]) == MAX_TEXT


async def test_a_hit_asks_no_classifier(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        await served.chat(EASY)
        answer = await served.chat(EASY)
        assert "hit" in answer.headers["Cache-Status"]
        assert len(classifier.calls) == 1


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        (answers({"score": 0.9}, 500), "failed"),
        (answers({"score": 0.9}, 302), "failed"),
        (answers({"score": 1.01}), "invalid"),
        (answers({"score": True}), "invalid"),
        (answers({"score": "0.9"}), "invalid"),
        (answers({"tier": "huge"}), "invalid"),
        (answers({"tier": 3}), "invalid"),
        (answers({"score": 0.9, "tier": "large"}), "invalid"),
        (answers({}), "invalid"),
        (answers([0.9]), "invalid"),
        (raw(b""), "invalid"),
        (raw(b'{"score": NaN}'), "invalid"),
        (raw(b'{"score": 0.9, "more": "' + b"x" * 5000 + b'"}'), "invalid"),
    ],
)
async def test_a_bad_answer_means_the_own_score(
    classifier: Upstream, tmp_path: Path, script: Script, outcome: str
) -> None:
    classifier.answer = script
    async with classified(tmp_path, classifier) as (served, _):
        backend, own = await asked(served, EASY)
        assert (backend, own) == ("light", await own_score(served, EASY))
        assert counted(served, COUNTS) == {outcome: 1}


async def own_score(served: Served, question: str) -> str:
    """Return the gateway's own score of a text."""
    return f"{served.gateway.parts.space.complexity.judge(question, None, None).score:.2f}"


async def test_a_late_answer_means_the_own_score(classifier: Upstream, tmp_path: Path) -> None:
    classifier.gate.clear()
    async with classified(tmp_path, classifier, SHORT) as (served, _):
        assert await asked(served, EASY) == ("light", await own_score(served, EASY))
        assert (await asked(served, HARD))[0] == "large"
        assert counted(served, COUNTS) == {"late": 2}


async def test_an_address_where_nobody_listens_means_the_own_score(tmp_path: Path) -> None:
    nobody = Upstream("classifier", url="http://127.0.0.1:9/v1")
    async with classified(tmp_path, nobody) as (served, _):
        assert (await asked(served, HARD))[0] == "large"
        assert counted(served, COUNTS) == {"failed": 1}


async def test_a_classifier_that_fails_is_paused_and_tried_again(classifier: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    classifier.answer = answers({}, 503)
    async with classified(tmp_path, classifier, clock=clock) as (served, _):
        for at in range(FAILURES + 3):
            await served.chat(f"{EASY} {at}")
        assert counted(served, COUNTS) == {"failed": FAILURES, "paused": 3}
        assert len(classifier.calls) == FAILURES
        classifier.answer = answers({"score": 0.9})
        clock.advance(1.1)
        assert await asked(served, EASY) == ("large", "0.90")
        assert await asked(served, "What day is it?") == ("large", "0.90")
        assert counted(served, COUNTS) == {"failed": FAILURES, "paused": 3, "answered": 2}


async def test_a_tier_that_the_route_does_not_have_is_no_reason_for_a_pause(
    classifier: Upstream, tmp_path: Path
) -> None:
    classifier.answer = answers({"tier": "unsure"})
    async with classified(tmp_path, classifier) as (served, _):
        for at in range(FAILURES + 1):
            await served.chat(f"{EASY} {at}")
        assert counted(served, COUNTS) == {"invalid": FAILURES + 1}


async def test_its_questions_at_once_are_bounded(classifier: Upstream, tmp_path: Path) -> None:
    classifier.gate.clear()
    async with classified(tmp_path, classifier) as (served, _):
        tasks = [asyncio.create_task(served.chat(f"{EASY} {at}")) for at in range(MAX_INFLIGHT + 1)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        assert counted(served, COUNTS) == {"busy": 1}
        classifier.gate.set()
        await asyncio.gather(*tasks)
        assert len(classifier.calls) == MAX_INFLIGHT


async def test_a_spent_budget_asks_no_classifier(classifier: Upstream, tmp_path: Path) -> None:
    classifier.gate.clear()
    async with classified(tmp_path, classifier) as (served, _):
        answer = await served.chat(EASY, headers={"x-latency-budget-ms": "20"})
        assert answer.status in (200, 504)
        assert counted(served, COUNTS) == {"no-time": 1}
        for _ in range(FAILURES):  # they say nothing about the classifier, so it is not paused
            await served.chat(EASY, headers={"x-latency-budget-ms": "20", "cache-control": "no-store"})
        classifier.gate.set()
        assert (await asked(served, "What day is it?"))[1] == "0.73"


async def test_a_budget_overrules_its_choice(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        observe(served, "large", 500.0)
        observe(served, "light", 0.1)
        assert await asked(served, EASY, **{"x-latency-budget-ms": "30000"}) == ("light", "0.73")


async def test_a_share_orders_requests_by_its_scores(classifier: Upstream, tmp_path: Path) -> None:
    route = rule(classifier, target="light: light, large: large, large_share: 25%")
    hard = {3, 7, 11, 15}

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"score": 0.95 if int(call["text"].split()[-1]) % 4 == 3 else 0.05})

    classifier.answer = answer
    async with classified(tmp_path, classifier, route=route) as (served, _):
        backends = [(await asked(served, f"{EASY} {at}"))[0] for at in range(60)]
        large = [at for at, backend in enumerate(backends) if backend == "large"]
        assert hard & set(large)
        assert sum(at % 4 == 3 for at in large) > len(large) / 2


async def test_a_cascade_tries_the_light_model_where_it_says_large(classifier: Upstream, tmp_path: Path) -> None:
    cascade = "light: light, large: large, cascade: {check: consistency, accept_above: 0.5, samples: 2}"
    async with classified(tmp_path, classifier, route=rule(classifier, target=cascade)) as (served, upstreams):
        await served.chat(EASY)
        assert len(upstreams["light"].calls) == 2
        classifier.answer = answers({"score": 0.1})
        await served.chat(HARD)
        assert len(upstreams["light"].calls) == 3


SESSION = "    session: {by: [turns]}\n"


async def test_a_short_reply_is_as_hard_as_the_question_that_it_answers(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier, more=SESSION) as (served, _):
        turns = [user(HARD), said("Shall I go on?"), user("yes")]
        answer = await served.post("/v1/chat/completions", {"model": "m", "messages": turns})
        assert answer.headers["x-nearhit-complexity"] == "0.73"
        assert [call.json["text"] for call in classifier.calls] == [HARD]


async def test_a_tool_loop_asks_it_once(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier, more=SESSION) as (served, _):
        turns = [user(EASY)]
        for _ in range(3):
            answer = await served.post("/v1/chat/completions", {"model": "m", "messages": turns})
            assert answer.headers["x-nearhit-backend"] == "large"
            assert answer.headers["x-nearhit-complexity"] == "0.73"
            turns += [CALL, RESULT]
        assert len(classifier.calls) == 1


async def test_a_new_policy_uses_its_classifier_and_keeps_the_state_of_a_shared_one(
    classifier: Upstream, tmp_path: Path
) -> None:
    classifier.answer = answers({}, 503)
    clock = FakeClock()  # no pause ends here
    async with serving(Upstream("other")) as other, classified(tmp_path, classifier, clock=clock) as (served, _):
        other.answer = answers({"score": 0.9})
        config = config_of(
            tmp_path, {name: {"adapter": "openai", "url": classifier.url} for name in ("light", "large")}
        )
        for at in range(FAILURES):
            await served.chat(f"{EASY} {at}")
        again = policy_of(rule(classifier), more="    expose_headers: on\n")
        served.gateway.apply(policy_from_text(again, "policy.yaml", config))
        await served.chat(f"{EASY} again")
        assert counted(served, COUNTS) == {"failed": FAILURES, "paused": 1}
        served.gateway.apply(policy_from_text(policy_of(rule(other)), "policy.yaml", config))
        assert await asked(served, f"{EASY} other") == ("large", "0.90")


async def test_the_classifier_of_the_cookbook_chooses_the_tier(tmp_path: Path) -> None:
    recipe = (DOCS / "cookbook.md").read_text().partition("## A classifier of one's own")[2]
    code = recipe.partition("```python\n")[2].partition("```")[0]
    definition, start, _ = code.rpartition("http.server.ThreadingHTTPServer")
    assert start
    names: dict[str, Any] = {}
    exec(definition, names)
    with ThreadingHTTPServer(("127.0.0.1", 0), names["Classify"]) as server:
        running = asyncio.get_running_loop().run_in_executor(None, server.serve_forever)
        url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            async with classified(tmp_path, Upstream("classifier", url=url)) as (served, _):
                assert await asked(served, "Is this contract valid?") == ("large", "0.90")
                assert await asked(served, HARD) == ("light", "0.20")
        finally:
            server.shutdown()
            await running


async def test_explain_names_who_scored(classifier: Upstream, tmp_path: Path) -> None:
    async with classified(tmp_path, classifier) as (served, _):
        body = {"model": "m", "messages": [user(EASY)]}

        async def explained() -> dict[str, Any]:
            async with served.session.post(served.admin_url + "/admin/explain", json=body) as response:
                found: dict[str, Any] = await response.json()
                return found

        found = await explained()
        assert (found["backend"], found["complexity"], found["signal"]) == ("large", 0.73, "classifier")
        assert found["scored_by"] == f"the classifier at {classifier.url.replace('/v1', '/classify')}"
        classifier.answer = answers({"score": 2})
        found = await explained()
        assert (found["backend"], found["signal"]) == ("light", "text")
        assert found["scored_by"].endswith("does not count: its score is 2, expected a number in [0, 1]")
        assert found["scored_by"].startswith("the shipped score")
