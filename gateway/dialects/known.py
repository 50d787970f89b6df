"""The wire protocols that clients speak, in the order in which they are asked whether a request is theirs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from gateway.dialects.anthropic import Anthropic, speaks_anthropic
from gateway.dialects.kserve import KServe
from gateway.dialects.openai import OpenAI
from gateway.dialects.openai_responses import OpenAIResponses
from gateway.dialects.tfserving import TFServing
from gateway.dialects.torchserve import TorchServe
from gateway.messages import Dialect

DIALECTS: tuple[Dialect, ...] = (OpenAI(), OpenAIResponses(), Anthropic(), KServe(), TFServing(), TorchServe())

MAX_PATHS = 1024  # that are remembered, of at most a request line each
VERSIONED = "/v1"  # how the paths of most APIs begin
MODELS = VERSIONED + "/models"  # may be put together from several backends'

# Dialects of one vendor, which its backends speak besides the one that they are named after.
COMPATIBLE = {OpenAIResponses.name: OpenAI.name}


@lru_cache
def can_translate(speaks: str, dialect: str) -> bool:
    """Whether a backend that speaks the one dialect can be asked in the other, by their names."""
    return speaks in (dialect, COMPATIBLE.get(dialect))


@lru_cache(maxsize=MAX_PATHS)
def find_dialect(method: str, path: str) -> Dialect | None:
    """Whose request this is; None: nobody's, so that it passes through as it comes."""
    return next((dialect for dialect in DIALECTS if dialect.claims(method, path)), None)


def suggest_path(method: str, path: str) -> str | None:
    """What is meant by a path that no dialect claims: with `/v1`, which its client's base URL lacks, or once where
    it stands twice. None: nothing that is known."""
    for other in (VERSIONED + path, path.removeprefix(VERSIONED)):
        if other != path and (find_dialect(method, other) is not None or (method == "GET" and other == MODELS)):
            return other
    return None


def error_dialect(method: str, path: str, headers: Mapping[str, str]) -> Dialect:
    """In whose shape the gateway's own errors are told, also where a request passes through or was not yet read:
    Anthropic's clients say so in a header; where nothing tells, it is OpenAI's."""
    return find_dialect(method, path) or (Anthropic() if speaks_anthropic(headers) else DIALECTS[0])
