"""What is stored of an answer, and what it is found by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.messages.provenance import Bypass

Vector = NDArray[np.float32]
"""A unit-length embedding: float32, shape (d,)."""


@dataclass(slots=True)
class Embedding:
    vector: Vector
    tokens: int
    truncated: bool  # the text was longer than the model reads: the vector stands for its head only
    unreadable: bool = False  # some of its words are none that the model knows: texts that differ there look the same

    @property
    def partial(self) -> bool:
        """The vector does not stand for the whole text, so nothing may be matched by it."""
        return self.truncated or self.unreadable

    @property
    def why_partial(self) -> Bypass | None:
        if self.truncated:
            return Bypass.TOO_LONG
        return Bypass.UNREADABLE if self.unreadable else None


@dataclass(slots=True)
class Entry:
    """A stored answer with all that is needed to check whose it is and to serve it.

    `payload` holds the event data of a stream in order, or one element: the whole body.
    """

    fingerprint: str
    scope: str
    tenant: str
    route: str
    model: str
    operation: str
    dialect: str
    question: str | None
    streamed: bool
    payload: tuple[bytes, ...]
    content_type: str
    created: float  # wall clock, seconds
    expires: float  # wall clock: when the store may forget it (the longest of all uses)
    backend: str
    input_tokens: int
    output_tokens: int
    cost_dollars: float
    upstream_s: float  # from before the backend was asked to `created`
    tags: tuple[str, ...] = ()
    imported: float = 0.0  # wall clock: when an operator brought it here; 0 where it was fetched

    @property
    def asked(self) -> float:
        """Wall clock: when its backend was asked, or it was imported. Removals before that do not mean it."""
        return max(self.created - self.upstream_s, self.imported)

    @property
    def size(self) -> int:
        """Bytes of the answer and the question, as far as they count for a memory bound."""
        return sum(map(len, self.payload)) + len(self.question or "") + 512


@dataclass(slots=True, eq=False)  # arrays do not compare
class Placed:
    """A vector with the fingerprint of the embedder that made it, where those of several may meet: vectors of different
    fingerprints are never compared."""

    vector: Vector
    embedder: str


@dataclass(slots=True)
class Neighbour:
    """An entry near a question, as the index returns it."""

    fingerprint: str
    similarity: float  # inner product of unit vectors, clipped to [0, 1]
