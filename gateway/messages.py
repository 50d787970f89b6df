"""Calls, responses, stored entries, and the dialects that read and write them.

A value here never changes once it is made. Where one is made for each request it is a dataclass that is not frozen:
the constructor of a frozen one takes two to four times as long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


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


@dataclass(slots=True)
class Usage:
    """The tokens of one call to a backend."""

    backend: str
    input_tokens: int
    output_tokens: int


@dataclass(slots=True, unsafe_hash=True)
class Provenance:
    """Where an answer came from: the source of Cache-Status, the x-nearhit-* headers and the metric labels."""

    verdict: Verdict
    reason: str | None = None  # a member of Bypass, Refusal or Choice, or the kind of an error
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
    forwarded: bool = True  # False: the gateway refused the request before it went to a backend

    def as_stored(self) -> Provenance:
        return replace(self, stored=True)


MISSED = Provenance(Verdict.MISS)

# What is stored of an answer, and what it is found by.
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
    def partial_reason(self) -> Bypass | None:
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
class EmbeddedVector:
    """A vector with the fingerprint of the embedder that made it, where those of several may meet: vectors of different
    fingerprints are never compared."""

    vector: Vector
    embedder: str


@dataclass(slots=True)
class Neighbour:
    """An entry near a question, as the index returns it."""

    fingerprint: str
    similarity: float  # inner product of unit vectors, clipped to [0, 1]


# What is said back: the forms that a body may have, and the response that carries it.

# A number: `b"\n" in data` takes ten times as long, as CPython 3.11 makes a `TypeError` and drops it first.
LF = 10


@dataclass(slots=True)
class Event:
    """One server-sent event of an answer, in the client dialect's own wire form.

    `data` is the payload of the `data:` lines, joined with newlines; `name` that of `event:`.
    """

    data: bytes
    name: str | None = None

    def frame(self) -> bytes:
        """The event as it goes over the wire, with its closing blank line."""
        if self.name is None and LF not in self.data:
            return b"data: %b\n\n" % self.data
        head = b"" if self.name is None else b"event: " + self.name.encode() + b"\n"
        if LF in self.data:
            return head + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"
        return head + b"data: " + self.data + b"\n\n"


@dataclass(slots=True)
class FullBody:
    """A body that is complete in memory."""

    data: bytes


@dataclass(slots=True)
class EventStream:
    """A body of server-sent events. Whoever holds it iterates it to the end or calls `aclose()` on it."""

    events: AsyncIterator[Event]


@dataclass(slots=True)
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


Body = FullBody | EventStream | ByteStream | Tunnel


@dataclass(slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]  # end-to-end headers, without framing and hop-by-hop ones
    body: Body
    provenance: Provenance = MISSED  # what a backend returns; `Dispatch` says more
    wire: bytes | None = None  # head and body as they go over the wire, where they are known; the rest is empty then

    @property
    def content_type(self) -> str:
        for name, said in self.headers:
            if name.lower() == "content-type":
                return said
        return ""


# A model call as its dialect reads it, and what its client says of caching.
STATEFUL = frozenset({Bypass.SEQUENCE, Bypass.SHARED_MEMORY, Bypass.BACKGROUND, Bypass.CONVERSATION})


@dataclass(slots=True)
class Decisive:
    """What decides a call's answer."""

    canonical: bytes  # canonical JSON of all of it: what the fingerprint is made of
    context: bytes  # canonical JSON of everything but the question: what the scope is made of
    question: str | None  # the text matched by similarity; None: no semantic lookup
    no_question: Bypass | None = None  # why there is none


