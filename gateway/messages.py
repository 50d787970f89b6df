"""Calls, responses, stored entries, and the dialects that read and write them.

A value of this module never changes after its creation. Values that each request creates are dataclasses without
`frozen`: the constructor of a frozen one takes two to four times as long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gateway.dialect_traits import AnswerParts, DemandedForm, Endpoint, OpenParts, Tunable
from gateway.long_questions import MAX_WHOLE, split_question
from gateway.text_forms import fold_forms


class Verdict(StrEnum):
    """The cache's verdict on a request; the label `verdict` of the metrics."""

    EXACT = "exact"
    SEMANTIC = "semantic"
    STALE = "stale"
    COALESCED = "coalesced"
    MISS = "miss"
    BYPASS = "bypass"


class Bypass(StrEnum):
    """Why the caches were skipped, or why there was no semantic lookup."""

    PASS_THROUGH = "pass-through"  # no dialect claims this path  # noqa: S105 - not a password
    POLICY = "policy"  # the route's policy has both caches off
    NO_STORE = "no-store"  # the client said Cache-Control: no-store
    NO_CACHE = "no-cache"  # the client asked for a fresh answer, which is stored
    NO_TEXT = "no-text"  # nothing to match: no text in the last turn, or images with it
    TOO_LONG = "too-long"  # the question is longer than the embedding model's input
    UNREADABLE = "unreadable"  # the question has words that the embedding model cannot read, e.g. Chinese ones
    EMBEDDER = "embedder-unavailable"
    LOAD = "encoder-busy"  # more questions come than the embedding model can read
    STORE = "store-unavailable"
    SEQUENCE = "sequence"  # the answer depends on requests before this one
    SHARED_MEMORY = "shared-memory"  # tensors are in shared memory, which the gateway does not read
    RAW = "raw"  # a body of raw bytes, which the model reads by its own configuration
    FEEDBACK = "feedback"  # the request is about an answer
    BACKGROUND = "background"  # the answer is polled for, not awaited
    CONVERSATION = "conversation"  # the call changes a conversation that the backend stores
    WEBSOCKET = "websocket"  # the connection of a WebSocket whose messages are the calls
    JOB = "job"  # the request is about an answer that comes later
    MESSAGE = "message"  # an MCP message that may change something, open a stream, or answer a question of the server
    TOOL = "tool"  # an MCP tool that the policy does not list, or that nothing says only reads
    PERSONAL_DATA = "personal-data"  # the request has personal data that the policy keeps out of the caches
    STEP_FAILED = "step-failed"  # a step before the caches failed unexpectedly: see `nearhit_step_failures_total`


class Refusal(StrEnum):
    """Why a neighbour's answer was refused for this question."""

    SIMILARITY = "similarity"
    PAYLOAD = "payload"  # the text to translate, summarise, ... or a quoted text differs
    INSTRUCTION = "instruction"  # another instruction to the model: "Answer in one word.", "Ignore everything else ..."
    TEMPLATE = "template"  # both prompts fill the same template, with different values
    NUMBERS = "numbers"
    IDENTIFIER = "identifier"  # another order number, hash, version, URL, product name, ...
    CODE = "code"  # other code: a function, a pattern, an operator, a path
    UNITS = "units"  # equal numbers with other units, currencies, or times of the day
    COMMAND = "command"  # another command, option or argument
    CASE = "case"  # the same words with capitals that can mean something: IT and it, mW and MW
    ACCENT = "accent"  # the same letters with other accents
    SIGN = "sign"  # other emoji, signs or operators, or punctuation that means something
    NEGATION = "negation"
    ENTITIES = "entities"
    DIRECTION = "direction"
    ANTONYM = "antonym"
    HIDDEN = "hidden"  # the questions differ in characters that nobody sees
    COUNTEREXAMPLE = "counterexample"  # a client or an audit found this answer wrong for this question
    DECOY = "decoy"  # the answer was wrong for a question that is more like this one than the entry's own
    EXPIRED = "expired"
    LOAD = "encoder-busy"  # the cross-encoder would have had to read both questions, and was not asked
    FOREIGN = "foreign"  # the entry's scope differs from the one in the index
    SCREEN = "screen"  # no stored question is near the static vector, so there was no lookup
    UNCONFIRMED = "unconfirmed"  # not confirmed yet: only its writer may have the answer
    TOOL_CALL = "tool-call"  # the answer calls a tool, and the policy or an identifier in the call forbids to serve it


