"""What flows through the gateway: requests, calls, answers and where an answer came from.

Everything here is immutable; a stage that learns something passes a changed copy on (`dataclasses.replace`).
Errors have a module of their own: `gateway.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gateway.precedence import Priority

if TYPE_CHECKING:
    from gateway.flights.gathering import Gathering
    from gateway.observing.trace import Trace
    from gateway.ports import Batch, BodySource, Dialect, Duplex

Vector = NDArray[np.float32]
"""A unit-length embedding: float32, shape (d,)."""


class Verdict(StrEnum):
    """What the cache made of a request; the label `verdict` of the metrics."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    STALE = "stale"
    COALESCED = "coalesced"
    MISS = "miss"
    BYPASS = "bypass"


class Bypass(StrEnum):
    """Why the caches were not asked, or why a neighbour was not looked for."""

    PASS_THROUGH = "pass-through"  # no dialect knows this path  # noqa: S105 - not a password
    POLICY = "policy"  # the route's policy has both caches off
    NO_STORE = "no-store"  # the client said Cache-Control: no-store
    NO_CACHE = "no-cache"  # the client asked for a fresh answer; it is stored
    NO_TEXT = "no-text"  # nothing to match on: no text in the last turn, or images beside it
    TOO_LONG = "too-long"  # the question exceeds what the embedding model reads
    UNREADABLE = "unreadable"  # the question has words that the embedding model cannot read, e.g. Chinese ones
    EMBEDDER = "embedder-unavailable"
    STORE = "store-unavailable"
    SEQUENCE = "sequence"  # the answer depends on requests before this one
    SHARED_MEMORY = "shared-memory"  # tensors lie where the gateway does not look
    RAW = "raw"  # a body of bytes alone, which the model reads by its own configuration
    FEEDBACK = "feedback"  # the request is about an answer
    BACKGROUND = "background"  # the answer is not awaited, but asked for again until it is there
    CONVERSATION = "conversation"  # the call changes a conversation that the backend keeps
    JOB = "job"  # the request is about an answer that comes later


STATEFUL = frozenset({Bypass.SEQUENCE, Bypass.SHARED_MEMORY, Bypass.BACKGROUND, Bypass.CONVERSATION})


class Refusal(StrEnum):
    """Why a neighbour's answer was not accepted for this question."""

    SIMILARITY = "similarity"
    PAYLOAD = "payload"  # the text to be translated, summarised, ... or a quoted one is another
    TEMPLATE = "template"  # prompts of one frame, and what varies in it is another
    NUMBERS = "numbers"
    NEGATION = "negation"
    ENTITIES = "entities"
    DIRECTION = "direction"
    ANTONYM = "antonym"
    COUNTEREXAMPLE = "counterexample"  # a client said that this answer is wrong for this question
    EXPIRED = "expired"
    FOREIGN = "foreign"  # the record belongs to another scope than the index said


class Admission(StrEnum):
    """Whether an answer may be stored, and if not, why."""

    STORED = "stored"
    ERROR_STATUS = "error-status"
    NO_STORE = "no-store"  # the backend said Cache-Control: no-store
    INCOMPLETE = "incomplete"  # finish_reason=length, or content_filter
    CUT = "cut"  # the stream ended before its end marker
    TOOLS = "tools"
    TOO_LARGE = "too-large"
    TEMPERATURE = "temperature"  # this and what follows: the policy's `admit`
    ROLE = "role"
    TOO_SHORT = "too-short"
    TOO_LONG = "too-long"
    TOO_CHEAP = "too-cheap"
    RARE = "rare"  # not asked often enough lately
    MALFORMED = "malformed"
    PURGED = "purged"  # a removal that came while it was fetched means it


class Choice(StrEnum):
    """Why a backend was chosen."""

    ONLY = "only-backend"
    SIMPLE = "below-threshold"
    COMPLEX = "above-threshold"
    BUDGET = "budget"  # the large model's predicted latency does not fit what is left
    FALLBACK = "fallback"  # the first choice failed before its first byte
    LIMIT = "limit"  # the policy's `limits` leave the lightest model alone
    OVERLOADED = "overloaded"  # the first choice had no place, or none in time
    ACCEPTED = "cascade-accepted"  # the lightest model was tried first, and the check was confident of its answer
    ESCALATED = "cascade-escalated"  # the check was not, or could not tell, or there was no answer to check
    KEPT = "cascade-kept"  # the check was not, and nobody better could answer, or none in time


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event of an answer, in the client dialect's own wire form.

    `data` is the payload of the `data:` lines, joined with newlines; `name` that of `event:`.
    """

    data: bytes
    name: str | None = None

    def frame(self) -> bytes:
        """The event as it goes over the wire, with its closing blank line."""
        head = b"" if self.name is None else b"event: " + self.name.encode() + b"\n"
        if b"\n" in self.data:
            return head + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"
        return head + b"data: " + self.data + b"\n\n"


@dataclass(frozen=True, slots=True)
class Whole:
    """A body that is complete in memory."""

    data: bytes


@dataclass(frozen=True, slots=True)
class EventStream:
    """A body of server-sent events. Whoever holds it iterates it to the end or calls `aclose()` on it."""

    events: AsyncIterator[Event]


@dataclass(frozen=True, slots=True)
class ByteStream:
    """An opaque body, relayed as it comes."""

    chunks: AsyncIterator[bytes]


Frame = str | bytes
"""What one side of a WebSocket says: text or binary."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a WebSocket: a status code (RFC 6455 section 7.4) and a reason."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """The backend has agreed to a WebSocket. Whoever holds it relays it to its end, or closes it."""

    upstream: Duplex