@dataclass(slots=True)
class Call:
    """A request as its dialect understands it."""

    dialect: Dialect
    operation: str  # "chat.completions", "completions", "embeddings", ...
    body: Mapping[str, Any]
    model: str  # as the client named it
    stream: bool
    found: Decisive | Callable[[], Decisive]  # or what finds it: without a cache nobody asks
    said: str | Callable[[Mapping[str, Any]], str]  # the prompt, or what reads it from the body
    max_tokens: int | None
    user: str | None  # the end user that the body names
    questions: tuple[str, ...] = ()  # operation embeddings: the texts to embed
    uncached: Bypass | None = None  # why its answer is neither kept nor looked for
    stored: bool = False  # the backend keeps the answer under its id: two runs leave two
    batch: InputSplit | None = None  # how it is taken apart, where it has several inputs that are independent
    written: bytes | None = None  # `body` as JSON, where that is at hand

    # Puts what the answer repeats of its request, and decides nothing, into one that was made for another request: a
    # whole body or one event's data; None where the protocol repeats nothing.
    own: Callable[[bytes], bytes] | None = None

    @property
    def decisive(self) -> Decisive:
        if not isinstance(self.found, Decisive):
            self.found = self.found()
        return self.found

    @property
    def canonical(self) -> bytes:
        return self.decisive.canonical

    @property
    def context(self) -> bytes:
        return self.decisive.context

    @property
    def question(self) -> str | None:
        return self.decisive.question

    @property
    def no_question(self) -> Bypass | None:
        return self.decisive.no_question

    @property
    def prompt(self) -> str:
        """The text that complexity is judged on, and what text-only backends are sent: few calls are asked for it."""
        return self.said if isinstance(self.said, str) else self.said(self.body)

    @property
    def stateful(self) -> bool:
        """It changes something where it is answered: sent twice, it would not be the same."""
        return self.uncached in STATEFUL


@dataclass(frozen=True, slots=True)
class CacheDirectives:
    """Cache-Control of a request (RFC 9111 section 5.2.1), as far as this gateway heeds it."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    min_fresh_s: float = 0.0


NO_DIRECTIVES = CacheDirectives()

NO_CACHE = CacheDirectives(no_cache=True)  # of calls that the gateway makes to replace an answer


# Who answers, and the protocols that clients speak.
class Duplex(Protocol):
    """A WebSocket to a backend."""

    @property
    def protocol(self) -> str | None:
        """The subprotocol that the backend has chosen of those that the client offered."""

    async def send(self, frame: Frame) -> None:
        """Waits until it may be sent. Raises `ConnectionError` where the other side is gone."""

    async def receive(self) -> Frame | Closing:
        """The next frame, or how it ended."""

    async def close(self, closing: Closing) -> None:
        """Says goodbye, within bounds. Closing twice does no harm."""


@dataclass(slots=True)
class Inspection:
    """What a dialect reads from a finished answer."""

    admission: Admission
    input_tokens: int  # 0 where the answer does not tell
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer. `logprob`: natural logarithm of how likely it was; `beside`: the likeliest ones."""

    text: str
    logprob: float
    beside: tuple[Token, ...] = ()


class TextAnswer(Protocol):
    """Puts plain text into a dialect's wire form, for backends that know nothing but text."""

    def start(self) -> Sequence[Event]:
        """What goes before the first text."""

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        """`tokens` of `text`, where the client asked how likely they were and its dialect has a place for that."""

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        """What ends the stream. `reason`: `stop` or `length`."""