class Basis(StrEnum):
    """Why a neighbour's answer was served without regard to its score."""

    LINK = "link"  # a fresh answer to this question equalled the stored one


class Admission(StrEnum):
    """Whether an answer may be stored; if not, the reason."""

    STORED = "stored"
    ERROR_STATUS = "error-status"
    NO_STORE = "no-store"  # the backend said Cache-Control: no-store
    PRIVATE = "private"  # the answer is private, and clients that nothing tells apart would share the entry
    VARY = "vary"  # the backend's Vary names a header that is not part of the key
    INCOMPLETE = "incomplete"  # finish_reason=length, or content_filter
    EMPTY = "empty"  # it, or one of its choices, has no text and calls no tool: another try may say something
    REFUSED = "refusal"  # the model declines, which it may not do for the next wording, or in the next version
    CUT = "cut"  # the stream ended before its end marker
    TOOLS = "tools"  # it calls a tool that the policy does not name
    FOREIGN_ID = "foreign-id"  # it calls a tool with an identifier that the request does not have
    SCHEMA = "schema"  # it does not fit the JSON Schema of its request
    TOO_LARGE = "too-large"
    TEMPERATURE = "temperature"  # this and the following: the policy's `admit`
    ROLE = "role"
    TOO_SHORT = "too-short"
    TOO_LONG = "too-long"
    TOO_CHEAP = "too-cheap"
    RARE = "rare"  # too few requests for it lately
    MALFORMED = "malformed"
    PURGED = "purged"  # a purge during the fetch covers it
    READ_ONLY = "read-only"  # the API key may not store answers
    NO_TTL = "no-ttl"  # an MCP result without a lifetime: neither the server nor the policy gives one
    SIDE_MESSAGES = "side-messages"  # the server sent more than the result on the result's stream


class Choice(StrEnum):
    """Why a backend was chosen."""

    ONLY = "only-backend"
    SIMPLE = "below-threshold"
    COMPLEX = "above-threshold"
    BUDGET = "budget"  # the large model's predicted latency exceeds the remaining budget
    FALLBACK = "fallback"  # the first choice failed before its first byte
    LIMIT = "limit"  # the policy's `limits` allow only the lightest model
    OVERLOADED = "overloaded"  # the first choice had no permit, or none in time
    ACCEPTED = "cascade-accepted"  # the lightest model was tried first, and the check accepted its answer
    ESCALATED = "cascade-escalated"  # the check rejected the answer, could not tell, or had none to check
    SESSION = "session"  # earlier turns of the session keep it on this backend
    TOOL_RESULT = "tool-result"  # this backend made the tool call, or stores the response that the request continues
    RESOURCE = "resource"  # this backend made the resource that the request names: a response, a file, a batch, ...
    MISFIT = "cascade-misfit"  # the lightest model's answer did not fit the JSON Schema of the request
    STEP_FAILED = "step-failed"  # the choice failed unexpectedly: see `nearhit_step_failures_total`
    KEPT = "cascade-kept"  # the check rejected the answer, but no better model could answer, or none in time


class Affinity(NamedTuple):
    """The backend that made a resource, and the address that did, or None if the backend has one address."""

    backend: str
    upstream: str | None


@dataclass(slots=True)
class Usage:
    """The tokens of one backend call."""

    backend: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # input tokens that the backend read from its prompt cache