Body = Whole | EventStream | ByteStream | Tunnel


@dataclass(frozen=True, slots=True)
class Usage:
    """The tokens of one call to a backend."""

    backend: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where an answer came from: the source of Cache-Status, the x-nearhit-* headers and the metric labels."""

    verdict: Verdict
    reason: str | None = None  # a member of Bypass, Refusal or Choice
    similarity: float | None = None  # in [0, 1], semantic hits
    age_s: float | None = None  # hits: seconds since the answer was made
    ttl_s: float | None = None  # hits: seconds of freshness left
    backend: str | None = None
    tier: str | None = None  # light | large, where the route has tiers
    complexity: float | None = None  # in [0, 1]
    stored: bool = False  # the answer is, or at its end will be, stored
    saved_tokens: int = 0  # output and input tokens that a hit did not cost
    saved_dollars: float = 0.0
    fingerprint: str = ""  # hits: of the stored answer
    output_tokens: int = 0  # hits: of the stored answer; 0 where it does not tell
    upstream_s: float = 0.0  # hits: how long the stored answer took to come
    beside: tuple[Usage, ...] = ()  # calls that were made for this answer, and are paid for, but are not this answer


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]  # end-to-end headers, without framing and hop-by-hop ones
    body: Body
    provenance: Provenance = Provenance(Verdict.MISS)  # what a backend returns; `Dispatch` says more

    @property
    def content_type(self) -> str:
        return next((v for k, v in self.headers if k.lower() == "content-type"), "")


@dataclass(frozen=True, slots=True)
class Call:
    """A request as its dialect understands it."""

    dialect: Dialect
    operation: str  # "chat.completions", "completions", "embeddings", ...
    body: Mapping[str, Any]
    model: str  # as the client named it
    stream: bool
    canonical: bytes  # canonical JSON of everything that decides the answer: what the fingerprint is made of
    context: bytes  # canonical JSON of everything but the question: what the scope is made of
    question: str | None  # the text matched by similarity; None: no semantic lookup
    no_question: Bypass | None  # why there is none
    prompt: str  # the text that complexity is judged on, and what text-only backends are sent
    max_tokens: int | None
    user: str | None  # the end user that the body names
    questions: tuple[str, ...] = ()  # operation embeddings: the texts to embed
    uncached: Bypass | None = None  # why its answer is neither kept nor looked for
    stored: bool = False  # the backend keeps the answer under its id: two runs leave two
    batch: Batch | None = None  # how it is taken apart, where it has several inputs that are independent

    # Puts what the answer repeats of its request, and decides nothing, into one that was made for another request: a
    # whole body or one event's data; None where the protocol repeats nothing.
    own: Callable[[bytes], bytes] | None = None

    @property
    def stateful(self) -> bool:
        """It changes something where it is answered: sent twice, it would not be the same."""
        return self.uncached in STATEFUL


@dataclass(frozen=True, slots=True)
class Embedding:
    vector: Vector
    tokens: int
    truncated: bool  # the text was longer than the model reads: the vector stands for its head only
    unreadable: bool = False  # some of its words are none that the model knows: texts that differ there look the same

    @property
    def partial(self) -> bool:
        """The vector does not stand for the whole text, so nothing may be matched by it."""
        return self.truncated or self.unreadable


@dataclass(frozen=True, slots=True)
class CacheDirectives:
    """Cache-Control of a request (RFC 9111 section 5.2.1), as far as this gateway heeds it."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    min_fresh_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Request:
    id: str
    method: str
    path: str  # as sent, still percent-encoded, without the query
    query: str  # as sent, without "?"
    headers: Mapping[str, str]  # case-insensitive multi-mapping
    source: BodySource  # where the body comes from
    received: float  # monotonic clock, seconds
    trace: Trace
    body: bytes = b""  # read where a dialect claims the path; what nobody claims streams from `source`
    call: Call | None = None  # None: no dialect knows the path
    route: str = ""
    directives: CacheDirectives = CacheDirectives()
    scope: str = ""  # hex SHA-256: who and what may share
    fingerprint: str = ""  # hex SHA-256: the exact key
    embedding: Embedding | None = None
    deadline: float | None = None  # monotonic clock: when the whole answer is due
    ttft_deadline: float | None = None  # monotonic clock: when its first token is due
    tpot_s: float | None = None  # seconds an output token may take
    stale_at_hand: bool = False  # a stored answer past its time may be served where no backend answers
    gathering: Gathering | None = None  # of a part of a call: where the parts that no cache has come together
    priority: Priority = Priority.NORMAL  # where there is not room for all
    lease: int = 0  # the token under which the backend is asked for all gateways on the store; 0: none
    light_only: bool = False  # a limit of the policy keeps it from all but the lightest model
    metered: bool = False  # what it costs is counted: the backend is to tell
    patient: bool = False  # a job: nobody waits for it, so it yields to all others and has no latency budget
    unasked: bool = False  # the gateway's own check of an answer: no client asked for it

    @property
    def tenant(self) -> str:
        return self.trace.tenant


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True, eq=False)  # arrays do not compare
class Placed:
    """A vector with the fingerprint of the embedder that made it, where those of several may meet: vectors of different
    fingerprints are never compared."""

    vector: Vector
    embedder: str


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entry near a question, as the index returns it."""

    fingerprint: str
    similarity: float  # inner product of unit vectors, clipped to [0, 1]
