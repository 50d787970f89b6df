"""Serves the stored answer to the same question in other words. Embeds the question once, for the lookup, the index and
the complexity estimate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from gateway.cache.admission import HitForMiss
from gateway.cache.audits import HitAudits
from gateway.cache.inflight_questions import InflightQuestion, InflightQuestions
from gateway.cache.load_level import EncoderLoad, OptionalWork
from gateway.cache.screen import Screening
from gateway.config.policy.model import AuditSettings
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import EmbedderUnavailable
from gateway.messages import Bypass, Embedding, Response, Verdict
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, Embedder
from gateway.routing.budget import max_wait_s
from gateway.steps.screening import RouteScreen
from gateway.steps.semantic_lookup import SemanticLookup
from gateway.streams import with_completion


class SimilarInflight:
    """Waits for the answer to the same question in other words, if it is on its way and the policy allows it. The
    lookup scores a question in flight as if its answer were stored, and serves the answer once it is. A request waits
    at most once: if it then finds no answer, it makes its own call."""

    def __init__(
        self,
        lookup: SemanticLookup,
        inflight: InflightQuestions,
        unstorable: HitForMiss,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._lookup = lookup
        self._inflight = inflight
        self._unstorable = unstorable
        self._clock = clock
        self._telemetry = telemetry

    async def answer(self, request: RequestContext, question: str, embedding: Embedding, forward: Handler) -> Response:
        directives = request.directives
        if embedding.partial or directives.no_cache or directives.only_if_cached:
            return await resolve_response(forward(request))
        if not request.scope or request.fingerprint in self._unstorable:
            return await resolve_response(forward(request))
        neighbour = await self._lookup.similar_inflight(
            request, question, embedding, self._inflight.in_scope(request.scope)
        )
        if neighbour is not None and await self._wait_until_landed(request, neighbour):
            hit = self._lookup.find(request, question, embedding)
            hit = hit if hit is None or isinstance(hit, Response) else await hit
            if hit is not None:
                self._telemetry.crowds.add("followed-alike")
                return hit
        registered = self._inflight.add(request, embedding.vector)
        if registered is None:
            return await resolve_response(forward(request))
        try:
            response = await resolve_response(forward(request))
        except BaseException:
            self._inflight.complete(registered)
            raise
        return with_completion(response, lambda: self._inflight.complete(registered))

    async def _wait_until_landed(self, request: RequestContext, neighbour: InflightQuestion) -> bool:
        self._telemetry.crowds.add("waits-alike")
        with request.timer("wait"):
            try:
                async with asyncio.timeout(max_wait_s(request, self._clock.monotonic())):
                    await asyncio.shield(neighbour.completed)
            except TimeoutError:
                self._telemetry.crowds.add("in-vain")
                return False
        return True


class AuditedHits:
    """Compares some semantic hits with a fresh answer, once they are on their way to the client. The fresh answer is
    stored like the answer of any miss; the client does not see it."""

    def __init__(self, audits: HitAudits, rule: AuditSettings) -> None:
        self._audits = audits
        self._rule = rule

    def maybe_audit(self, request: RequestContext, forward: Handler) -> None:
        if request.judged is not None:
            self._audits.maybe_audit(request, request.judged, self._rule, forward)


class SemanticCache:
    """Sits outside `StoreResponse`, so semantic hits are not stored again. The policy may turn on `audits` of hits, and
    `inflight`, which waits for questions in flight; None: off. `screen` lets questions go to their backend before they
    are embedded; None: each question needs its embedding.

    It embeds the focus of the question, which is the whole of it unless it is long. `scores_whole`: a later step scores
    the complexity, for which the beginning of a long question is embedded, too. `load`: of the encoder, which may leave
    no room to embed a question."""

    def __init__(
        self,
        inner: Handler,
        embedder: Embedder,
        lookup: SemanticLookup,
        audits: AuditedHits | None = None,
        inflight: SimilarInflight | None = None,
        screen: RouteScreen | None = None,
        *,
        load: EncoderLoad,
        scores_whole: bool = False,
    ) -> None:
        self._load = load
        self._inner = inner
        self._embedder = embedder
        self._lookup = lookup
        self._audits = audits
        self._inflight = inflight
        self._screen = screen
        self._scores_whole = scores_whole

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call, embedding = request.call, request.embedding
        if call is None:
            return self._inner(request)
        question = call.focus
        if question is None:
            request.note = request.note or call.no_question
            return self._inner(request)
        if embedding is None:
            started = request.clock.monotonic()
            embedding = self._embedder.embed_nowait(question, request.owner)
            if embedding is None or (self._scores_whole and question is not call.question):
                if self._load.leaves_out(OptionalWork.LOOKUP):
                    request.note = Bypass.LOAD
                    return self._inner(request)
                request.require_capacity()
                if self._screen is not None:
                    return self._look_at(self._screen, request, question, started)
                return self._embed(request, question, started)
            request.since("embed", started)
            request.embedding = embedding
        return self._look_up(request, question, embedding)

    def _look_at(
        self, screen: RouteScreen, request: RequestContext, question: str, started: float
    ) -> Response | Awaitable[Response]:
        """Let the question go if the screen finds nothing near. Otherwise embed it."""
        static = screen.read(request, question)
        if static is None:
            return self._embed(request, question, started)
        if static.partial:  # so is the real one, and neither may be matched or stored
            request.since("screen", started)
            request.embedding = static
            return self._look_up(request, question, static)
        found = screen.look(request.route, request.scope, static.vector)
        if found is None or isinstance(found, Screening):
            return self._go_on(screen, request, question, static, found, started)
        return self._await_screen(screen, request, question, static, found, started)

    async def _await_screen(
        self,
        screen: RouteScreen,
        request: RequestContext,
        question: str,
        static: Embedding,
        pending: Awaitable[Screening | None],
        started: float,
    ) -> Response:
        return await resolve_response(self._go_on(screen, request, question, static, await pending, started))

    def _go_on(
        self,
        screen: RouteScreen,
        request: RequestContext,
        question: str,
        static: Embedding,
        found: Screening | None,
        started: float,
    ) -> Response | Awaitable[Response]:
        now = request.since("screen", started)
        if found is None:
            return self._embed(request, question, now)
        if not found.is_far:
            return self._embed_near(screen, request, question, found, now)
        screen.let_go(request, question, static.vector)
        return self._inner(request)

    async def _embed_near(
        self, screen: RouteScreen, request: RequestContext, question: str, found: Screening, started: float
    ) -> Response:
        """Look the question up. A hit moves the threshold of the screen."""
        response = await self._embed(request, question, started)
        if response.provenance.verdict is Verdict.SEMANTIC:
            screen.observe(request.route, found)
        return response

    async def _embed(self, request: RequestContext, question: str, started: float) -> Response:
        try:
            embedding = request.embedding = await self._embedder.embed(question, request.owner)
            whole = None if request.call is None else request.call.question
            if self._scores_whole and whole is not None and whole is not question:
                request.whole = await self._embedder.embed(whole, request.owner)
        except EmbedderUnavailable:
            request.note = Bypass.EMBEDDER
            return await resolve_response(self._inner(request))
        finally:
            request.since("embed", started)
        return await resolve_response(self._look_up(request, question, embedding))

    def _look_up(self, request: RequestContext, question: str, embedding: Embedding) -> Response | Awaitable[Response]:
        if embedding.partial:
            request.note = embedding.partial_reason
            return self._forward_miss(request, question, embedding)
        hit = self._lookup.find(request, question, embedding)
        if hit is None:
            return self._forward_miss(request, question, embedding)
        if not isinstance(hit, Response):
            return self._await_hit(request, question, embedding, hit)
        if self._audits is not None:
            self._audits.maybe_audit(request, self._inner)
        return hit

    async def _await_hit(
        self, request: RequestContext, question: str, embedding: Embedding, pending: Awaitable[Response | None]
    ) -> Response:
        hit = await pending
        if hit is None:
            return await resolve_response(self._forward_miss(request, question, embedding))
        if self._audits is not None:
            self._audits.maybe_audit(request, self._inner)
        return hit

    def _forward_miss(
        self, request: RequestContext, question: str, embedding: Embedding
    ) -> Response | Awaitable[Response]:
        if self._inflight is None:
            return self._inner(request)
        return self._inflight.answer(request, question, embedding, self._inner)
