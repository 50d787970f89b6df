"""Tell what an upstream refuses with 401, 402, 403, 404 or an exhausted account: the key, or a model. Pure.

A refusal comes in a millisecond. It says nothing about the speed of the upstream, and everything about its use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.messages import FullBody, Response

UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, TOO_MANY = 401, 402, 403, 404, 429

# With a client's own credentials these are the client's.
OF_CLIENT = frozenset({UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, TOO_MANY})

# Headers with which a client names itself beside the gateway's key: the account to be billed, and the web page. OpenAI
# refuses an unknown organization with 401, Google a foreign project with 403, and Ollama an unknown page with 403.
OF_CALLER = ("openai-organization", "openai-project", "x-goog-user-project", "origin")

MAX_READ_BYTES = 16 * 1024  # of a refusal; longer ones are pages for people

REFUSED_S = 30.0  # for which other upstreams are preferred: the time that a new deployment or permission takes

# The words of OpenAI, Azure, Groq, Mistral, OpenRouter, DeepSeek, Gemini, Anthropic, vLLM, Ollama and Triton.
_NO_MODEL = re.compile(
    rb"model_not_(?:found|available)|invalid_model|DeploymentNotFound|not a valid model|no endpoints found"
    rb'|"models?[:/ ][^"]{0,200}"?[^"]{0,40}(?:not (?:found|exist|supported|available)|does not exist|is unknown)'
    rb'|model not (?:found|exist)|does not have access to model|"not_found_error"[^}]{0,40}"model:',
    re.IGNORECASE,
)
_NO_MODEL_TEXT = re.compile(
    rb"\bmodels?\b[^{}]{0,240}(?:not found|not exist|unknown|not supported|not available|no such)"
    rb"|(?:unknown|no such|invalid) model",
    re.IGNORECASE,
)
# A provider's moderation refuses the prompt and not the caller; a large `max_tokens` exceeds what is left of a balance.
_ABOUT_THE_REQUEST = re.compile(rb"moderat|flagged|content_policy|content_filter|safety|max_tokens", re.IGNORECASE)
_NO_MONEY = re.compile(
    rb"insufficient_quota|insufficient[_ ](?:credits?|balance|funds)|billing_hard_limit", re.IGNORECASE
)


class Refused(StrEnum):
    """An upstream refuses every request that has the same key, model or path."""

    KEY = "key"  # the credentials, or the account behind them
    MODEL = "model"  # the model, or the right to use it
    PATH = "path"  # the path, which the gateway does not read


@dataclass(frozen=True, slots=True)
class Refusal:
    """The last refusal of an upstream. `at` is monotonic."""

    what: Refused
    status: int
    scope: str  # the model or the path, after that word; empty: everything
    at: float


def names_caller(headers: Mapping[str, str]) -> bool:
    """Return whether a refusal may be about the client's own headers. `headers` are the request's."""
    return any(name in headers for name in OF_CALLER)


def refused(response: Response, *, is_read: bool = True) -> Refused | None:
    """Return what the response refuses, or None for nothing beyond this request.

    A key may be good for chats and not for files. So the refusal of a request that passed through unread (not
    `is_read`) concerns the path only.
    """
    status = response.status
    if not is_read:
        return Refused.PATH if status in (UNAUTHORIZED, PAYMENT_REQUIRED) else None
    if status not in (400, UNAUTHORIZED, PAYMENT_REQUIRED, FORBIDDEN, NOT_FOUND, TOO_MANY):
        return None
    body = response.body.data[:MAX_READ_BYTES] if isinstance(response.body, FullBody) else b""
    if status == UNAUTHORIZED:
        return Refused.KEY
    if status == TOO_MANY:
        return Refused.KEY if _NO_MONEY.search(body) else None
    if _NO_MODEL.search(body):
        return Refused.MODEL
    if status == NOT_FOUND:
        return Refused.MODEL if _NO_MODEL_TEXT.search(body) or not body.lstrip().startswith((b"{", b"[")) else None
    if status == 400 or _ABOUT_THE_REQUEST.search(body):
        return None
    return Refused.KEY if status == PAYMENT_REQUIRED else Refused.MODEL
