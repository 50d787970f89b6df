"""The opinion on two prompts of one frame: that on what they do not share."""

from __future__ import annotations

from dataclasses import replace

from gateway.cache.templates import Varying
from gateway.messages import Refusal
from gateway.ports import Candidate, Embedder, Opinion, Verifier


async def of_what_varies(parts: Varying, whole: Opinion, embedder: Embedder, verifier: Verifier, owner: str) -> Opinion:
    """Where that is the worse one. `whole`: the opinion on both prompts as they are; `owner`: as `Embedder.embed` has
    it. Raises `EmbedderUnavailable`."""
    if not parts.asked or not parts.stored:
        return replace(whole, veto=Refusal.TEMPLATE)
    asked, stored = await embedder.embed(parts.asked, owner), await embedder.embed(parts.stored, owner)
    similarity = min(1.0, max(0.0, float(asked.vector @ stored.vector)))
    (inner,) = verifier.opinions(parts.asked, [Candidate(parts.stored, similarity)])
    return whole if inner.score >= whole.score else replace(inner, doubt=Refusal.TEMPLATE)
