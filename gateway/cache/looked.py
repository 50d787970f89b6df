"""What comes of looking for an answer in memory. Pure values: whoever asked notes it where it belongs."""

from __future__ import annotations

from gateway.cache.freshness import Freshness
from gateway.cache.served import PlainHit
from gateway.messages import Embedding, Entry
from gateway.messages.values import value

Spans = dict[str, float]
"""Seconds that each step took, in their order."""


@value(frozen=True, slots=True)
class Hit:
    """A stored answer that may be served. `alike` None: it is the very answer."""

    entry: Entry
    freshness: Freshness
    spans: Spans
    alike: PlainHit | None = None


@value(frozen=True, slots=True)
class Missed:
    """None, as far as is known without waiting. `unlike`: the index has nothing near enough, or the route has none;
    `note`: why no neighbour was looked for, or why the nearest was refused."""

    spans: Spans
    embedding: Embedding | None = None
    unlike: bool = False
    note: str | None = None
