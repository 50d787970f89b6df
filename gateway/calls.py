"""A model call as its dialect reads it, and the protocols that clients speak.

A call never changes after its creation; a step makes another one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.dialect_traits import AnswerParts, DemandedForm, Endpoint, OpenParts, Tunable
from gateway.long_questions import MAX_WHOLE, split_question
from gateway.messages import Event
from gateway.outcomes import Admission, Bypass
from gateway.prices import Tokens, Unit
from gateway.text_forms import fold_forms

EMBEDDINGS = "embeddings"  # the operation of calls for vectors, in all dialects

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
    # Its backends get it as it came. It is routed, metered and repeated like a request that no dialect reads: the
    # caches alone read it.
    passes: bool = False
    questions: tuple[str, ...] = ()  # if it embeds: the texts
    uncached: Bypass | None = None  # why its answer is neither stored nor looked up
    stored: bool = False  # the backend stores the answer under an id: two calls store two answers
    batch: InputSplit | None = None  # how to split it, if it has several independent inputs
    body_bytes: bytes | None = None  # `body` as JSON, if available
    tuning: str = ""  # the parameters that a tier has set on it, or "" for the client's own
    added: frozenset[str] = frozenset()  # fields of `body` that a tier has added
    path: str | None = None  # by which routes know it; None: the path of its request
    query: str | None = None  # the part of its request's query that decides the answer; None: all of it

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
    def settings(self) -> Mapping[str, Any]:
        """The object in the body with the parameters of the model, such as the temperature."""
        field = self.dialect.settings_field
        if field is None:
            return self.body
        settings = self.body.get(field)
        return settings if isinstance(settings, Mapping) else {}

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
    written_tokens: int = 0  # input tokens that the backend wrote to its prompt cache
    reasoning_tokens: int = 0  # output tokens that are no part of the answer
    billed: tuple[Unit, float] | None = None  # the amount of another unit that providers bill
    hints: CacheHints = CacheHints()

    @property
    def tokens(self) -> Tokens:
        return Tokens(
            self.input_tokens, self.output_tokens, self.cached_tokens, self.written_tokens, self.reasoning_tokens
        )


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
    query: str = ""  # of a translated call, which does not get the client's


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


class EventParser(Protocol):
    """Parses the chunks of a stream."""

    @property
    def keeps_open(self) -> bool:
        """Whether something came that is no event, and by which the server keeps the connection open."""

    @property
    def recent(self) -> list[Event]:
        """The last events, from which a dialect tells whether the stream is over."""

    def feed(self, chunk: bytes) -> list[Event]:
        """Return the events that `chunk` completes. Raise `UpstreamStreamError`."""

    def close(self) -> list[Event]:
        """Return the event that the end of the body completes, if any."""


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The form of an endpoint's streams, if that is not server-sent events.

    `parser` makes a parser whose argument is the longest event in bytes.
    """

    media_type: str
    parser: Callable[[int], EventParser]


class Dialect(Protocol):
    """A wire protocol that clients speak. Pure: no I/O, no clock. `BaseDialect` has what most of them have."""

    @property
    def name(self) -> str: ...

    @property
    def endpoint(self) -> Endpoint: ...

    @property
    def stream_form(self) -> StreamForm | None:
        """The form of its endpoints' streams, or None for server-sent events."""

    @property
    def client_header(self) -> str | None:
        """The header that all requests of its clients have, on any path, or None if nothing tells these clients."""

    @property
    def reports_usage(self) -> bool:
        """Whether its answers usually report their tokens."""

    @property
    def token_count_path(self) -> str | None:
        """The path at which its clients ask how many tokens a conversation has, as a pattern, or None."""

    @property
    def to_neutral(self) -> Translation | None:
        """The translation of its calls to the neutral form, which is OpenAI's chat, or None."""

    @property
    def from_neutral(self) -> Translation | None:
        """The translation of calls in the neutral form for its backends, or None."""

    def translation_from(self, client: str) -> Translation | None:
        """Return the translation of calls of another dialect, by its name, that loses less than the way over the
        neutral form; None without one."""

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

    @property
    def settings_field(self) -> str | None:
        """The field of a body with the parameters of the model, or None if they stand in the body itself."""

    def with_query(self, call: Call, query: str) -> Call:
        """Return a call as a query that is not empty changes it."""

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

    def token_count(self, tokens: int) -> bytes:
        """Return the body that answers a request to `token_count_path`."""

    def open_parts(self, call: Call) -> OpenParts | None:
        """Return what follows the parts of a stream, or None if its last events tell whether it is over."""

    @property
    def relays(self) -> bool:
        """Whether streams of a backend reach the client byte for byte. They carry more than the answer, such as the ids
        by which a client resumes them."""

    @property
    def reads_streams(self) -> bool:
        """Whether an answer may be a stream of events. One that comes all the same reaches the client byte for byte."""

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

    @property
    def reads_comments(self) -> bool:
        """Whether its clients ignore comments in a stream. Others get `keep_alive` in place of those of a backend."""

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
