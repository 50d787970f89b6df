"""The words for what became of a request: verdicts, reasons, admissions and choices."""

from __future__ import annotations

from enum import StrEnum


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
    LINK = "link"  # its pictures are links, which expire
    NO_TTL = "no-ttl"  # an MCP result without a lifetime: neither the server nor the policy gives one
    UNJUDGED = "unjudged"  # the guard gave no verdict on it, and the policy lets it pass
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
