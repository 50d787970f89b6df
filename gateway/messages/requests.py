"""What clients ask, as far as the gateway understands it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gateway.messages.entries import Embedding
from gateway.messages.provenance import Bypass
from gateway.messages.values import changing, value
from gateway.precedence import Priority

if TYPE_CHECKING:
    from gateway.adapters.gate import Place
    from gateway.adapters.http_client import HttpAnswer, Outward
    from gateway.flights.gathering import Gathering
    from gateway.observing.trace import Trace
    from gateway.ports import Batch, BodySource, Dialect


STATEFUL = frozenset({Bypass.SEQUENCE, Bypass.SHARED_MEMORY, Bypass.BACKGROUND, Bypass.CONVERSATION})


@value(frozen=True, slots=True)
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
    said: str | Callable[[Mapping[str, Any]], str]  # the prompt, or what reads it from the body
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
    def prompt(self) -> str:
        """The text that complexity is judged on, and what text-only backends are sent: few calls are asked for it."""
        return self.said if isinstance(self.said, str) else self.said(self.body)

    @property
    def stateful(self) -> bool:
        """It changes something where it is answered: sent twice, it would not be the same."""
        return self.uncached in STATEFUL


@value(frozen=True, slots=True)
class CacheDirectives:
    """Cache-Control of a request (RFC 9111 section 5.2.1), as far as this gateway heeds it."""

    no_store: bool = False
    no_cache: bool = False
    only_if_cached: bool = False
    max_age_s: float | None = None
    min_fresh_s: float = 0.0


@value(frozen=True, slots=True)
class Asked:
    """What lookups go by of a request."""

    id: str
    tenant: str
    call: Call
    directives: CacheDirectives
    scope: str
    fingerprint: str


def _leads() -> bool:
    return True


class Begun(NamedTuple):
    """A call to a backend that was sent before the stages were asked: they go on with it, under the policy that it was
    sent by."""

    id: str
    received: float  # monotonic clock
    at: float  # monotonic clock: when it was sent
    load: int  # calls ahead of it at its upstream then
    due: float  # time of the event loop: when its answer is to have begun
    place: Place
    resumed: Callable[[Outward, float], Awaitable[HttpAnswer]]
    release: Callable[[], None]  # whatever became of it; as often as you like
    leads: Callable[[], bool] = _leads  # whether who asks the same may still wait for it


@value(frozen=True, slots=True)
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
    unlike: bool = False  # the index has been asked and has nothing near enough, or there is none to ask
    deadline: float | None = None  # monotonic clock: when the whole answer is due
    ttft_deadline: float | None = None  # monotonic clock: when its first token is due
    tpot_s: float | None = None  # seconds an output token may take
    priority: Priority = Priority.NORMAL  # where there is not room for all
    table: Any = None  # `RouteTable`: the policy that it met, where it did before the stages were asked
    peer: str = ""  # the address that it came from; empty: it did not come from a client
    stale_at_hand: bool = False  # a stored answer past its time may be served where no backend answers
    gathering: Gathering | None = None  # of a part of a call: where the parts that no cache has come together
    lease: int = 0  # the token under which the backend is asked for all gateways on the store; 0: none
    light_only: bool = False  # a limit of the policy keeps it from all but the lightest model
    metered: bool = False  # what it costs is counted: the backend is to tell
    patient: bool = False  # a job: nobody waits for it, so it yields to all others and has no latency budget
    unasked: bool = False  # the gateway's own check of an answer: no client asked for it
    begun: Begun | None = None  # its call to a backend, where that is on its way already

    @property
    def tenant(self) -> str:
        return self.trace.tenant

    @property
    def named(self) -> dict[str, str]:
        """What lines of the log call it by."""
        traced = self.trace.traced
        return {"id": self.id} if traced is None else {"id": self.id, "trace_id": traced.trace_id}

    @property
    def bounded(self) -> bool:
        """Whether it has a latency budget of any kind."""
        return self.deadline is not None or self.ttft_deadline is not None or self.tpot_s is not None

    @property
    def due(self) -> float:
        """Monotonic clock: when the answer, or its first token, is due; infinite where nobody waits for it."""
        whole, first = self.deadline, self.ttft_deadline
        return min(math.inf if whole is None else whole, math.inf if first is None else first)

    def embedded(self, embedding: Embedding, *, unlike: bool = False) -> Request:
        """The same with its question as a vector: whatever is not an exact hit comes by here."""
        return _embedded(self, embedding, unlike)

    def apart(self, purpose: str) -> Request:
        """The same, asked once more by the gateway itself: nobody waits, so no budget is to choose the model; and what
        comes of it is not what a lease was taken for. `purpose`: a word for what it is for."""
        return replace(
            self,
            trace=self.trace.apart(purpose),
            deadline=None,
            ttft_deadline=None,
            tpot_s=None,
            lease=0,
            unasked=True,
        )


_embedded = changing(Request, "embedding", "unlike")