@dataclass(slots=True, unsafe_hash=True)
class Provenance:
    """The origin of an answer: the source of Cache-Status, the x-nearhit-* headers and the metric labels."""

    verdict: Verdict
    reason: str | None = None  # a member of Bypass, Refusal, Basis or Choice, or the kind of an error
    similarity: float | None = None  # semantic hits: in [0, 1]
    age_s: float | None = None  # hits: seconds since the answer was made
    ttl_s: float | None = None  # hits: seconds of freshness left
    backend: str | None = None
    tier: str | None = None  # light | large, if the route has tiers
    complexity: float | None = None  # in [0, 1]
    stored: bool = False  # the answer is stored, or will be when it ends
    saved_tokens: int = 0  # output and input tokens that a hit saved
    saved_dollars: float = 0.0
    fingerprint: str = ""  # hits: fingerprint of the stored answer
    output_tokens: int = 0  # hits: the stored answer's; 0 if unknown
    upstream_s: float = 0.0  # hits: duration of the original backend call
    other_usage: tuple[Usage, ...] = ()  # calls for this answer that cost money, too, such as a rejected light answer
    forwarded: bool = True  # unset if the gateway refused the request before it reached a backend
    exclusive: bool = False  # the backend's headers forbid to share the answer with other requests

    def as_stored(self) -> Provenance:
        return replace(self, stored=True)

    def as_exclusive(self) -> Provenance:
        return replace(self, exclusive=True)


MISSED = Provenance(Verdict.MISS)

# Stored answers and their keys.
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


# Responses, and the forms that their bodies can have.

# A number, because `b"\n" in data` takes ten times as long: CPython 3.11 first raises and drops a `TypeError`.
LF = 10


@dataclass(slots=True)
class Event:
    """One server-sent event of an answer, in the wire form of the client's dialect.

    `data` is the payload of the `data:` lines, joined with newlines; `name` is that of `event:`.
    """

    data: bytes
    name: str | None = None

    def frame(self) -> bytes:
        """Return the event in wire form, with its closing blank line."""
        if self.name is None and LF not in self.data:
            return b"data: %b\n\n" % self.data
        head = b"" if self.name is None else b"event: " + self.name.encode() + b"\n"
        if LF in self.data:
            return head + b"".join(b"data: " + line + b"\n" for line in self.data.split(b"\n")) + b"\n"
        return head + b"data: " + self.data + b"\n\n"


@dataclass(slots=True)
class Comment(Event):
    """A comment in a stream of events: a sign of life that is no part of the answer. `data` is its text."""

    def frame(self) -> bytes:
        return b":%b\n\n" % self.data


KEEP_ALIVE = Comment(b" keep-alive")


@dataclass(slots=True)
class FullBody:
    """A body that is complete in memory."""

    data: bytes


@dataclass(slots=True)
class EventStream:
    """A body of server-sent events. Its holder must iterate it to the end or call `aclose()`."""

    events: AsyncIterator[Event]


@dataclass(slots=True)
class ByteStream:
    """An opaque body, relayed as it arrives."""

    chunks: AsyncIterator[bytes]


