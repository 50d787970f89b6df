"""The wire protocols that clients speak, in the order in which they may claim a request.

Each is declared with what must be known before it is imported. A dialect is imported at the start if a backend answers
its calls, and otherwise with the first request for it. Other packages declare theirs as entry points of the group
`nearhit.dialects`; these are imported at the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

from gateway.calls import Dialect
from gateway.dialect_traits import Endpoint
from gateway.dialects.open_inference.paths import PATH
from gateway.extensions import Extensions

MAX_PATHS = 1024  # remembered paths, each at most a request line long
VERSIONED = "/v1"  # the path prefix of most APIs
MODELS = VERSIONED + "/models"  # a list that may combine several backends
RESPONSES = VERSIONED + "/responses"  # OpenAI's Responses API, also for WebSockets
MESSAGES = VERSIONED + "/messages"  # Anthropic's


@dataclass(frozen=True, slots=True)
class Declaration:
    """A dialect before it is imported. `path` matches the whole path of its POST requests. Without one it is always
    imported, and has the path itself. Backends of the `adapters` answer its calls, besides those of its own name. If it
    `passes`, its calls do (see `Call`), and it claims no request: what it cannot read passes through, too. The other
    fields are those of `Dialect`."""

    place: str  # module:attribute
    path: re.Pattern[str] | None = None
    adapters: frozenset[str] = frozenset()
    client_header: str | None = None
    token_count_path: str | None = None
    models_path: str | None = None  # of its list of models, besides `MODELS`
    passes: bool = False


AZURE_NAME = r"[^/]+(?:/(?!extensions/)[^/]+)??"  # of a deployment; that of a model at other servers may have a slash
AZURE_PATH = re.compile(
    rf"/openai/(?:v1/(?:chat/completions|completions|embeddings|responses)|responses"
    rf"|deployments/{AZURE_NAME}/(?:chat/completions|completions|embeddings|responses))"
)

NO_PATH = re.compile(r"(?!)")  # of dialects that backends alone speak
_GEMINI_MODELS = r"/v\d+[a-z0-9]*(?:(?:/projects/[^/]+/locations/[^/]+)?/publishers/google)?/models/([^/]+(?:/[^/]+)*):"
GEMINI_PATH = re.compile(_GEMINI_MODELS + "(generateContent|streamGenerateContent|embedContent|batchEmbedContents)")

DECLARED: Mapping[str, Declaration] = {
    "openai": Declaration("gateway.dialects.openai.dialect:OpenAI"),
    "openai-responses": Declaration("gateway.dialects.openai.responses:OpenAIResponses", re.compile(RESPONSES)),
    "anthropic": Declaration(
        "gateway.dialects.anthropic.dialect:Anthropic",
        re.compile(MESSAGES),
        client_header="anthropic-version",
        token_count_path=MESSAGES + "/count_tokens",
    ),
    "kserve": Declaration("gateway.features.kserve.dialect:KServe", PATH, frozenset({"triton", "onnx"})),
    "tfserving": Declaration(
        "gateway.features.tfserving.dialect:TFServing",
        re.compile(r"/v1/models/([^/:]+)((?:/(?:versions|labels)/[^/:]+)?:(predict|classify|regress))"),
    ),
    "torchserve": Declaration(
        "gateway.features.torchserve.dialect:TorchServe",
        re.compile(r"/(predictions|explanations)/([^/]+)(/[^/]+)?"),
    ),
    "azure": Declaration("gateway.features.azure.dialect:Azure", AZURE_PATH),
    "bedrock": Declaration("gateway.features.bedrock.dialect:Bedrock", NO_PATH),
    "gemini": Declaration(
        "gateway.features.gemini.dialect:Gemini",
        GEMINI_PATH,
        client_header="x-goog-api-key",
        token_count_path=_GEMINI_MODELS + "countTokens",
        models_path="/v1beta/models",
    ),
    "mcp": Declaration("gateway.features.mcp.dialect:MCP", re.compile(r"(?:/[^/]+)*/mcp/?")),
    "rerank": Declaration("gateway.features.exact_calls.rerank:Rerank", re.compile(r"(?:/v[12])?/rerank"), passes=True),
    "moderation": Declaration(
        "gateway.features.exact_calls.moderation:Moderation", re.compile(r"/v1/moderations"), passes=True
    ),
    "ollama": Declaration(
        "gateway.features.exact_calls.ollama:Ollama",
        re.compile(r"/api/(?:chat|generate|embed|embeddings)"),
        passes=True,
    ),
    "transcription": Declaration(
        "gateway.features.exact_calls.transcription:Transcription",
        re.compile(r"/v1/audio/(?:transcriptions|translations)"),
        passes=True,
    ),
    "images": Declaration(
        "gateway.features.exact_calls.images:Images", re.compile(r"/v1/images/(?:generations|edits)"), passes=True
    ),
}
DEFAULT = "openai"  # the protocol of the gateway's own errors where no other is known


def path_of(name: str) -> re.Pattern[str]:
    """Return the pattern that a dialect of this wheel declares for its paths."""
    path = DECLARED[name].path
    assert path is not None
    return path


class Dialects(Mapping[str, Dialect]):
    """The dialects by name. Each is imported when it is used first: by a backend at the start, or by a request."""

    def __init__(self, declared: Mapping[str, Declaration]) -> None:
        self._declared = declared
        self._extensions = Extensions("nearhit.dialects", {name: each.place for name, each in declared.items()})
        self._loaded: dict[str, Dialect] = {}

    def __getitem__(self, name: str) -> Dialect:
        """Return the dialect. Raise `KeyError`, or `StartupError` if that of another package is broken."""
        dialect = self._loaded.get(name)
        if dialect is None:
            if name not in self._names:
                raise KeyError(name)
            dialect = self._loaded[name] = self._extensions.load(name)()
        return dialect

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return self._extensions.names()

    def prepare(self, adapters: Iterable[str]) -> None:
        """Import what these adapters answer, and the dialects of other packages. Raise `StartupError`."""
        used = frozenset(adapters)
        for name in self:
            if self._is_eager(name) or name in used or not self._declared[name].adapters.isdisjoint(used):
                self[name]

    def _is_eager(self, name: str) -> bool:
        return name not in self._declared or self._declared[name].path is None

    def _traits(self) -> Iterator[tuple[str, Declaration | Dialect]]:
        """Yield what tells the traits of each dialect, by its name: the declaration of one that may not be imported."""
        yield from ((name, self[name] if self._is_eager(name) else self._declared[name]) for name in self)

    @cached_property
    def client_headers(self) -> Mapping[str, str]:
        """The names of the dialects whose clients are known by a header, by that header."""
        return {each.client_header: name for name, each in self._traits() if each.client_header is not None}

    @cached_property
    def token_count_paths(self) -> Mapping[re.Pattern[str], str]:
        """The names of the dialects that count tokens, by the path at which their clients ask for it."""
        return {
            re.compile(each.token_count_path): name
            for name, each in self._traits()
            if each.token_count_path is not None
        }

    @cached_property
    def model_lists(self) -> Mapping[str, str]:
        """The names of the dialects whose clients find a list of models at a path of their own, by that path."""
        return {each.models_path: name for name, each in self._declared.items() if each.models_path is not None}

    def imported(self, name: str) -> Dialect | None:
        """Return a dialect that is imported already, or None."""
        return self._loaded.get(name)

    def claimant(self, method: str, path: str) -> str | None:
        """Return the name of the dialect of a request, or None if no dialect claims it."""
        for name in self:
            declared = self._declared.get(name)
            if declared is not None and declared.passes:
                claims = False
            elif declared is None or declared.path is None:
                claims = self[name].claims(method, path)
            else:
                claims = method == "POST" and declared.path.fullmatch(path) is not None
            if claims:
                return name
        return None

    def reader(self, path: str) -> str | None:
        """Return the name of the dialect that may read the POST requests of a path which pass through, or None."""
        for name, declared in self._declared.items():
            if declared.passes and declared.path is not None and declared.path.fullmatch(path):
                return name
        return None


DIALECTS = Dialects(DECLARED)


def client_of(headers: Mapping[str, str]) -> str | None:
    """Return the dialect of the client, on any path, or None if no header tells it."""
    return next((name for header, name in DIALECTS.client_headers.items() if header in headers), None)


def answers_client(speaks: str, client: str | None) -> bool:
    """Return whether a backend is of the client's own dialect (`client_of`), for requests that no dialect claims. Those
    of clients that no header tells may go to any backend without such clients."""
    return (speaks if speaks in DIALECTS.client_headers.values() else None) == client


@lru_cache(maxsize=MAX_PATHS)
def counter_of(path: str) -> str | None:
    """Return the name of the dialect whose clients ask at a path how many tokens a conversation has, or None."""
    return next((name for pattern, name in DIALECTS.token_count_paths.items() if pattern.fullmatch(path)), None)


@lru_cache
def endpoint_of(speaks: str) -> Endpoint | None:
    """Return how the endpoints of a dialect are called, or None if no dialect has this name."""
    dialect = DIALECTS.get(speaks)
    return None if dialect is None else dialect.endpoint


@lru_cache
def accepts(speaks: str, dialect: str) -> bool:
    """Return whether a backend that speaks one dialect accepts the calls of another unchanged, by their names."""
    if speaks == dialect:
        return True
    accepted_by = DIALECTS[dialect].accepted_by
    return accepted_by is None or speaks in accepted_by


@lru_cache(maxsize=MAX_PATHS)
def claimant_of(method: str, path: str) -> str | None:
    """Return the name of the dialect of a request, or None if the request passes through unparsed."""
    return DIALECTS.claimant(method, path)


def find_dialect(method: str, path: str) -> Dialect | None:
    """Return the dialect of a request, or None if the request passes through unparsed. Import it if nobody has."""
    name = claimant_of(method, path)
    return None if name is None else DIALECTS[name]


class Unimported(Enum):
    """Stands for the dialect of a request that nobody has imported yet."""

    DIALECT = "unimported"


@lru_cache(maxsize=MAX_PATHS)
def imported_dialect(method: str, path: str) -> Dialect | Unimported | None:
    """Return the dialect of a request, or None if it has none. Import nothing.

    Clear the cache after an import, in the thread of the callers: another thread could do so before an answer of theirs
    is in it.
    """
    name = claimant_of(method, path)
    return None if name is None else DIALECTS.imported(name) or Unimported.DIALECT


@lru_cache(maxsize=MAX_PATHS)
def reader_of(method: str, path: str) -> str | None:
    """Return the name of the dialect that may read a request for the caches, although it passes through, or None."""
    return DIALECTS.reader(path) if method == "POST" else None


def find_reader(method: str, path: str) -> Dialect | None:
    """Return the dialect of `reader_of`, or None. Import it if nobody has."""
    name = reader_of(method, path)
    return None if name is None else DIALECTS[name]


def import_dialects(method: str, path: str) -> None:
    """Import the dialects that claim a request or may read it."""
    if find_dialect(method, path) is None:
        find_reader(method, path)


def suggest_path(method: str, path: str) -> str | None:
    """Suggest a path for one that no dialect claims, or None if no known path is close.

    It adds `/v1`, which the client's base URL may lack, or removes one that occurs twice.
    """
    for other in (VERSIONED + path, path.removeprefix(VERSIONED)):
        if other != path and (DIALECTS.claimant(method, other) is not None or (method == "GET" and other == MODELS)):
            return other
    return None


def error_dialect(method: str, path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the dialect for the gateway's own errors, also for requests that pass through or were not parsed yet.

    The clients of some are known by a header; the default is OpenAI.
    """
    return find_dialect(method, path) or DIALECTS[client_of(headers) or DEFAULT]
