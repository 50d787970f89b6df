"""Free labels from misses, and hits that are checked against a fresh answer once the client has its own."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from math import isnan
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.background_calls import MAX_AT_ONCE, MAX_WAITING
from gateway.cache.learned_state import StateKeeper
from gateway.cache.threshold.route_control import Observation
from gateway.cache.threshold.wrong_hits import Label
from gateway.context import RequestContext
from gateway.dialects.openai.dialect import OpenAI
from gateway.entries import Embedding
from gateway.errors import EmbedderUnavailable
from gateway.observability.access_log import AccessLog
from gateway.outcomes import Refusal
from gateway.ports import Acceptance
from gateway.streams import BufferedBody
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, judged_of, vector_of
from tests.fixtures.fakes import MemoryStore
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream, completion, question_of, stream
from tests.fixtures.waiting import until

POLICY = """
version: 1
routes:
  - name: default
    match: {{}}
    cache: {{exact: {exact}, semantic: {{ttl: 1h, {accept}{more}}}}}
    route: {{backend: main}}
"""
STORED, ASKED = "alpha beta gamma delta epsilon", "alpha beta gamma delta zeta"
OTHER = "one two three four five six seven eight nine ten"
HI = OpenAI().parse("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}', {})
HIT, MISS = "nearhit; hit; detail=semantic", "nearhit; fwd=miss; stored"


def policy(more: str = ", audit: 100%", accept: str = "min_similarity: 0.5", exact: str = "{ttl: 1h}") -> str:
    return POLICY.format(more=more, accept=accept, exact=exact)


def config(folder: Path, upstream: Upstream, **sections: Any) -> Any:
    priced = {"input_per_million": 0, "output_per_million": 20_000}  # 0.1 dollars for the upstream's five tokens
    backends = {
        "main": {"adapter": "openai", "url": upstream.url, "price": priced},
        "judge": {"adapter": "openai", "url": upstream.url, "model": "judge", "price": priced},
    }
    return config_of(folder, backends, **sections)


Start = Callable[..., Any]


@pytest.fixture
def start(upstream: Upstream, tmp_path: Path) -> Start:
    def start(text: str | None = None, **more: Any) -> Any:
        return gateway_of(config(tmp_path, upstream), text or policy(), **more)

    return start


def answering(says: Callable[[str], str], judge: str = "UNSURE") -> Any:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        text = judge if call["model"] == "judge" else says(question_of(call))
        return await stream(request, call, text) if call.get("stream") else web.json_response(completion(call, text))

    return answer


def same(_: str) -> str:
    return "It is in the settings."


def other(question: str) -> str:
    return "It is in the settings." if question == STORED else OTHER


def unclear(question: str) -> str:
    """Nearly the same words, and another number: embeddings cannot tell, and the words make one doubt."""
    days = 30 if question == STORED else 14
    return f"You can send it back within {days} days as long as it has not been used and still is in its own box."


def audits(served: Served) -> dict[str, float]:
    return {outcome: n for (_, outcome), n in served.gateway.parts.telemetry.audits.values.items()}


def labels(served: Served) -> dict[tuple[str, str], float]:
    return {(source, label): n for (_, source, label), n in served.gateway.parts.telemetry.labels.values.items()}


async def audited(served: Served) -> None:
    await until(lambda: len(served.gateway.parts.space.audits) == 0)


async def hit(served: Served, **fields: Any) -> Answer:
    await served.chat(STORED)
    answer = await served.chat(ASKED, **fields)
    assert answer.cache_status == HIT
    return answer


# Misses


@pytest.fixture
async def promising(start: Start) -> AsyncIterator[Served]:
    """With a promise, under which a neighbour this far away is refused at first."""
    async with start(policy(accept="max_wrong_hits: 0.1%", more="")) as served:
        yield served


async def two_misses(served: Served) -> None:
    for question in (STORED, ASKED):
        assert (await served.chat(question)).cache_status == MISS
    await until(lambda: served.gateway.parts.space.comparisons.idle)


@pytest.mark.parametrize(("says", "label"), [(same, "right"), (other, "wrong"), (unclear, "undecided")])
async def test_a_miss_says_for_free_whether_its_neighbour_would_have_been_right(
    promising: Served, upstream: Upstream, says: Callable[[str], str], label: str
) -> None:
    upstream.answer = answering(says)
    await two_misses(promising)
    assert labels(promising) == {("miss", label): 1}
    # An equal answer says nothing before the others of the route are known.
    assert promising.gateway.parts.space.controls.of("default").labels == (1 if label == "wrong" else 0)
    assert len(upstream.chats) == 2, "nothing was asked for it"


async def test_a_streamed_miss_teaches_like_a_whole_one(promising: Served, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    await promising.chat(STORED)
    await promising.chat(ASKED, stream=True)
    await until(lambda: promising.gateway.parts.space.comparisons.idle)
    assert labels(promising) == {("miss", "right"): 1}


async def test_what_is_not_stored_teaches_nothing(promising: Served, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    await promising.chat(STORED)
    await promising.chat(ASKED, headers={"Cache-Control": "no-store"})

    async def unfinished(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "It is in", finish="length"))

    upstream.answer = unfinished
    await promising.chat(ASKED)
    await until(lambda: promising.gateway.parts.space.comparisons.idle)
    assert labels(promising) == {}


async def test_a_neighbour_that_a_check_refused_teaches_nothing(promising: Served) -> None:
    """The check would have refused it at any threshold."""
    await promising.chat("Translate to French: good morning, how are you today?")
    await promising.chat("Translate to French: good evening, how are you today?")
    await until(lambda: promising.gateway.parts.space.comparisons.idle)
    assert labels(promising) == {}


async def test_a_plain_threshold_learns_nothing_from_misses(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    async with start(policy(accept="min_similarity: 0.99", more="")) as served:
        await two_misses(served)
        assert labels(served) == {}


async def test_with_learning_off_labels_measure_and_move_nothing(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(other)
    async with start(policy(accept="max_wrong_hits: 0.1%", more=", learn: off")) as served:
        control = served.gateway.parts.space.controls.of("default")
        before = control.threshold(Acceptance(max_wrong_hits=0.001))
        await two_misses(served)
        assert labels(served) == {("miss", "wrong"): 1}
        assert (control.labels, control.version) == (0, 0)
        assert control.threshold(Acceptance(max_wrong_hits=0.001)) == pytest.approx(before, abs=0.05)


async def test_too_many_misses_at_once_drop_the_oldest(promising: Served) -> None:
    parts = promising.gateway.parts
    budget = parts.space.comparisons.budget
    comparisons = AnswerComparer(parts.space.embedder, parts.space.labels, parts.telemetry, budget, limit=2)
    for seed in range(5):
        comparisons.enqueue_miss(missed(promising), entry_of(f"fresh-{seed}"))
    assert parts.telemetry.comparisons_dropped.values[("default", "count")] == 3
    assert not comparisons.idle


class HalfRead:
    """An embedder of scripts that take more tokens than it reads; without `up` one that does not answer."""

    fingerprint, dimension = "half", 384

    def __init__(self, *, up: bool) -> None:
        self._up = up

    async def embed_idle(self, texts: Sequence[str]) -> list[Embedding]:
        if not self._up:
            raise EmbedderUnavailable("it is down")
        return [Embedding(vector_of(len(text), 384), 256, truncated=True) for text in texts]


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("answers", [("one answer", "another one"), ("a" * 4000, "b" * 4000)])
async def test_what_the_embedder_cannot_tell_is_undecided(
    promising: Served, answers: tuple[str, str], up: bool
) -> None:
    """It is down, or does not read the texts to their end."""
    stored, fresh = (
        entry_of(text[0], payload=(json.dumps(completion({"model": "m"}, text)).encode(),)) for text in answers
    )
    parts = promising.gateway.parts
    comparisons = AnswerComparer(HalfRead(up=up), parts.space.labels, parts.telemetry, parts.space.comparisons.budget)
    assert await comparisons.label(HI, stored, fresh) is Label.UNDECIDED
    assert await comparisons.label(HI, stored, stored) is Label.RIGHT, "the same needs no embedder"
    assert await comparisons.label(HI, stored, entry_of("x", payload=(b"{}",))) is None


def missed(served: Served) -> RequestContext:
    """A request whose neighbour was refused."""
    request = RequestContext(
        request_id="id",
        method="POST",
        path="/v1/chat/completions",
        query="",
        headers={},
        body_source=BufferedBody(),
        clock=served.gateway.parts.clock,
    )
    request.call, request.route, request.judged = HI, "default", judged_of(reason=Refusal.SIMILARITY)
    return request


# Hits


async def test_a_hit_that_was_right_is_counted_and_goes_on_being_served(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    async with start() as served:
        await hit(served)
        await audited(served)
        assert audits(served) == {"right": 1}
        assert labels(served) == {("audit", "right"): 1}
        estimate = served.gateway.parts.space.controls.of("default").estimate()
        # One answer for both questions: an equal one to another question is as likely as not.
        assert isnan(estimate.of_served) and (estimate.of_served_low, estimate.of_served_high) == (0.0, 1.0)
        assert len(upstream.chats) == 2
        async with served.session.get(served.admin_url + "/metrics") as response:
            metrics = await response.text()
        assert 'nearhit_audits_total{outcome="right",route="default"} 1.0' in metrics
        assert 'nearhit_labels_total{label="right",route="default",source="audit"} 1.0' in metrics
        assert 'nearhit_wrong_of_served_ratio{route="default"} NaN' in metrics
        assert (await served.chat("alpha beta gamma delta eta")).cache_status == HIT


@pytest.mark.parametrize("streams", [False, True])
async def test_a_hit_that_was_wrong_is_not_served_for_that_question_again(
    start: Start, upstream: Upstream, streams: bool
) -> None:
    upstream.answer = answering(other)
    async with start(policy(exact="off")) as served:
        first = await hit(served, stream=streams)
        assert b"settings" in first.body
        await audited(served)
        assert audits(served) == {"wrong": 1}
        assert served.gateway.parts.space.controls.of("default").estimate().of_served == 1.0
        assert len(upstream.chats) == 2
        again = await served.chat(ASKED)
        assert again.text == OTHER, "the fresh answer has been stored"
    async with start(policy(exact="off", more="")) as served:
        await recovered(served)
        await served.gateway.parts.store.delete([s.fingerprint async for s in fresh(served)])
        assert (await served.chat(ASKED)).cache_status == MISS, "it is remembered what was wrong, not just replaced"


async def fresh(served: Served) -> AsyncIterator[Any]:
    """The entries that audits have stored."""
    store = served.gateway.parts.store
    async for stored in store.vectors():
        entry = await store.get(stored.fingerprint)
        if entry is not None and entry.question == ASKED:
            yield entry


async def test_after_an_audit_the_same_question_is_an_exact_hit(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(other)
    async with start() as served:
        await hit(served)
        await audited(served)
        again = await served.chat(ASKED)
        assert (again.text, again.cache_status.startswith("nearhit; hit; detail=exact")) == (OTHER, True)


async def test_an_audit_is_nobodys_request_and_holds_nobody_up(upstream: Upstream, tmp_path: Path) -> None:
    log = io.StringIO()
    upstream.answer = answering(same)
    access_log = AccessLog(log)
    async with gateway_of(config(tmp_path, upstream), policy(), access_log=access_log) as served:
        await served.chat(STORED)
        upstream.gate.clear()
        assert (await served.chat(ASKED)).cache_status == HIT, "the client does not wait for the audit"
        await until(lambda: len(upstream.chats) == 2)
        assert served.gateway.parts.flights == {}
        assert (await served.chat(ASKED)).cache_status == HIT, "nor does who asks the same meanwhile"
        upstream.gate.set()
        await audited(served)
        requests = {key[2]: n for key, n in served.gateway.parts.telemetry.requests.values.items()}
        assert requests == {"miss": 1, "semantic": 2}
        assert audits(served) == {"right": 1, "skipped-busy": 1}
    assert len([line for line in log.getvalue().splitlines() if json.loads(line)]) == 3


async def test_hits_are_chosen_by_chance(start: Start, upstream: Upstream) -> None:
    numbers = iter([0.5, 0.021, 0.019])
    async with start(policy(more=", audit: 2%"), draw=lambda: next(numbers)) as served:
        for _ in range(3):
            await hit(served)
        await audited(served)
        assert sum(audits(served).values()) == 1


async def test_without_an_audit_in_the_policy_nothing_is_audited(start: Start, upstream: Upstream) -> None:
    async with start(policy(more=""), draw=lambda: 0.0) as served:
        await hit(served)
        assert audits(served) == {}
        assert len(upstream.chats) == 1


@pytest.mark.parametrize("directive", ["only-if-cached", "no-store"])
async def test_nothing_is_sent_for_a_client_that_wants_nothing_sent_or_stored(
    start: Start, upstream: Upstream, directive: str
) -> None:
    async with start() as served:
        await served.chat(STORED)
        answer = await served.chat(ASKED, headers={"Cache-Control": directive})
        assert audits(served) == {}
        assert len(upstream.chats) == (1 if answer.cache_status == HIT else 2)
        assert len(served.gateway.parts.space.audits) == 0


@pytest.mark.parametrize("failure", ["status", "cut", "gone"])
async def test_an_audit_that_fails_changes_nothing(start: Start, upstream: Upstream, failure: str) -> None:
    async def failing(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if failure == "status":
            return web.json_response({"error": {"message": "no"}}, status=500)
        if failure == "cut":
            return await stream(request, call, "a b c d", cut=True)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with start() as served:
        await served.chat(STORED)
        upstream.answer = failing
        assert (await served.chat(ASKED, stream=failure == "cut")).cache_status == HIT
        await audited(served)
        assert audits(served) == {"failed": 1}
        assert labels(served) == {}
        assert (await served.chat(ASKED)).cache_status == HIT


async def test_so_many_at_once_and_no_more(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(same)
    async with start() as served:
        await served.chat(STORED)
        upstream.gate.clear()
        for i in range(MAX_AT_ONCE + MAX_WAITING + 2):
            assert (await served.chat(f"alpha beta gamma delta {chr(97 + i) * 5}")).cache_status == HIT
        await until(lambda: len(upstream.chats) == 1 + MAX_AT_ONCE)
        assert audits(served) == {"skipped-busy": 2}
        upstream.gate.set()
        await audited(served)
        assert audits(served) == {"skipped-busy": 2, "right": MAX_AT_ONCE + MAX_WAITING}


async def test_an_hours_audits_and_a_days_dollars_are_bounded(start: Start, upstream: Upstream) -> None:
    clock = FakeClock()
    rule = ", audit: {share: 100%, per_hour: 2, cost_per_day: 0.35}"
    upstream.answer = answering(same)
    async with start(policy(more=rule).replace("1h", "30d"), clock=clock) as served:
        await served.chat(STORED)

        async def ask(word: str) -> dict[str, float]:
            await served.chat(f"alpha beta gamma delta {word}")
            await audited(served)
            return audits(served)

        await ask("eta")
        assert await ask("theta") == {"right": 2}
        assert await ask("iota") == {"right": 2, "skipped-cost": 1}, "two an hour"
        clock.advance(3600)
        assert await ask("kappa") == {"right": 3, "skipped-cost": 1}
        assert await ask("lambda") == {"right": 3, "skipped-cost": 2}, "0.3 of 0.35 dollars are spent"
        assert served.gateway.parts.telemetry.audit_cost.values[("default",)] == pytest.approx(0.3)
        clock.advance(86400)
        assert await ask("mu") == {"right": 4, "skipped-cost": 2}


# The judge


@pytest.mark.parametrize(
    ("says", "outcome"), [("SAME", "right"), ("DIFFERENT", "wrong"), ("UNSURE", "undecided"), ("Ignore", "undecided")]
)
async def test_where_the_answers_do_not_tell_the_judge_is_asked(
    start: Start, upstream: Upstream, says: str, outcome: str
) -> None:
    upstream.answer = answering(unclear, judge=says)
    async with start(policy(more=", audit: {share: 100%, judge: judge}")) as served:
        await hit(served)
        await audited(served)
        assert audits(served) == {outcome: 1}
        call = upstream.chats[-1].json
        assert (call["model"], call["temperature"], len(call["messages"])) == ("judge", 0, 1)
        assert call["max_tokens"] <= 8
        asked = question_of(call)
        assert all(text in asked for text in (ASKED, unclear(STORED), unclear(ASKED)))
        assert served.gateway.parts.telemetry.audit_cost.values[("default",)] == pytest.approx(0.2)


async def test_the_judge_is_not_asked_where_the_answers_tell(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(other, judge="SAME")
    async with start(policy(more=", audit: {share: 100%, judge: judge}")) as served:
        await hit(served)
        await audited(served)
        assert audits(served) == {"wrong": 1}
        assert len(upstream.chats) == 2


async def test_the_judge_counts_against_the_bounds(start: Start, upstream: Upstream) -> None:
    upstream.answer = answering(unclear, judge="SAME")
    async with start(policy(more=", audit: {share: 100%, per_hour: 1, judge: judge}")) as served:
        await hit(served)
        await audited(served)
        assert audits(served) == {"undecided": 1}
        assert len(upstream.chats) == 2


async def test_a_judge_that_fails_decides_nothing(start: Start, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["model"] == "judge":
            return web.json_response({"error": "no"}, status=503)
        return web.json_response(completion(call, unclear(question_of(call))))

    upstream.answer = answer
    async with start(policy(more=", audit: {share: 100%, judge: judge}")) as served:
        await hit(served)
        await audited(served)
        assert audits(served) == {"undecided": 1}
        assert served.gateway.parts.telemetry.backend_requests.values[("judge", "503")] == 2, "once more"


# The end, and the next start


async def test_a_gateway_that_stops_ends_its_audits(start: Start, upstream: Upstream) -> None:
    before = asyncio.all_tasks()
    async with start() as served:
        await served.chat(STORED)
        upstream.gate.clear()
        await served.chat(ASKED)
        await until(lambda: len(upstream.chats) == 2)
    await until(lambda: upstream.cancelled == 1)
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks() - before}  # type: ignore[union-attr]
    assert not [name for name in names if "gateway" in name or "Audit" in name or "Background" in name]
    assert len(served.gateway.parts.space.audits) == 0


async def test_a_restart_finds_threshold_and_evidence_as_they_were(start: Start) -> None:
    text, promise = policy(accept="max_wrong_hits: 1%"), Acceptance(max_wrong_hits=0.01)
    async with start(text) as served:
        await recovered(served)
        control = served.gateway.parts.space.controls.of("default")
        at_first = control.threshold(promise)
        for seed in range(400):
            score = 0.6 + seed / 1000
            control.record_neighbour(score)
            control.learn(Observation(vector_of(seed, 384), score, 0.5, Label.WRONG))
        control.hit()
        control.audited(Label.WRONG, 0.5)
        moved = control.score(vector_of(399, 384), 0.8)
        learnt = control.threshold(promise), control.labels, control.version, control.estimate()
        assert learnt[0] != at_first
    async with start(text) as served:
        await recovered(served)
        control = served.gateway.parts.space.controls.of("default")
        assert (control.threshold(promise), control.labels, control.version, control.estimate()) == learnt
        assert control.score(vector_of(399, 384), 0.8) == pytest.approx(moved, abs=1e-3) != 0.8


async def test_what_was_learnt_otherwise_is_logged_and_forgotten(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async with start() as served:
        await recovered(served)
        await served.gateway.stores.redis.put_learning("default", b"of another verifier")
        served.gateway.parts.space.learning._saved["default"] = served.gateway.parts.space.controls.of("default").state
    async with start() as served:
        await recovered(served)
        assert served.gateway.parts.space.controls.of("default").labels == 0
    assert "the saved learned state does not fit" in caplog.text


async def test_nothing_is_saved_before_the_last_snapshot_has_been_read(served: Served) -> None:
    """A gateway that starts while its store is away must not replace what it knew by nothing."""
    store, controls = MemoryStore(FakeClock()), served.gateway.parts.space.controls
    await store.put_learning("default", controls.of("default").snapshot())
    known = await store.learning("default")
    learning = StateKeeper(controls, store)
    store.down = True
    controls.of("default").learn(Observation(vector_of(1, 384), 0.9, 0.5, Label.RIGHT))
    await learning.save()
    store.down = False
    await learning.save()
    assert await store.learning("default") == known
    await learning.restore()
    controls.of("default").learn(Observation(vector_of(2, 384), 0.9, 0.5, Label.RIGHT))
    await learning.save()
    assert await store.learning("default") != known
