"""Where an answer came from, and the typed reasons of what the gateway did and did not do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


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
