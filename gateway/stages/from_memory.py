"""What answers a request without anything being waited for: asked before a flight begins, so that a hit costs neither a
task nor the way through it (docs/decisions/0041-from-memory.md)."""

from __future__ import annotations

from gateway.cache.hits import answer_from
from gateway.cache.looked import Hit, Missed
from gateway.messages import Asked, Request, Response, Verdict
from gateway.observing.trace import Trace
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
        # Where what else was near is recorded, all are looked at.
        found = self._similar.find(asked, {}, alone=request.trace.facts is None)
        request.trace.took(found.spans, began)
        if isinstance(found, Missed):
            note(request.trace, found)
            return request if found.embedding is None else request.embedded(found.embedding, unlike=found.unlike)
        return self._served(request, self._similar, asked, found)

    def _served(self, request: Request, similar: Similar, asked: Asked, hit: Hit) -> Response:
        alike, trace = hit.alike, request.trace
        assert alike is not None
        similar.served(asked, alike)
        trace.embedding = alike.embedding
        trace.judged = alike.judged
        trace.considered = (trace.judged,)
        return answer_from(request, hit.entry, hit.freshness, Verdict.SEMANTIC, alike.similarity)


def note(trace: Trace, missed: Missed) -> None:
    """What is known of a request that its stages go on with."""
    trace.embedding = missed.embedding
    if missed.note is not None:
        trace.note = missed.note
