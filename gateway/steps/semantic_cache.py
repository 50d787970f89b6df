"""Serves the stored answer to the same question in other words. Embeds the question once, for the lookup, the index and
the complexity estimate."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from gateway.cache.admission import HitForMiss
from gateway.cache.audits import HitAudits
from gateway.cache.conversations import Continuation, RouteConversations
from gateway.cache.inflight_questions import InflightQuestion, InflightQuestions
from gateway.cache.load_level import EncoderLoad, OptionalWork
from gateway.cache.screening import RouteScreen, Screening
from gateway.calls import Call
from gateway.config.policy.schema import AuditRule
from gateway.context import Handler, RequestContext, resolve_response
from gateway.entries import Embedding
from gateway.errors import EmbedderUnavailable
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass, Verdict
from gateway.ports import Clock, Embedder
from gateway.routing.backend_choice import WholeQuestion
from gateway.routing.budget import max_wait_s
from gateway.steps.semantic_lookup import SemanticLookup
from gateway.streams import with_completion


@dataclass(slots=True)
class SimilarInflight:
    """Waits for the answer to the same question in other words, if it is on its way and the policy allows it. The
    lookup scores a question in flight as if its answer were stored, and serves the answer once it is. A request waits
    at most once: if it then finds no answer, it makes its own call."""

    lookup: SemanticLookup
    inflight: InflightQuestions
    unstorable: HitForMiss
    clock: Clock
    telemetry: Telemetry

    async def answer(self, request: RequestContext, question: str, embedding: Embedding, forward: Handler) -> Response:
        directives = request.directives
        if embedding.partial or directives.no_cache or directives.only_if_cached:
            return await resolve_response(forward(request))
        if not request.keys.scope or request.keys.fingerprint in self.unstorable:
            return await resolve_response(forward(request))
        neighbour = await self.lookup.similar_inflight(
            request, question, embedding, self.inflight.in_scope(request.keys.scope)
        )
        if neighbour is not None and await self._wait_until_landed(request, neighbour):
            hit = self.lookup.find(request, question, embedding)
            hit = hit if hit is None or isinstance(hit, Response) else await hit
            if hit is not None:
                self.telemetry.crowds.add("followed-alike")
                return hit
        registered = self.inflight.add(request, embedding.vector)
        if registered is None:
            return await resolve_response(forward(request))
        try:
            response = await resolve_response(forward(request))
        except BaseException:
            self.inflight.complete(registered)
            raise
        return with_completion(response, lambda: self.inflight.complete(registered))

    async def _wait_until_landed(self, request: RequestContext, neighbour: InflightQuestion) -> bool:
        self.telemetry.crowds.add("waits-alike")
        with request.timer("wait"):
            try:
                async with asyncio.timeout(max_wait_s(request, self.clock.monotonic())):
                    await asyncio.shield(neighbour.completed)
            except TimeoutError:
                self.telemetry.crowds.add("in-vain")
                return False
        return True


@dataclass(slots=True)
class AuditedHits:
    """Compares some semantic hits with a fresh answer, once they are on their way to the client. The fresh answer is
    stored like the answer of any miss; the client does not see it."""

    audits: HitAudits
    rule: AuditRule

    def maybe_audit(self, request: RequestContext, forward: Handler) -> None:
        if request.judged is not None:
            self.audits.maybe_audit(request, request.judged, self.rule, forward)


@dataclass(slots=True)
class SemanticCache:
    """Looks each question up by its meaning. It sits outside `StoreResponse`, so that no semantic hit is stored again.

    It embeds the focus of the question, which is the whole of it unless it is long. `audits`, `inflight` and `screen`
    are those of the route's policy, or None if it turns them off.
    """

    inner: Handler
    embedder: Embedder
    lookup: SemanticLookup
    audits: AuditedHits | None = None
    inflight: SimilarInflight | None = None  # waits for questions in flight
    screen: RouteScreen | None = None  # lets far questions go to their backend before they are embedded
    conversations: RouteConversations | None = None  # finds the stored conversation that a request continues
    load: EncoderLoad = field(kw_only=True)  # of the encoder, which may leave no room to embed a question
    scores_whole: bool = field(default=False, kw_only=True)  # whether the complexity needs a long question's beginning

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        """Answer at once if the question's embedding is known. Otherwise return `_answer`, which waits."""
        call = request.call
        question = None if call is None else call.focus
        if call is None or question is None:
            request.note = request.note or (None if call is None else call.no_question)
            return self.inner(request)
        if request.embedding is None:
            started = request.clock.monotonic()
            embedding = self.embedder.embed_nowait(question, request.owner)
            if embedding is None or (self.scores_whole and question is not call.question):
                if self.load.leaves_out(OptionalWork.LOOKUP):
                    request.note = Bypass.LOAD
                    return self.inner(request)
                request.require_capacity()
                return self._answer(request, call, question)
            request.since("embed", started)
            request.embedding = embedding
        return self._look_up(request, question, request.embedding)

    async def _answer(self, request: RequestContext, call: Call, question: str) -> Response:
        """Screen the question, embed it unless it is far from all stored ones, and look it up."""
        screen, screening = self.screen, None
        if screen is not None:
            screening = await self._screen_question(screen, request, question)
        if screening is not None and screening.is_far:
            continued = None if self.conversations is None else self.conversations.find(request, call)
            if continued is None:
                return await resolve_response(self.inner(request))
            return await self._continue(request, call, question, continued)
        if request.embedding is None and not await self._embed(request, call, question):
            return await resolve_response(self.inner(request))
        assert request.embedding is not None
        response = await resolve_response(self._look_up(request, question, request.embedding))
        if screen is not None and screening is not None and response.provenance.verdict is Verdict.SEMANTIC:
            screen.observe(request.route, screening)
        return response

    async def _screen_question(self, screen: RouteScreen, request: RequestContext, question: str) -> Screening | None:
        """Return the decision of the screen, or None if it makes none. A far question is embedded behind the
        request."""
        started = request.clock.monotonic()
        static = screen.read(request, question)
        if static is None:
            return None
        try:
            if static.partial:  # so is the real one, and neither may be matched or stored
                request.embedding = static
                return None
            result = screen.look(request.route, request.keys.scope, static.vector)
            screening = result if result is None or isinstance(result, Screening) else await result
        finally:
            request.since("screen", started)
        if screening is not None and screening.is_far:
            screen.let_go(request, question, static.vector)
        return screening

    async def _embed(self, request: RequestContext, call: Call, question: str) -> bool:
        """Embed the question, and its beginning if the complexity needs it. Return whether the embedder answered."""
        started = request.clock.monotonic()
        try:
            request.embedding = await self.embedder.embed(question, request.owner)
            if self.scores_whole and call.question is not None and call.question is not question:
                whole = await self.embedder.embed(call.question, request.owner)
                request.of(WholeQuestion).embedding = whole
        except EmbedderUnavailable:
            request.note = Bypass.EMBEDDER
            return False
        finally:
            request.since("embed", started)
        return True

    def _look_up(self, request: RequestContext, question: str, embedding: Embedding) -> Response | Awaitable[Response]:
        """Serve a hit, or pass the request on. Wait only if the lookup does."""
        if embedding.partial:
            request.note = embedding.partial_reason
            return self._pass_on(request, question, embedding)
        hit = self.lookup.find(request, question, embedding)
        if hit is None:
            return self._pass_on(request, question, embedding)
        if isinstance(hit, Response):
            return self._serve(request, hit)
        return self._wait_for(request, question, embedding, hit)

    async def _wait_for(
        self, request: RequestContext, question: str, embedding: Embedding, pending: Awaitable[Response | None]
    ) -> Response:
        hit = await pending
        if hit is None:
            return await resolve_response(self._pass_on(request, question, embedding))
        return self._serve(request, hit)

    def _serve(self, request: RequestContext, hit: Response) -> Response:
        if self.conversations is not None:
            self.conversations.note(request, hit)
        if self.audits is not None:
            self.audits.maybe_audit(request, self.inner)
        return hit

    def _pass_on(self, request: RequestContext, question: str, embedding: Embedding) -> Response | Awaitable[Response]:
        if self.conversations is not None and self.conversations.links.has_turns and not embedding.partial:
            assert request.call is not None
            continued = self.conversations.find(request, request.call)
            if continued is not None:
                return self._continue(request, request.call, question, continued)
        if self.inflight is None:
            return self.inner(request)
        return self.inflight.answer(request, question, embedding, self.inner)

    async def _continue(self, request: RequestContext, call: Call, question: str, continued: Continuation) -> Response:
        """Look a question up in the conversation that the request continues. It has no hit in its own.

        A miss is stored under the keys of the request: its backend has read what the client sent.
        """
        own, keys = request.keys, await continued.keys()
        if keys is not None and (request.embedding is not None or await self._embed(request, call, question)):
            assert request.embedding is not None
            if not request.embedding.partial:
                try:
                    request.keys = keys
                    hit = self.lookup.find(request, question, request.embedding)
                    hit = hit if hit is None or isinstance(hit, Response) else await hit
                finally:
                    request.keys = own
                if hit is not None:
                    return self._serve(request, hit)
        if self.inflight is None or request.embedding is None:
            return await resolve_response(self.inner(request))
        return await self.inflight.answer(request, question, request.embedding, self.inner)