Frame = str | bytes
"""A WebSocket frame: text or binary."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The end of a WebSocket: a status code (RFC 6455, section 7.4) and a reason."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Tunnel:
    """A WebSocket that the backend has accepted. Its holder must relay it to its end or close it.

    If it `carries_requests`, each of its messages is a request and counts as such, so the connection itself does not.
    """

    upstream: Duplex
    carries_requests: bool = False


Body = FullBody | EventStream | ByteStream | Tunnel


@dataclass(slots=True)
class Response:
    status: int
    headers: tuple[tuple[str, str], ...]  # end-to-end headers, without framing and hop-by-hop headers
    body: Body
    provenance: Provenance = MISSED  # as the backend sets it; `Dispatch` completes it
    wire: bytes | None = None  # head and body in wire form, if ready; the other fields are then empty
    refused: bool = False  # the backend refuses the gateway's own credentials, or lacks the model

    @property
    def content_type(self) -> str:
        for name, value in self.headers:
            if name.lower() == "content-type":
                return value
        return ""


def media_type(content_type: str) -> str:
    """Return the type of a body without its parameters, in lower case (RFC 9110, section 8.3.1)."""
    return content_type.partition(";")[0].strip().lower()


EMBEDDINGS = "embeddings"  # the operation of calls for vectors, in all dialects

# A model call as its dialect reads it, and the client's cache directives.
STATEFUL = frozenset(
    {
        Bypass.SEQUENCE,
        Bypass.SHARED_MEMORY,
        Bypass.BACKGROUND,
        Bypass.CONVERSATION,
        Bypass.MESSAGE,
        Bypass.TOOL,
    }
)


@dataclass(slots=True)
class Decisive:
    """`Decisive` is the part of a call that decides its answer.

    A long question has a `focus`, the part that asks. The digest of its rest is appended to `context`.
    """

    canonical: bytes  # canonical JSON of all of it: the input of the fingerprint
    context: bytes  # canonical JSON of everything but the question: the input of the scope
    question: str | None  # the text of the question, its forms folded, or None without a semantic lookup
    no_question: Bypass | None = None  # why there is no question, or no focus
    focus: str | None = field(init=False)  # the text for the semantic lookup, or None without one

    def __post_init__(self) -> None:
        if self.question is not None and not self.question.isascii():
            self.question = fold_forms(self.question)
        self.focus = self.question
        if self.question is not None and len(self.question) > MAX_WHOLE:
            split = split_question(self.question)
            self.focus, self.context = split.focus, self.context + split.rest
            if self.focus is None:
                self.no_question = Bypass.TOO_LONG


class Content(ABC):
    """A value in the body of a call that is not JSON."""

    __slots__ = ()

    @abstractmethod
    def texts(self) -> Iterator[object]:
        """Yield the texts that an answer may repeat, as strings, as bytes, or within JSON."""


@dataclass(slots=True)
class Call:
    """A request as its dialect understands it."""

    dialect: Dialect
    operation: str  # "chat.completions", "completions", "embeddings", ...
    body: Mapping[str, Any]
    model: str  # as the client named it
    stream: bool
    decisive_source: Decisive | Callable[[], Decisive]  # a function defers the work: without a cache it is never needed
    prompt_source: str | Callable[[Mapping[str, Any]], str]  # the prompt, or a function that reads it from the body
    max_tokens: int | None
    user: str | None  # the end user that the body names
    embeds: bool = False  # its answer is vectors, one for each input
    questions: tuple[str, ...] = ()  # if it embeds: the texts
    uncached: Bypass | None = None  # why its answer is neither stored nor looked up
    stored: bool = False  # the backend stores the answer under an id: two calls store two answers
    batch: InputSplit | None = None  # how to split it, if it has several independent inputs
    body_bytes: bytes | None = None  # `body` as JSON, if available
    tuning: str = ""  # the parameters that a tier has set on it, or "" for the client's own
    added: frozenset[str] = frozenset()  # fields of `body` that a tier has added

    # Rewrites an answer made for another request: it inserts the fields that echo this request and decide nothing. The
    # argument is a whole body or one event's data. None if the protocol echoes nothing.
    own: Callable[[bytes], bytes] | None = None

    @property
    def decisive(self) -> Decisive:
        if not isinstance(self.decisive_source, Decisive):
            self.decisive_source = self.decisive_source()
        return self.decisive_source

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
    def focus(self) -> str | None:
        """The part of the question that is embedded and matched by meaning: all of it, unless it is long."""
        return self.decisive.focus

    @property
    def is_split(self) -> bool:
        """Whether the focus is only a part of a long question."""
        return self.focus is not self.question

    @property
    def no_question(self) -> Bypass | None:
        return self.decisive.no_question

    @property
    def prompt(self) -> str:
        """The text for the complexity score and for text-only backends. It is built on demand, because few calls need
        it."""
        return self.prompt_source if isinstance(self.prompt_source, str) else self.prompt_source(self.body)

    @property
    def stateful(self) -> bool:
        """Whether the call changes state at the backend, so that sending it twice has a different effect."""
        return self.uncached in STATEFUL


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
    """The keys under which one party looks an answer up, and the directives that apply to it there."""

    owner: str
    scope: str
    fingerprint: str
    directives: CacheDirectives


# Backends' WebSockets, and the protocols that clients speak.
class Duplex(Protocol):
    """A WebSocket to a backend."""

    @property
    def protocol(self) -> str | None:
        """The subprotocol that the backend chose from the client's offers."""

    async def send(self, frame: Frame) -> None:
        """Send a frame; wait until that is possible. Raise `ConnectionError` if the other side is gone."""

    async def receive(self) -> Frame | Closing:
        """Return the next frame, or the close."""

    async def drain(self) -> None:
        """Return when the WebSocket may be closed because the gateway stops. It may also end itself, by a `Closing`."""

    async def close(self, closing: Closing) -> None:
        """Close the WebSocket within a bounded time. Closing twice is harmless."""


