"""Has some semantic hits checked against a fresh answer, once they are on their way to the client."""

from __future__ import annotations

from gateway.messages import Request, Response, Verdict
from gateway.pipeline import Handler
from gateway.policy.model import Audit as Rule
from gateway.quality.audits import Audits


class Audit:
    """Stands outside `Coalesce`, which may find a semantic hit before there is a flight. Of those who share one only
    the request that led it knows what was judged, and is considered. What an audit fetches is stored like the answer of
    any miss. Nobody hears of it: it is no client's request, and, as it wants a fresh answer, part of no flight."""

    def __init__(self, audits: Audits, rule: Rule) -> None:
        self._audits = audits
        self._rule = rule

    async def __call__(self, request: Request, forward: Handler) -> Response:
        response = await forward(request)
        judged = request.trace.judged
        if judged is not None and response.provenance.verdict is Verdict.SEMANTIC:
            embedding = request.trace.embedding
            audited = request if embedding is None else request.embedded(embedding)
            self._audits.consider(audited, judged, self._rule, forward)
        return response
