"""The steps of the guard: a request is judged before any lookup, an answer before it is stored and sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

import orjson

from gateway.bounded_cache import BoundedCache
from gateway.cache.placement import PlacementDecision
from gateway.calls import Call, Inspection
from gateway.config.policy.model import Route
from gateway.context import Handler, RequestContext, RequestState, resolve_response
from gateway.dialects.json_body import dump_json, load_json
from gateway.dialects.known import MODELS
from gateway.errors import ContentBlocked, Forbidden, GuardUnavailable
from gateway.feature import Core, Runtime
from gateway.features.guard.client import GuardServer
from gateway.features.guard.question import Content, GuardFailed, Outcome, Question, Side, Verdict
from gateway.features.guard.rule import GuardRule, headers_of
from gateway.features.guard.stream import GuardedEvents
from gateway.features.guard.texts import (
    DIALECTS,
    content_of_answer,
    content_of_request,
    drop_logprobs,
    is_encoded,
    replace_content,
    slots_of_answer,
    slots_of_request,
)
from gateway.messages import Body, EventStream, FullBody, Response
from gateway.observability.metrics import Counter
from gateway.outcomes import Admission, Bypass
from gateway.steps.parse_and_route import apply_route, note_traffic
from gateway.steps.route_ports import RoutePorts
from gateway.streams import ObservedStream, as_observed, close_body
from gateway.upstream.aiohttp_session import AiohttpSession

MAX_CONNECTIONS = 256  # to all guards together
CONNECT_TIMEOUT_S = 5.0  # a bound for connections that no request waits for any more
MAX_REMEMBERED, MAX_REMEMBERED_CHARS = 8_192, 8 * 1024 * 1024
RETRY_AFTER_S = 1
BODILESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE"})


class Guarded(RequestState):
    """Whether the answer of a request passed without a verdict."""

    __slots__ = ("is_unjudged",)

    def __init__(self) -> None:
        self.is_unjudged = False


class GuardMetrics:
    """Counts the verdicts of guards."""

    def __init__(self) -> None:
        self.verdicts = Counter(
            "nearhit_guard_verdicts_total",
            "Verdicts of the guard of a route on requests and answers, and the questions without one, by outcome",
            ("route", "side", "outcome"),
        )


class UnjudgedAnswers:
    """Keeps answers without a verdict out of the caches."""

    def applies(self, request: RequestContext) -> bool:
        return request.of(Guarded).is_unjudged

    def place(
        self, request: RequestContext, call: Call, inspection: Inspection, *, private: bool, request_time: float
    ) -> PlacementDecision:
        return PlacementDecision(Admission.UNJUDGED)


class GuardRuntime(Runtime):
    """The guards of the routes in force. A guard lives as long as a route uses it. A new policy keeps those that the
    former one has too, with their connections and their state."""

    def __init__(self, core: Core, metrics: GuardMetrics) -> None:
        self.core = core
        self.metrics = metrics
        self.remembered: BoundedCache[bytes, tuple[float, Verdict]] = BoundedCache(
            MAX_REMEMBERED, max_weight=MAX_REMEMBERED_CHARS, weigh=lambda each: each[1].size
        )
        self._session = AiohttpSession(CONNECT_TIMEOUT_S, MAX_CONNECTIONS)
        self._servers: WeakValueDictionary[tuple[str, str], GuardServer] = WeakValueDictionary()

    def judge_requests(self, route: Route, inner: Handler) -> Handler:
        return RequestGuard(GuardOfRoute(self, route), inner).__call__

    def judge_answers(self, route: Route, inner: Handler) -> Handler:
        return AnswerGuard(GuardOfRoute(self, route), inner).__call__

    def ports(self, route: Route) -> RoutePorts:
        rule = route.of(GuardRule)
        return RoutePorts(placement=None if rule is None or rule.response is None else UnjudgedAnswers())

    def server(self, url: str, headers_env: str | None) -> GuardServer:
        headers = headers_of(headers_env)
        key = url, repr(sorted(headers.items()))
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = GuardServer(url, headers, self._session.get, self.core.clock)
        return server

    async def close(self) -> None:
        await self._session.close()


class GuardOfRoute:
    """Asks the guard of one route, counts its verdicts, and acts on those that let nothing pass."""

    def __init__(self, runtime: GuardRuntime, route: Route) -> None:
        rule = route.of(GuardRule)
        assert rule is not None  # else the feature is off
        self.route, self.rule, self.read = route, rule, runtime.core.reader
        self.recording = runtime.core.recording
        self._clock = runtime.core.clock
        self._verdicts = runtime.metrics.verdicts
        self._remembered = runtime.remembered
        self._servers = {
            side: runtime.server(url, rule.headers_env)
            for side, url in ((Side.REQUEST, rule.request), (Side.RESPONSE, rule.response))
            if url is not None
        }

    async def judge(self, request: RequestContext, call: Call, side: Side, content: Content | None) -> Verdict | None:
        """Return the verdict `allow` or `replace` on a content, or None without one if the policy lets it pass. Raise
        `ContentBlocked` or `GuardUnavailable`."""
        if content is None:
            self._pass(request, side, Outcome.UNREAD, "the gateway cannot read it for the guard")
            return None
        question = Question(side, content, call.model, _asker(request, call), dict(self.rule.params))
        try:
            with request.timer("guard"):
                verdict = await self._ask(request, question)
        except GuardFailed as error:
            self._pass(request, side, error.outcome, f"the guard of this route gave no verdict: {error}")
            return None
        self._count(side, verdict.outcome)
        if verdict.outcome is Outcome.BLOCK:
            raise _blocked(f"the guard of this route blocked the {side}: {verdict.reason}", side)
        return verdict

    async def _ask(self, request: RequestContext, question: Question) -> Verdict:
        """Return a verdict, a remembered one if the policy lets it count again. Raise `GuardFailed`."""
        traced = request.traced
        body = question.body(request.id, None if traced is None else traced.trace_id)
        server, timeout_s, kept_s = self._servers[question.side], self.rule.timeout, self.rule.remember
        if kept_s is None or question.side is Side.RESPONSE:
            return await server.judge(body, question.content, timeout_s)
        now, key = self._clock.monotonic(), self._key(question)
        remembered = self._remembered.get(key)
        if remembered is not None and now < remembered[0]:
            return remembered[1]
        verdict = await server.judge(body, question.content, timeout_s)
        self._remembered.put(key, (now + kept_s, verdict))
        return verdict

    def _key(self, question: Question) -> bytes:
        rule = self.rule
        facts = [self.route.name, rule.request, rule.version, rule.headers_env, question.fields()]
        return sha256(dump_json(facts)).digest()

    def _pass(self, request: RequestContext, side: Side, outcome: Outcome, why: str) -> None:
        """Note a content without a verdict. Raise `GuardUnavailable` or `ContentBlocked` if the policy lets none
        pass."""
        self._count(side, outcome)
        if self.rule.on_error == "open":
            if side is Side.RESPONSE:
                request.of(Guarded).is_unjudged = True
            return
        if outcome is Outcome.UNREAD:
            raise _blocked(f"the {side} is refused: {why}", side)
        error = GuardUnavailable(f"the {side} is refused: {why}", retry_after_s=RETRY_AFTER_S)
        error.forwarded = side is Side.RESPONSE
        raise error

    def refuse_unread(self, what: str) -> None:
        """Count a request that nobody can read. Raise `Forbidden` unless the policy lets it pass."""
        self._count(Side.REQUEST, Outcome.UNREAD)
        if self.rule.on_error == "closed":
            raise Forbidden(f"the guard of this route cannot read {what}, expected a route without guard for it")

    def _count(self, side: Side, outcome: Outcome) -> None:
        self._verdicts.add(self.route.name, side, outcome)


def _blocked(message: str, side: Side) -> ContentBlocked:
    error = ContentBlocked(message)
    error.forwarded = side is Side.RESPONSE
    return error


def _asker(request: RequestContext, call: Call) -> Mapping[str, str]:
    """Return who asks, in LiteLLM's fields: the name of the API key, the tenant, and the user that the body names."""
    permit = request.client.permit
    named = {
        "user_api_key_alias": "" if permit is None else permit.name,
        "user_api_key_team_id": request.client.tenant,
        "user_api_key_end_user_id": call.user or "",
    }
    return {name: value for name, value in named.items() if value}