@dataclass(frozen=True, slots=True)
class CacheHints:
    """The words of an answer about its own caching, or None if it has no such word."""

    ttl_s: float | None = None
    public: bool | None = None  # whether all clients may share it


@dataclass(slots=True)
class Inspection:
    """The dialect's reading of a complete answer."""

    admission: Admission
    input_tokens: int  # 0 if the answer does not tell
    output_tokens: int
    cached_tokens: int = 0  # input tokens that the backend read from its prompt cache
    hints: CacheHints = CacheHints()


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer. `logprob` is the natural logarithm of its probability; `alternatives` are the likeliest
    alternatives."""

    text: str
    logprob: float
    alternatives: tuple[Token, ...] = ()


class TextAnswer(Protocol):
    """`TextAnswer` puts plain text into a dialect's wire form, for backends that return only text."""

    def start(self) -> Sequence[Event]:
        """Return the events before the first text."""

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        """Return the event of a piece of text. `tokens` are those of `text`, if the client asked for log probabilities
        and its dialect supports them."""

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        """Return the events that end the stream. `reason` is `stop` or `length`."""


@dataclass(slots=True)
class Outgoing:
    """A call in the form for a backend that speaks its dialect."""

    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()  # added to the client's own: headers that describe the body


@dataclass(frozen=True, slots=True)
class ClientForm:
    """A whole answer in the form that one client gets."""

    data: bytes
    headers: tuple[tuple[str, str], ...]  # headers that describe the body, including Content-Type


class InputSplit(Protocol):
    """`InputSplit` splits a call of several independent inputs, and joins the answers. Pure."""

    def split(self, call: Call) -> tuple[Call, ...]:
        """Return one call per input, in order."""

    def merge(self, calls: Sequence[Call]) -> Call:
        """Return one call with the inputs of several calls that differ in nothing else."""

    def split_answer(self, calls: Sequence[Call], whole: bytes) -> list[bytes]:
        """Split the body that answers `merge(calls)` into one body per call. Raise `MalformedResponse`."""

    def join_answers(self, wholes: Sequence[bytes]) -> bytes:
        """Join the bodies that answer the calls of `split`, in order, into one body. Raise `MalformedResponse`."""


# Translation of calls for a backend that speaks another dialect.
class TranslatedCall(Protocol):
    """One call in the backend's dialect, and the translation of its answer back.

    Pure, apart from its state for the stream: each answer needs a new one.
    """

    @property
    def outgoing(self) -> Outgoing: ...

    def whole(self, data: bytes) -> bytes:
        """Convert the backend's body of status 200 to the client's. Raise `MalformedResponse`."""

    def events(self, event: Event) -> Sequence[Event]:
        """Convert the next event of the backend's stream to the client's events. Raise `MalformedResponse`."""

    def error(self, status: int, data: bytes) -> bytes:
        """Convert any body of another status to an error in the client's form."""


class Translation(Protocol):
    """A translation from one dialect to another."""

    def __call__(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = False,
        reasoning_content: bool = False,
    ) -> TranslatedCall:
        """Translate a call. Raise `BadRequest` if the other dialect cannot express it.

        Without a `model`, the client's name goes to the backend. `created` is in seconds since the epoch. With
        `cache_control` the backend understands Anthropic's marks for the prompt cache, and with `reasoning_content` it
        reads earlier reasoning from the field of that name.
        """


