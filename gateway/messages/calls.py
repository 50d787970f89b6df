"""A model call as its dialect reads it, and what its client says of caching."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.messages.provenance import Bypass

if TYPE_CHECKING:
    from gateway.ports import Batch, Dialect

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
    batch: Batch | None = None  # how it is taken apart, where it has several inputs that are independent
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