class RequestGuard:
    """Has each request judged, hits included: no request takes the fast path for repeated bytes. A changed request goes
    on as if the client had sent it so."""

    def __init__(self, guard: GuardOfRoute, inner: Handler) -> None:
        self._guard = guard
        self._inner = inner
        self._read = guard.read(guard.route)

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call, rule = request.call, self._guard.rule
        what = _unread(request, rule)
        if what is not None:
            self._guard.refuse_unread(what)
        if call is None or what is not None or rule.request is None:
            return self._inner(request)
        request.on_written = None
        request.require_capacity()
        return self._judge(request, call)

    async def _judge(self, request: RequestContext, call: Call) -> Response:
        content = content_of_request(call)
        if content:
            traffic, request.traffic = request.traffic, None  # the traffic log never has what a guard removes or blocks
            verdict = await self._guard.judge(request, call, Side.REQUEST, content)
            if verdict is not None and verdict.outcome is Outcome.REPLACE:
                self._replace(request, call, verdict)
            else:
                request.traffic = traffic
        return await resolve_response(self._inner(request))

    def _replace(self, request: RequestContext, call: Call, verdict: Verdict) -> None:
        body = load_json(dump_json(call.body))
        replace_content([*slots_of_request(body)], verdict.texts, verdict.images)
        request.body = dump_json(body)
        claiming = request.dialect or call.dialect  # it reads the path, which may be another protocol's than the call
        changed = claiming.parse(request.path, request.body, request.headers)
        apply_route(request, changed, self._guard.route, self._read)
        if self._guard.recording is not None:
            note_traffic(request, self._guard.route, self._guard.recording)