class TokenLogprobs(Protocol):
    """The support of a dialect for the log probabilities of a response's tokens."""

    def with_logprobs(self, call: Call) -> Call:
        """Return the call with log probabilities requested; `call` itself if its client requests them already."""

    def read(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Sequence[float]:
        """Return natural logarithms, one for each token of the first choice; empty if the response has none."""

    def strip_logprobs(self, call: Call, data: bytes) -> bytes:
        """Return a complete body, or one event's data, without log probabilities."""


class Dialect(Protocol):
    """A wire protocol that clients speak. Pure: no I/O, no clock. `BaseDialect` has what most of them have."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def client_header(self) -> str | None:
        """The header that all requests of its clients have, on any path, or None if nothing tells these clients."""

    @property
    def reports_usage(self) -> bool:
        """Whether its answers usually report their tokens."""

    @property
    def token_count_path(self) -> str | None:
        """The path at which its clients ask how many tokens a conversation has, or None."""

    @property
    def to_neutral(self) -> Translation | None:
        """The translation of its calls to the neutral form, which is OpenAI's chat, or None."""

    @property
    def from_neutral(self) -> Translation | None:
        """The translation of calls in the neutral form for its backends, or None."""

    @property
    def id_header(self) -> str | None:
        """The header in which its clients look for a request id, or None for x-request-id, which every answer has."""

    @property
    def accepted_by(self) -> frozenset[str] | None:
        """The other dialects whose backends accept its calls unchanged, or None if all do."""

    def claims(self, method: str, path: str) -> bool:
        """Return whether such requests belong to this dialect. Requests that no dialect claims are passed through
        unchanged."""

    def parse(self, path: str, body: bytes, headers: Mapping[str, str]) -> Call:
        """Return the call of a request that this dialect claims. `headers` is case-insensitive. Raise `BadRequest`."""

    def outgoing(self, path: str, call: Call, *, model: str | None, kept: bool) -> Outgoing:
        """Return the request for the backend. It is built from the parsed call, never from the raw bytes, so that two
        parsers cannot disagree.

        `model` is the name at the backend, or None for the client's name. With `kept` the answer may be stored, so all
        optional parts are requested. `shown` hides those that this client did not ask for.
        """

    def fitted(self, call: Call, headers: Mapping[str, str]) -> Call:
        """Return a call as its own backends accept it, by the client's headers."""

    def renamed_path(self, path: str, rename: Callable[[str], str | None]) -> str:
        """Return a path that no dialect claims, with the backend's name of the model that it names. `rename` returns
        that name for the client's, or None if it is the same."""

    @property
    def logprobs(self) -> TokenLogprobs | None:
        """Its support of log probabilities, or None if it has none."""

    @property
    def chains_answers(self) -> bool:
        """Whether a request may continue an answer by the id of that."""

    def continued(self, call: Call) -> str | None:
        """Return the id of the answer or conversation that the backend stores and a call continues, or None if it
        continues none."""

    def tunable(self, call: Call) -> Tunable | None:
        """Return the parameters of a call that a tier may set, or None."""

    def demanded_form(self, call: Call) -> DemandedForm:
        """Return the form that a call demands of its answer. A malformed field demands nothing."""

    def answer_parts(self, call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
        """Return the parts of a complete answer, or None if it cannot be read. `payload` as in `Entry`."""

    def is_free(self, call: Call) -> bool:
        """Return whether a call makes no model work."""

    def has_text(self, call: Call) -> bool:
        """Return whether a call has a text whose tokens can be estimated."""

    def estimate_tokens(self, body: Mapping[str, Any]) -> int | None:
        """Estimate the input tokens of a request to `token_count_path`, or None if the body is no such request."""

    def open_parts(self, call: Call) -> OpenParts | None:
        """Return what follows the parts of a stream, or None if its last events tell whether it is over."""

    @property
    def relays(self) -> bool:
        """Whether streams of a backend reach the client byte for byte. They carry more than the answer, such as the ids
        by which a client resumes them."""

    @property
    def reforms(self) -> bool:
        """Whether `stored_form` and `client_form` ever change anything."""

    def stored_form(self, call: Call, data: bytes, headers: Mapping[str, str]) -> bytes:
        """Return a backend's whole answer of status 200 in the form in which it is stored: without request-specific
        parts, and readable without `headers`. Raise `MalformedResponse`."""

    def client_form(self, call: Call, data: bytes) -> ClientForm | None:
        """Return a whole stored answer in the form that this client asked for, or None to leave it unchanged, with its
        own headers.

        Raise `MalformedResponse`, or `BadRequest` if that form cannot express the answer.
        """

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        """Judge a complete answer; `payload` as in `Entry`. Never raise: an unreadable answer is `MALFORMED`."""

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        """Convert the event data of a complete stream to the body for a non-streaming client. Lossless. Raise
        `MalformedResponse`."""

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """Convert a whole body to the events for a streaming client. Lossless. Raise `MalformedResponse`."""

    def renew(self, call: Call, data: bytes, *, answer_id: str, created: int) -> bytes:
        """Return a whole body, or one event's data, as if it were created now.

        Its id is made of `answer_id` in the dialect's form, and its time is `created`, seconds since the epoch. Data
        without id and time is returned unchanged.
        """

    def event(self, call: Call, data: bytes) -> Event:
        """Return the event for stored event data, with its name if the protocol names events."""

    def shown(self, call: Call, event: Event) -> bool:
        """Return whether this client asked for this event; the gateway may have requested more events."""

    def visible_events(self, call: Call, events: Sequence[Event]) -> Sequence[Event]:
        """Return the events that are `shown`."""

    def answer_text(self, call: Call, payload: Sequence[bytes], streamed: bool) -> str | None:
        """Return the plain text of a complete answer; None if it contains anything but text. `payload` as in
        `Entry`."""

    def text_answer(self, call: Call, *, answer_id: str, created: int, model: str) -> TextAnswer: ...

    def embedding_answer(self, call: Call, vectors: Sequence[Sequence[float]], *, model: str) -> bytes:
        """Return the body that answers a call of operation `embeddings`."""

    def error(self, kind: str, message: str, param: str | None = None) -> bytes:
        """Return an error body in the dialect's form. `param` is as in `GatewayError`, for dialects that have a field
        for it."""

    def error_events(self, kind: str, message: str) -> tuple[Event, ...]:
        """Return the events that end a stream which broke after its first byte."""

    @property
    def keep_alive(self) -> Event:
        """The event that keeps a silent stream alive, and that clients ignore."""

    def error_answer(self, event: Event) -> tuple[int, bytes] | None:
        """Return the status and the body of the error that an event reports in place of an answer, or None if it
        reports none. It is asked about the first events of a stream."""

    def is_end(self, event: Event) -> bool:
        """Return whether an event is the end marker of a stream: the answer is complete with it. It is called for each
        event, so it is cheap. In a protocol whose streams have no end marker, no event is one."""

    def is_finished(self, last: Sequence[Event]) -> bool:
        """Return whether the model has said everything in a stream with these last events, before its end marker."""

    def is_over(self, last: Sequence[Event]) -> bool:
        """Return whether a stream with these last events is over, and was not cut. In a protocol whose streams have no
        end marker, any whole event may be the last one."""

    def missing_end(self, last: Sequence[Event]) -> tuple[Event, ...]:
        """Return the end marker, if a stream that is over lacks it: some servers leave it out."""


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


PromptRow = np.ndarray[tuple[int], np.dtype[np.float16]]


class Scorer(StrEnum):
    """The origin of a complexity."""

    TEXT = "text"  # the shipped score, of the text alone
    EMBEDDING = "embedding"  # the shipped score, of the text and its embedding
    CLASSIFIER = "classifier"  # the route's own classifier
    SESSION = "session"  # the last question of the session
    STATED = "stated"  # the expectation of a policy test


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt as the complexity model reads it. A route may learn to score the same row better."""

    score: float  # the shipped complexity, in [0, 1]
    row: PromptRow  # (k,): scaled features of the text, then the embedding; empty if only the score is known
    by: Scorer = Scorer.TEXT


@dataclass(frozen=True, slots=True)
class TierDecision:
    """The tier that the rule prefers, before budgets and failures are considered."""

    large: bool
    threshold: float  # the large model is preferred above this score, in [0, 1]
    carried: float | None = None  # carry for the next request of equal score, in [0, 1); None leaves it


class RequestFacts(NamedTuple):
    """Facts about a request before any decision. Digests are keyed, 16 bytes; durations are seconds."""

    path: str
    model: str
    dialect: str
    operation: str
    headers: tuple[tuple[str, str], ...]  # the headers that the policy in force matches on
    tenant: bytes
    user: bytes  # of the body's user, or b""
    canonical: bytes  # of everything that decides the answer
    context: bytes  # of everything but the question
    question: bytes | None  # None without a semantic lookup
    no_store: bool
    no_cache: bool
    only_if_cached: bool
    max_age_s: float | None
    min_fresh_s: float
    uncached: str | None  # why its answer is neither stored nor looked up
    inputs: bool  # it has several inputs, which are answered separately
    stream: bool
    input_tokens: int  # estimated from its text
    max_tokens: int | None
    temperature: float | None
    roles: tuple[str, ...]
    budget_s: float | None  # the budget that the client states
    patient: bool  # a job, which has no budget


@dataclass(frozen=True, slots=True)
class TrafficFacts:
    """Facts about a recorded request before any decision."""

    plain: bool  # its route uses a plain similarity threshold: the verifier is not used
    request: RequestFacts
    question: str | None  # kept in memory only
    keeps_prompt: bool


# The price of a call.
class Unit(StrEnum):
    """A quantity that providers bill besides tokens: the key of `price` for it."""

    IMAGE = "per_image"
    MINUTE = "per_minute"  # of sound, or of an open WebSocket
    SECOND = "per_second"  # of video
    CHARACTERS = "per_million_characters"  # of a text that is spoken


@dataclass(frozen=True, slots=True)
class Price:
    """A price in US dollars: per million tokens, per call, and per unit of what else a call makes."""

    input_per_million: float = 0.0
    output_per_million: float = 0.0
    cached_input_per_million: float | None = None  # None if cached input costs as much as other input
    per_call: tuple[tuple[str, float], ...] = ()  # globs of paths, each with the dollars of a call; the first counts
    per_unit: tuple[tuple[Unit, float], ...] = ()  # dollars

    @property
    def has_tokens(self) -> bool:
        """Whether tokens have a price."""
        return self.input_per_million > 0 or self.output_per_million > 0

    def of_call(self, path: str, *, named: bool = False) -> float | None:
        """Return the dollars of a call of a path besides its tokens, or None if none are stated. With `named`, a glob
        that fits all paths does not count."""
        for glob, dollars in self.per_call:
            if fnmatchcase(path, glob) and not (named and glob == "*"):
                return dollars
        return None

    def of_unit(self, unit: Unit | None) -> float | None:
        """Return the dollars of one unit, a character or a second among them, or None if it has no price."""
        scale = 1e-6 if unit is Unit.CHARACTERS else 1 / 60 if unit is Unit.MINUTE else 1.0
        return next((scale * dollars for priced, dollars in self.per_unit if priced is unit), None)

    def of(self, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> float:
        """Return the dollars of a call. `cached_tokens` are those of `input_tokens` that a prompt cache supplied."""
        dollars = input_tokens * self.input_per_million + output_tokens * self.output_per_million
        if cached_tokens and self.cached_input_per_million is not None:
            discount = self.input_per_million - self.cached_input_per_million
            dollars -= min(cached_tokens, input_tokens) * discount
        return dollars / 1e6
