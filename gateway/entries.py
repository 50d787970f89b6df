"""Stored answers, their vectors and their keys, and how long they may be served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gateway.outcomes import Bypass

Vector = NDArray[np.float32]
"""A unit-length embedding: float32, shape (d,)."""


@dataclass(slots=True)
class Embedding:
    vector: Vector
    tokens: int
    truncated: bool  # the text exceeds the model's input: the vector covers only its beginning
    unreadable: bool = False  # the model does not know some words: texts that differ only there get the same vector

    @property
    def partial(self) -> bool:
        """Whether the vector covers only part of the text. Such a vector must not be matched."""
        return self.truncated or self.unreadable

    @property
    def partial_reason(self) -> Bypass | None:
        if self.truncated:
            return Bypass.TOO_LONG
        return Bypass.UNREADABLE if self.unreadable else None


_Digest = Annotated[str, Field(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]
_Word = Annotated[str, Field(min_length=1, max_length=512)]
_Label = Annotated[str, Field(max_length=512)]
_Tag = Annotated[str, Field(min_length=1, max_length=128)]
_Asker = Annotated[str, Field(pattern="^[a-z][0-9a-f]{64}$")]
_Subject = Annotated[str, Field(pattern="^[a-z][0-9a-f]{32}$")]
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Amount = Annotated[float, Field(ge=0)]


@dataclass(slots=True)
class Entry:
    """A stored answer with all that is needed to check its owner and to serve it.

    `payload` is the event data of a stream in order, or one element: the whole body.

    The record of the store (`gateway.adapters.redis.records`) and the line of an export have these fields in this
    order, so no field can be forgotten. The annotations bound what an import accepts. A new field comes last, with a
    default and the next version of the record.
    """

    fingerprint: _Digest
    scope: _Digest
    tenant: _Label
    route: _Word
    model: _Label
    operation: _Word
    dialect: _Word
    question: str | None
    streamed: bool
    payload: tuple[bytes, ...]
    content_type: _Word
    created: _Amount  # wall clock, seconds
    expires: _Amount  # wall clock: when the store may delete it (the latest end of all uses)
    backend: _Label
    input_tokens: _Count
    output_tokens: _Count
    cost_dollars: _Amount
    upstream_s: _Amount  # from before the backend call to `created`
    tags: Annotated[tuple[_Tag, ...], Field(max_length=32)] = ()
    imported: _Amount = 0.0  # wall clock: when an operator imported it; 0 if it was fetched
    # The writer, then the clients whose fresh answers agreed (`gateway.trust`). Empty: the route trusts its scope.
    askers: Annotated[tuple[_Asker, ...], Field(max_length=8)] = ()
    # digests of those who caused the entry (`gateway.subjects`), for an erasure
    subjects: Annotated[tuple[_Subject, ...], Field(max_length=256)] = ()

    @property
    def request_time(self) -> float:
        """Wall clock: when the backend was called, or when the entry was imported. Purges before that time do not cover
        it."""
        return max(self.created - self.upstream_s, self.imported)

    @property
    def size(self) -> int:
        """Bytes of the answer and the question, as they count towards a memory bound."""
        return sum(map(len, self.payload)) + len(self.question or "") + 512


@dataclass(slots=True, eq=False)  # arrays do not compare
class EmbeddedVector:
    """A vector with the fingerprint of its embedder, for places that hold vectors of several embedders. Vectors of
    different fingerprints are never compared."""

    vector: Vector
    embedder: str


@dataclass(slots=True)
class Neighbour:
    """An entry near a question, as the index returns it."""

    fingerprint: str
    similarity: float  # inner product of unit vectors, clipped to [0, 1]


@dataclass(frozen=True, slots=True)
class CacheDirectives:
    """The Cache-Control directives of a request (RFC 9111, section 5.2.1) that this gateway supports."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    min_fresh_s: float = 0.0


NO_DIRECTIVES = CacheDirectives()

NO_CACHE = CacheDirectives(no_cache=True)  # for the gateway's own calls that replace an answer


class CacheKeys(NamedTuple):
    """The keys under which an answer is looked up and stored: see `gateway.cache.keys`."""

    scope: str = ""
    """The hex SHA-256 of everything that must be equal to share an answer."""
    fingerprint: str = ""
    """The hex SHA-256 of the whole request: its exact key."""
    variant: str = ""
    """The headers and the generation that are part of both."""


NO_KEYS = CacheKeys()  # of a request that no cache may answer


class AgedAnswer(Protocol):
    """A stored answer, reduced to its age."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def created(self) -> float:
        """Creation time on the wall clock."""

    @property
    def expires(self) -> float:
        """The end of all uses, on the wall clock."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """The lifetime that a policy gives to answers, in seconds."""

    ttl_s: float
    jitter: float = 0.0  # share of the TTL, in [0, 1], by which an entry's own TTL may be shorter
    revalidate_s: float = 0.0  # after the TTL: serve the entry while it is fetched again (RFC 5861)
    error_s: float = 0.0  # after the TTL: serve the entry if no backend answers (RFC 5861)

    @property
    def longest_s(self) -> float:
        """The time after which an entry has no use."""
        return self.ttl_s + max(self.revalidate_s, self.error_s)

    def ttl_of(self, entry: AgedAnswer) -> float:
        """Return the TTL of one entry, shortened by the jitter so that entries stored together do not expire together.
        The jitter follows from the fingerprint, so all replicas agree."""
        if self.jitter == 0.0:
            return self.ttl_s
        return self.ttl_s * (1.0 - self.jitter * int(entry.fingerprint[:8], 16) / 0x1_0000_0000)
