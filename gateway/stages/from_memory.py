"""What answers a request without anything being waited for: asked before a flight begins, so that a hit costs neither a
task nor the way through it (docs/decisions/0041-from-memory.md)."""

from __future__ import annotations

from gateway.messages import Request, Response
from gateway.stages.embed import Embed
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.semantic_lookup import SemanticLookup


class FromMemory:
    """`embed` and `lookup` are None where the route has its semantic cache off."""

    def __init__(self, exact: ExactLookup, embed: Embed | None = None, lookup: SemanticLookup | None = None) -> None:
        self._exact = exact
        self._embed = embed
        self._lookup = lookup

    def __call__(self, request: Request) -> Response | Request:
        """The answer; or the request, with its question as a vector where that was had on the way."""
        hit = self._exact.at_hand(request)
        if hit is not None:
            return hit
        return request if request.embedding is not None else self.similar(request)

    def similar(self, request: Request) -> Response | Request:
        """As above, by similarity alone."""
        embedding = None if self._embed is None else self._embed.at_hand(request)
        if embedding is None:
            return request
        assert self._lookup is not None
        return self._lookup.at_hand(request, embedding)
