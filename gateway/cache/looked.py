"""What comes of looking for an answer in memory: whoever asked notes it where it belongs."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.cache.freshness import Freshness
from gateway.cache.served import PlainHit
from gateway.messages import Asked, Embedding, Entry, Neighbour

Spans = dict[str, float]
"""Seconds that each step took, in their order."""


@dataclass(eq=False, slots=True)
class Sought:
    """A call whose answer is looked for, step by step: each adds to what those before it found out, until it is `over`.
    It is one object for all of them, so that several calls may take each step together (docs/decisions/0051-turns.md).

    `hit`: a stored answer may be served; `alike` None: it is the very answer. Else there is none, as far as is known
    without waiting. `unlike`: the index has nothing near enough, or the route has none; `note`: why no neighbour was
    looked for, or why the nearest was refused."""

    asked: Asked
    over: bool = field(default=False, init=False)
    spans: Spans = field(default_factory=dict, init=False)
    embedding: Embedding | None = field(default=None, init=False)
    unlike: bool = field(default=False, init=False)
    note: str | None = field(default=None, init=False)
    hit: bool = field(default=False, init=False)
    alike: PlainHit | None = field(default=None, init=False)
    nearest: Neighbour = field(init=False)  # of one that is judged
    entry: Entry = field(init=False)  # of a hit
    freshness: Freshness = field(init=False)  # likewise
