"""The wire protocols that clients speak, in the order in which they may claim a request.

Each is declared with what must be known before it is imported. Other packages declare theirs as entry points of the
group `nearhit.dialects`; these are imported at the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gateway.dialects.anthropic.dialect import Anthropic, speaks_anthropic
from gateway.dialects.open_inference.paths import PATH
from gateway.extensions import Extensions
from gateway.messages import Dialect

MAX_PATHS = 1024  # remembered paths, each at most a request line long
VERSIONED = "/v1"  # the path prefix of most APIs
MODELS = VERSIONED + "/models"  # a list that may combine several backends


@dataclass(frozen=True, slots=True)
class Declaration:
    """A dialect before it is imported. `path` matches the whole path of its POST requests; None: it is always imported,
    and tells itself. Backends of the `adapters` answer its calls, besides those of its own name."""

    place: str  # module:attribute
    path: re.Pattern[str] | None = None
    adapters: frozenset[str] = frozenset()


DECLARED: Mapping[str, Declaration] = {
    "openai": Declaration("gateway.dialects.openai.dialect:OpenAI"),
    "openai-responses": Declaration("gateway.dialects.openai.responses:OpenAIResponses"),
    "anthropic": Declaration("gateway.dialects.anthropic.dialect:Anthropic"),
    "kserve": Declaration("gateway.features.kserve.dialect:KServe", PATH, frozenset({"triton", "onnx"})),
    "tfserving": Declaration(
        "gateway.features.tfserving.dialect:TFServing",
        re.compile(r"/v1/models/([^/:]+)((?:/(?:versions|labels)/[^/:]+)?:(predict|classify|regress))"),
    ),
    "torchserve": Declaration(
        "gateway.features.torchserve.dialect:TorchServe",
        re.compile(r"/(predictions|explanations)/([^/]+)(/[^/]+)?"),
    ),
    "mcp": Declaration("gateway.dialects.mcp:MCP", re.compile(r"(?:/[^/]+)*/mcp/?")),
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
        self._names: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Dialect:
        """Return the dialect. Raise `KeyError`, or `StartupError` if that of another package is broken."""
        dialect = self._loaded.get(name)
        if dialect is None:
            build = self._extensions.load(name)
            if build is None:
                raise KeyError(name)
            dialect = self._loaded[name] = build()
        return dialect

    def __iter__(self) -> Iterator[str]:
        if not self._names:
            self._names = self._extensions.names()
        return iter(self._names)

    def __len__(self) -> int:
        return len(tuple(self))

    def prepare(self, adapters: Iterable[str]) -> None:
        """Import what these adapters answer, and the dialects of other packages. Raise `StartupError`."""
        used = frozenset(adapters)
        for name in self:
            declared = self._declared.get(name)
            if declared is None or declared.path is None or name in used or not declared.adapters.isdisjoint(used):
                self[name]

    def claimant(self, method: str, path: str) -> str | None:
        """Return the name of the dialect of a request; None: no dialect claims it."""
        for name in self:
            declared = self._declared.get(name)
            if declared is None or declared.path is None:
                claims = self[name].claims(method, path)
            else:
                claims = method == "POST" and declared.path.fullmatch(path) is not None
            if claims:
                return name
        return None


DIALECTS = Dialects(DECLARED)


@lru_cache
def accepts(speaks: str, dialect: str) -> bool:
    """Return whether a backend that speaks one dialect accepts the calls of another unchanged, by their names."""
    if speaks == dialect:
        return True
    accepted_by = DIALECTS[dialect].accepted_by
    return accepted_by is None or speaks in accepted_by


@lru_cache(maxsize=MAX_PATHS)
def find_dialect(method: str, path: str) -> Dialect | None:
    """Return the dialect of a request; None: the request passes through unparsed."""
    name = DIALECTS.claimant(method, path)
    return None if name is None else DIALECTS[name]


def suggest_path(method: str, path: str) -> str | None:
    """Suggest a path for one that no dialect claims; None: no known path is close.

    It adds `/v1`, which the client's base URL may lack, or removes one that occurs twice.
    """
    for other in (VERSIONED + path, path.removeprefix(VERSIONED)):
        if other != path and (DIALECTS.claimant(method, other) is not None or (method == "GET" and other == MODELS)):
            return other
    return None


def error_dialect(method: str, path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the dialect for the gateway's own errors, also for requests that pass through or were not parsed yet.

    Anthropic's clients are known by a header; the default is OpenAI.
    """
    return find_dialect(method, path) or (Anthropic() if speaks_anthropic(headers) else DIALECTS[DEFAULT])
