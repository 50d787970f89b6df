"""What answers a request without anything being waited for: asked before a flight begins, so that a hit costs neither a
task nor the way through it (docs/decisions/0041-from-memory.md)."""

from __future__ import annotations

from gateway.cache.hits import answer_from
from gateway.cache.looked import Sought
from gateway.messages import Asked, Request, Response, Verdict
from gateway.ports import Clock
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.similar import Similar


class FromMemory:
    """`similar` None: the route has its semantic cache off."""

    def __init__(self, exact: ExactLookup, similar: Similar | None, clock: Clock) -> None:
        self._exact = exact
        self._similar = similar
        self._clock = clock

    def __call__(self, request: Request) -> Response | Request:
        """The answer; or the request, with its question as a vector where that was had on the way."""
        if request.call is None:
            return request
        asked = Asked(request.id, request.tenant, request.call, request.directives, request.scope, request.fingerprint)
        same = self._exact.at_hand(asked)
        if same is not None:
            return answer_from(request, *same, Verdict.EXACT)
        if request.embedding is not None or self._similar is None:
            return request
        began = self._clock.monotonic()
        sought = Sought(asked)
        self._similar.find(sought, alone=request.trace.facts is None)  # where what else was near is recorded, all are
        request.trace.took(sought.spans, began)
        if sought.hit:
            return self._served(request, self._similar, sought)
        embedding = request.trace.embedding = sought.embedding
        if sought.note is not None:
            request.trace.note = sought.note
        return request if embedding is None else request.embedded(embedding, unlike=sought.unlike)

    def _served(self, request: Request, similar: Similar, sought: Sought) -> Response:
        alike, trace = sought.alike, request.trace
        assert alike is not None
        similar.served(sought.asked, alike)
        trace.embedding = alike.embedding
        trace.judged = alike.judged
        trace.considered = (trace.judged,)
        return answer_from(request, sought.entry, sought.freshness, Verdict.SEMANTIC, alike.similarity)
