"""Who answers, and the protocols that clients speak."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.messages import Admission, Call, Closing, Event, Frame, RequestContext, Response
from gateway.precedence import Priority


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


@dataclass(frozen=True, slots=True)
class Crowd:
    """What is asked of a backend at once."""

    inflight: int
    limit: int  # on that, at the moment
    queued: int  # those who wait for a place


class Backend(Protocol):
    """A named service that answers."""

    @property
    def name(self) -> str: ...

    @property
    def http(self) -> bool:
        """Whether paths that no dialect knows can be passed through to it."""

    @property
    def speaks(self) -> str:
        """The name of the dialect that it understands; `text` where it is given a prompt and answers with a text."""

    @property
    def crowd(self) -> Crowd: ...

    def wait_s(self, priority: Priority) -> float:
        """How long a request would wait for a place, as it looks now; 0 where one is free."""

    def send(self, request: RequestContext) -> Awaitable[Response]:
        """Sends the call and answers once the status and the first byte of the body are there.

        Raises `BackendError` when it fails before that. Closing the response's body cancels the call upstream.
        """

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects. Raises `BackendError`."""

    async def ready(self) -> bool:
        """A cheap health probe; never raises."""

    async def close(self) -> None: ...


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
    raw: bytes | None  # None: a part of a sign, which lies in several tokens
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
class Formed:
    """A whole answer as one client is given it."""

    data: bytes
    headers: tuple[tuple[str, str], ...]  # what says how it is to be read, its Content-Type among it


class Batch(Protocol):
    """How a call of several independent inputs is taken apart, and put together again. Pure."""

    def apart(self, call: Call) -> tuple[Call, ...]:
        """A call for each input, in order."""

    def gathered(self, calls: Sequence[Call]) -> Call:
        """One call for the inputs of several that differ in nothing else."""

    def divided(self, calls: Sequence[Call], whole: bytes) -> list[bytes]:
        """The body that answers `gathered(calls)` -> one for each call. Raises `Malformed`."""

    def joined(self, wholes: Sequence[bytes]) -> bytes:
        """The bodies that answer the calls of `apart`, in order -> the one that answers all. Raises `Malformed`."""


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
        request, and to be read without `headers`. Raises `Malformed`."""

    def client_form(self, call: Call, data: bytes) -> Formed | None:
        """A whole answer in its stored form as this client asked for it; None: as it is, with the headers it has.

        Raises `Malformed`, and `BadRequest` where the answer cannot be said in that form."""

    def inspect(self, call: Call, payload: Sequence[bytes], streamed: bool) -> Inspection:
        """Judges a finished answer; `payload` as in `Entry`. Never raises: what it cannot read is `MALFORMED`."""

    def whole(self, call: Call, payload: Sequence[bytes]) -> bytes:
        """The event data of a complete stream -> the body that a non-stream client expects. Lossless.

        Raises `Malformed`.
        """

    def events(self, call: Call, whole: bytes) -> tuple[Event, ...]:
        """A whole body -> the events that a stream client expects. Lossless. Raises `Malformed`."""

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
