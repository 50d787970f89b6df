"""Keeps the large model's answers for the training, and compares the versions of the light model with them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Counts
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gateway.cache.background_calls import BackgroundCalls
from gateway.cache.erasure import ErasureTarget, ErasureTraces, RecentErasures
from gateway.cache.stored_parts import REACHED, Part, Reach
from gateway.calls import Call
from gateway.config.policy.model import Route
from gateway.config.policy.parameters import untuned
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import BackendError, GatewayError, StoreUnavailable, UpstreamStreamError
from gateway.feature import Core
from gateway.features.light.judge import bucket_of, is_slower
from gateway.features.light.metrics import RolloutMetrics
from gateway.features.light.rows import AnsweredRow, is_teachable, same_label
from gateway.features.light.rule import RolloutRule, rule_of
from gateway.features.light.state import Rollout
from gateway.features.light.store import RolloutStore
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.priority import Priority
from gateway.routing.tuned_pool import pools_of
from gateway.streams import StreamObserver, buffer_response, with_observer
from gateway.upstream.model_versions import ModelVersions

LOG = logging.getLogger("nearhit.light")
MAX_BYTES = 64 * 1024  # of an answer; a class is shorter
MAX_BUFFERED = 2_000  # rows that wait for the store; more are dropped
LATE_S = 300.0  # a row that comes within that time after an erasure may be of a question before it

ROWS = Part(
    "rollout",
    "questions for the training of light models",
    ("rollout:*",),
    (),
    Reach(
        erase=REACHED,
        purge="they stay for the time of their route's rollout.keep",
        export="nearhit light --rows FILE writes them",
        explain="no decision reads them",
        simulate="nearhit light reads them",
    ),
    counted=True,
    own=True,
)


@dataclass(frozen=True, slots=True)
class ServedQuestion:
    """A question that a backend has answered, as text."""

    request: RequestContext
    call: Call
    answer: str
    tier: str
    fell_back: bool  # no version of the light model took it


def _counts(after: tuple[bool, float] | None, before: tuple[bool, float] | None, factor: float) -> dict[str, int]:
    """Return what an audit adds to the evidence. A version that failed was wrong, too."""
    right, right_before = after is not None and after[0], before is not None and before[0]
    counts = {
        "audits": 1,
        "right": int(right),
        "right_before": int(right_before),
        "won": int(right and not right_before),
        "lost": int(right_before and not right),
    }
    if after is not None and before is not None:
        counts["slower"] = int(is_slower(after[1], before[1], factor))
        counts["faster"] = int(is_slower(before[1], after[1], factor))
    if after is not None:
        counts[f"time:{bucket_of(after[1])}"] = 1
    if before is not None:
        counts[f"time_before:{bucket_of(before[1])}"] = 1
    return counts


def _collector(done: Callable[..., None]) -> StreamObserver[Event]:
    """Return an observer that hands the events of a complete stream to `done`, unless they are too long."""
    payload: list[bytes] = []

    def on_events(events: Sequence[Event]) -> Sequence[Event]:
        if sum(map(len, payload)) <= MAX_BYTES:
            payload.extend(event.data for event in events)
        return events

    def on_end() -> None:  # not called if the client leaves early
        if sum(map(len, payload)) <= MAX_BYTES:
            done(tuple(payload), streamed=True)

    return StreamObserver(on_events, on_end)


class Comparisons:
    """`Comparisons` observes the answers of routes with a rollout. `rollout_of` returns the state of a route."""

    part = ROWS

    def __init__(
        self,
        core: Core,
        store: RolloutStore,
        metrics: RolloutMetrics,
        rollout_of: Callable[[str], Rollout],
        versions_of: Callable[[Route], Sequence[ModelVersions]],
    ) -> None:
        self._core = core
        self._store = store
        self._metrics = metrics
        self._rollout_of = rollout_of
        self._versions_of = versions_of
        self._calls = BackgroundCalls(core.clock)
        self._rows: dict[str, list[AnsweredRow]] = {}
        self._evidence: dict[tuple[str, int], Counts[str]] = {}
        self._erased = RecentErasures(core.clock.wall)
        self._writing = asyncio.Lock()

    async def close(self) -> None:
        await self._calls.close()
        await self.flush()

    # Observing

    def observe(self, route: Route, rule: RolloutRule, inner: Handler) -> Handler:
        """Return a step that passes each answer on unchanged, and reads its text when it is complete."""

        async def handle(request: RequestContext) -> Response:
            response = await resolve_response(inner(request))
            call, provenance = request.call, response.provenance
            if call is None or call.embeds or call.passes or call.stateful or response.status != 200:
                return response
            if request.work.internal or request.directives.no_store or provenance.tier is None:
                return response
            done = partial(self._observe_answer, route, rule, request, call, response)
            body = response.body
            if isinstance(body, FullBody) and len(body.data) <= MAX_BYTES:
                done((body.data,), streamed=False)
            elif isinstance(body, EventStream):
                return replace(response, body=EventStream(with_observer(body.events, _collector(done))))
            return response

        return handle

    def _observe_answer(
        self,
        route: Route,
        rule: RolloutRule,
        request: RequestContext,
        call: Call,
        response: Response,
        payload: Sequence[bytes],
        *,
        streamed: bool,
    ) -> None:
        tiers, tier = route.target.tiers, response.provenance.tier
        if tier not in (tiers[0].name, tiers[-1].name):
            return
        text = call.dialect.answer_text(call, payload, streamed)
        if text is None:
            return
        meant = request.estimates.tier_decision
        fell_back = tier == tiers[-1].name and meant is not None and not meant.large
        question = ServedQuestion(request, call, text, tier, fell_back)
        if tier == tiers[-1].name:
            self._keep(route.name, rule, question, text)
            if question.fell_back and self._core.draw() < rule.audit:
                self._start(route, rule, question, 0.0, lambda: self._compare(route, question, text))
        elif self._core.draw() < rule.audit:
            price = self._core.prices[untuned(tiers[-1].backend)].price(call.model)
            expected = price.of(len(call.prompt) // 4, len(text) // 4 + 1)
            self._start(route, rule, question, expected, lambda: self._audit(route, rule, question))

    def _start(
        self,
        route: Route,
        rule: RolloutRule,
        question: ServedQuestion,
        expected: float,
        work: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        if self._rollout_of(route.name).subject is None:
            return
        skipped = self._calls.start(question.request.id, route.name, rule.audits, expected, work)
        if skipped is not None:
            self._metrics.audits.add(route.name, skipped)

    def on_call(self, route: str, version: str, answered: bool) -> None:
        """Count a call of a client for the version that took it."""
        rollout = self._rollout_of(route)
        suffix = {rollout.subject: "", rollout.reference: "_before"}.get(version)
        if suffix is not None:
            self._count(route, rollout, {f"calls{suffix}": 1, f"errors{suffix}": int(not answered)})

    # Comparing

    async def _audit(self, route: Route, rule: RolloutRule, question: ServedQuestion) -> None:
        """Ask the large model, too, and compare its answer with those of the versions."""
        name = route.target.tiers[-1].backend
        request = question.request.internal_child("rollout")
        request.priority = Priority.LOW
        async with self._calls.limiter:
            try:
                answer = await buffer_response(
                    await pools_of(route.target, self._core.pools)[name].call(request), MAX_BYTES
                )
            except (GatewayError, UpstreamStreamError):
                answer = None
        if answer is None:
            self._metrics.audits.add(route.name, "failed")
            return
        call = question.call
        seen = call.dialect.inspect(call, answer.payload, answer.streamed)
        cost = self._core.prices[untuned(name)].price(call.model).of(*seen.tokens)
        self._metrics.cost.add(route.name, amount=cost)
        label = call.dialect.answer_text(call, answer.payload, answer.streamed)
        if label is None:
            self._metrics.audits.add(route.name, "failed")
            return
        self._keep(route.name, rule, question, label)
        await self._compare(route, question, label)

    async def _compare(self, route: Route, question: ServedQuestion, label: str) -> None:
        """Ask the version that is judged, and the one that it is compared with, at the first server that answers."""
        rollout = self._rollout_of(route.name)
        subject, reference, slower = rollout.subject, rollout.reference, rule_of(route).slower
        if subject is None:
            return
        for served in self._versions_of(route):
            answers: dict[str | None, tuple[bool, float] | None] = {}
            both = [subject] if reference is None else [subject, reference]
            for version in both if self._core.draw() < 0.5 else both[::-1]:  # the first call of two takes longer
                answers[version] = await self._ask(served, version, question.call.prompt, label)
            after, before = answers[subject], answers.get(reference)
            if after is None and (before is None or reference is None):
                continue  # the server fails, which says nothing about a version
            self._count(route.name, rollout, _counts(after, before, slower))
            self._metrics.audits.add(route.name, "agrees" if after is not None and after[0] else "differs")
            return
        self._metrics.audits.add(route.name, "failed")

    async def _ask(self, served: ModelVersions, version: str, text: str, label: str) -> tuple[bool, float] | None:
        """Return whether a version answers as the large model does, and its seconds; None if it fails."""
        began = self._core.clock.monotonic()
        try:
            answer = await served.answer(version, text)
        except BackendError:
            return None
        return same_label(answer, label), self._core.clock.monotonic() - began

    def _count(self, route: str, rollout: Rollout, counts: dict[str, int]) -> None:
        self._evidence.setdefault((route, rollout.epoch), Counts()).update(counts)

    # Rows

    def _keep(self, route: str, rule: RolloutRule, question: ServedQuestion, label: str) -> None:
        request, text, at = question.request, question.call.prompt, self._core.clock.wall()
        if not is_teachable(text, label) or sum(map(len, self._rows.values())) >= MAX_BUFFERED:
            return
        subjects, tenant = tuple(request.subjects), request.client.tenant
        if self._erased.includes(subjects, tenant, at - LATE_S):
            return
        row = AnsweredRow(at, at + rule.keep, text, label.strip(), tenant, subjects)
        self._rows.setdefault(route, []).append(row)

    async def flush(self) -> None:
        """Write what waits. Rows that a failing store does not take are dropped, and evidence stays for the next
        time."""
        async with self._writing:
            rows, self._rows = self._rows, {}
            evidence, self._evidence = self._evidence, {}
            try:
                for route, each in rows.items():
                    await self._store.add_rows(route, each)
                for key in list(evidence):
                    await self._store.count(*key, {name: n for name, n in evidence[key].items() if n})
                    del evidence[key]
            except StoreUnavailable:
                for key, counts in evidence.items():
                    self._evidence.setdefault(key, Counts()).update(counts)

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Remove the rows of the target, and return their number. Raise `StoreUnavailable`."""
        if not dry_run:
            self._erased.add(target)
        await self.flush()
        found = 0
        for route in await self._store.routes():
            rows = [row for row in await self._store.rows(route) if _is_of(target, row)]
            found += len(rows)
            for row in rows:
                traces.add(row.text)
            if rows and not dry_run:
                await self._store.remove_rows(route, rows)
        return found


def _is_of(target: ErasureTarget, row: AnsweredRow) -> bool:
    return row.at <= target.at + LATE_S and target.matches(row.subjects, row.tenant)
