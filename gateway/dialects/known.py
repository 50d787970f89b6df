"""The wire protocols that clients speak, in the order in which they may claim a request."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from gateway.dialects.anthropic.dialect import Anthropic, speaks_anthropic
from gateway.dialects.mcp import MCP
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.extensions import Extensions
from gateway.messages import Dialect

EXTENSIONS = Extensions(
    "nearhit.dialects",
    {
        "kserve": "gateway.features.kserve.dialect:KServe",
        "tfserving": "gateway.features.tfserving.dialect:TFServing",
        "torchserve": "gateway.features.torchserve.dialect:TorchServe",
    },
)
DIALECTS: tuple[Dialect, ...] = (
    *(OpenAI(), OpenAIResponses(), Anthropic()),
    *(EXTENSIONS.load(name)() for name in EXTENSIONS.own),
    MCP(),
)

MAX_PATHS = 1024  # remembered paths, each at most a request line long
VERSIONED = "/v1"  # the path prefix of most APIs
MODELS = VERSIONED + "/models"  # a list that may combine several backends

# Further dialects of a vendor, which its backends speak too.
COMPATIBLE = {OpenAIResponses.name: OpenAI.name}


@lru_cache
def can_translate(speaks: str, dialect: str) -> bool:
    """Return whether a backend that speaks one dialect also accepts the other, by their names. Many model servers have
    an MCP endpoint too."""
    return dialect == MCP.name or speaks in (dialect, COMPATIBLE.get(dialect))


@lru_cache(maxsize=MAX_PATHS)
def find_dialect(method: str, path: str) -> Dialect | None:
    """Return the dialect of a request; None: the request passes through unparsed."""
    return next((dialect for dialect in DIALECTS if dialect.claims(method, path)), None)


def suggest_path(method: str, path: str) -> str | None:
    """Suggest a path for one that no dialect claims; None: no known path is close.

    It adds `/v1`, which the client's base URL may lack, or removes one that occurs twice.
    """
    for other in (VERSIONED + path, path.removeprefix(VERSIONED)):
        if other != path and (find_dialect(method, other) is not None or (method == "GET" and other == MODELS)):
            return other
    return None


def error_dialect(method: str, path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the dialect for the gateway's own errors, also for requests that pass through or were not parsed yet.

    Anthropic's clients are known by a header; the default is OpenAI.
    """
    return find_dialect(method, path) or (Anthropic() if speaks_anthropic(headers) else DIALECTS[0])