@dataclass(slots=True)
class Outgoing:
    """A call as it is sent to a backend that speaks its dialect."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()  # beside the client's own: what says how the body is to be read


@dataclass(frozen=True, slots=True)
class ClientForm:
    """A whole answer as one client is given it."""

    data: bytes
    headers: tuple[tuple[str, str], ...]  # what says how it is to be read, its Content-Type among it


class InputSplit(Protocol):
    """How a call of several independent inputs is taken apart, and put together again. Pure."""

    def apart(self, call: Call) -> tuple[Call, ...]:
        """A call for each input, in order."""

    def gathered(self, calls: Sequence[Call]) -> Call:
        """One call for the inputs of several that differ in nothing else."""

    def divided(self, calls: Sequence[Call], whole: bytes) -> list[bytes]:
        """The body that answers `gathered(calls)` -> one for each call. Raises `MalformedResponse`."""

    def joined(self, wholes: Sequence[bytes]) -> bytes:
        """The bodies that answer the calls of `apart`, in order -> the one that answers all. Raises
        `MalformedResponse`."""


class Dialect(Protocol):
    """A wire protocol that clients speak. Pure: no I/O, no clock."""

    @property
    def name(self) -> str: ...

    @property
    def id_header(self) -> str | None:
        """Where its clients look for a request's id; None: in x-request-id, which all answers have."""

    def claims(self, method: str, path: str) -> bool:
        """Whether requests like this are this dialect's. What nobody claims is passed through as it comes."""

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        """The call of a request that this dialect claims; `headers` case-insensitive. Raises `BadRequest`."""

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        """What a backend is sent: what was parsed, never the raw bytes, so that two parsers cannot disagree on it.

        `model`: the name it is asked for by; None: the client's. `kept`: the answer may be stored, so that all of it
        is wanted, what this client did not ask for included (`shown` hides that again)."""

    @property
    def reforms(self) -> bool:
        """Whether `stored_form` and `client_form` ever change anything."""

    def stored_form(self, call: Call, data: bytes, headers: Mapping[str, str]) -> bytes:
        """A backend's whole answer, of status 200, in the form in which it is kept: without what belongs to this one
        request, and to be read without `headers`. Raises `MalformedResponse`."""

    def client_form(self, call: Call, data: bytes) -> ClientForm | None:
        """A whole answer in its stored form as this client asked for it; None: as it is, with the headers it has.

        Raises `MalformedResponse`, and `BadRequest` where the answer cannot be said in that form."""

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        """Judges a finished answer; `payload` as in `Entry`. Never raises: what it cannot read is `MALFORMED`."""

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        """The event data of a complete stream -> the body that a non-stream client expects. Lossless.

        Raises `MalformedResponse`.
        """

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """A whole body -> the events that a stream client expects. Lossless. Raises `MalformedResponse`."""

    def renewed(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        """A whole body, or one event's data, as if it were made now: under an id of the dialect's form made of
        `answer_id`, and with `created`, seconds since the epoch. What has neither comes back as it is."""

    def event(self, call: Call, data: bytes) -> Event:
        """A stored event's data as it goes over the wire, under its name where the protocol names events."""

    def shown(self, call: Call, event: Event) -> bool:
        """Whether this client asked for this event; the gateway itself may have asked for more."""

    def shown_among(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        """Those that are `shown`."""

    def answer_text(self, call: Call, payload: Sequence[bytes], streamed: bool) -> str | None:
        """What a finished answer says, as plain text; None where it is not text alone. `payload` as in `Entry`."""

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer: ...

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        """The body that answers a call of operation `embeddings`."""

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        """An error body in the dialect's own shape. `param`: as in `Refused`, for those that have a place for it."""

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        """What ends a stream that broke after its first byte."""


class Aged(Protocol):
    """A stored answer, as far as its age goes."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def created(self) -> float:
        """Wall clock."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a policy lets answers live; seconds."""

    ttl_s: float
    jitter: float = 0.0  # share of the TTL, in [0, 1], by up to which an entry's own is shorter
    revalidate_s: float = 0.0  # after the TTL: served once more while it is fetched anew (RFC 5861)
    error_s: float = 0.0  # after the TTL: served where no backend answers (RFC 5861)

    @property
    def longest_s(self) -> float:
        """After which nobody has a use for an entry."""
        return self.ttl_s + max(self.revalidate_s, self.error_s)

    def ttl_of(self, entry: Aged) -> float:
        """The entry's own: what was stored together does not expire together. It follows from the fingerprint, so that
        all replicas agree."""
        if self.jitter == 0.0:
            return self.ttl_s
        return self.ttl_s * (1.0 - self.jitter * int(entry.fingerprint[:8], 16) / 0x1_0000_0000)


@dataclass(frozen=True, slots=True)
class TierDecision:
    """What the rule asks for, budgets and failures aside."""

    large: bool
    threshold: float  # the score above which the large model is wanted now, in [0, 1]
    carried: float | None = None  # what the next of equal scores adds its part to, in [0, 1); None: nothing new


class RequestFacts(NamedTuple):
    """What is known of a request before anything is decided. Digests are keyed, 16 bytes; durations are seconds."""

    path: str
    model: str
    dialect: str
    operation: str
    headers: tuple[tuple[str, str], ...]  # those that the policy in force matched by
    tenant: bytes
    user: bytes  # of the body; empty: none
    canonical: bytes  # of all that decides the answer
    context: bytes  # of all but the question
    question: bytes | None  # None: nothing is matched by similarity
    no_store: bool
    no_cache: bool
    only_if_cached: bool
    max_age_s: float | None
    min_fresh_s: float
    uncached: str | None  # why its answer is neither kept nor looked for
    inputs: bool  # it has several, which are answered apart
    stream: bool
    input_tokens: int  # as estimated from its text
    max_tokens: int | None
    temperature: float | None
    roles: tuple[str, ...]
    budget_s: float | None  # the client's own
    patient: bool  # a job: no budget


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """Of a request that is recorded: what is known of it before anything is decided."""

    plain: bool  # its route goes by similarity alone: nothing was asked of the verifier
    given: RequestFacts
    question: str | None  # in memory alone
    keeps_prompt: bool


# What a call costs.
@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0

    def of(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.input_per_million + output_tokens * self.output_per_million) / 1e6