def _unread(request: RequestContext, rule: GuardRule) -> str | None:
    """Return the words for a request that a guard cannot read, or None for one that it can, or that has nothing to
    judge."""
    call = request.call
    if call is None:
        if request.method not in BODILESS or request.opens_websocket:
            return "requests to this path"
        is_list = request.path == MODELS or request.path.startswith(f"{MODELS}/")
        is_harmless = rule.response is None or request.method != "GET" or is_list
        return None if is_harmless else "the answers of this path"
    if call.dialect.name not in DIALECTS:
        return f"calls of the protocol {call.dialect.name}"
    if rule.request is not None and is_encoded(call):
        return "numbers in place of texts"
    if rule.response is not None and call.uncached is Bypass.BACKGROUND:
        return "answers that are fetched later"
    return None


class AnswerGuard:
    """Has each answer judged before it is stored, so that the caches and all who share a call get what was judged."""

    def __init__(self, guard: GuardOfRoute, inner: Handler) -> None:
        self._guard = guard
        self._inner = inner

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call = request.call
        if call is None or call.embeds or self._guard.rule.response is None:
            return self._inner(request)
        if call.dialect.name in DIALECTS:
            request.reads_answer = True
        return self._judge(request, call)

    async def _judge(self, request: RequestContext, call: Call) -> Response:
        response = await resolve_response(self._inner(request))
        if not 200 <= response.status < 300:
            return response
        body = response.body
        judge = partial(self._guard.judge, request, call, Side.RESPONSE)
        if call.dialect.name not in DIALECTS:  # the policy lets it pass, see `_unread`
            await judge(None)
            return response
        if isinstance(body, EventStream):
            events = GuardedEvents(as_observed(body.events), call, judge)
            await events.begin()
            return Response(response.status, response.headers, EventStream(ObservedStream(events)), response.provenance)
        try:
            data = await self._judge_whole(body, judge)
        except BaseException:
            await close_body(body)
            raise
        if data is None:
            return response
        return Response(response.status, response.headers, FullBody(data), response.provenance)

    async def _judge_whole(
        self, body: Body, judge: Callable[[Content | None], Awaitable[Verdict | None]]
    ) -> bytes | None:
        """Have a whole answer judged. Return the changed one, or None if it goes on as it is."""
        answer = _object_in(body)
        if answer is None:
            await judge(None)
            return None
        content = content_of_answer(answer)
        verdict = await judge(content) if content else None
        if verdict is None or verdict.outcome is not Outcome.REPLACE:
            return None
        replace_content([*slots_of_answer(answer)], verdict.texts, verdict.images)
        drop_logprobs(answer)
        return dump_json(answer)


def _object_in(body: Body) -> dict[str, Any] | None:
    """Return the JSON object in a body, or None if it has none that can be read."""
    if not isinstance(body, FullBody):
        return None
    try:
        value = load_json(body.data)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
