"""Build errors in Anthropic's shape. Pure. https://platform.claude.com/docs/en/api/errors"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.json_body import dump_json
from gateway.dialects.translation.reading import error_message, is_context_overflow

KINDS = frozenset(
    {
        "invalid_request_error", "authentication_error", "billing_error", "permission_error", "not_found_error",
        "request_too_large", "rate_limit_error", "timeout_error", "api_error", "overloaded_error",
    }
)  # fmt: skip
# The gateway's error types that Anthropic names differently.
OWN_KINDS = {"latency_budget_error": "timeout_error", "content_blocked": "invalid_request_error"}
BY_STATUS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def kind_for_status(status: int) -> str:
    """Return the error type for a response status."""
    return BY_STATUS.get(status, "invalid_request_error" if status < 500 else "api_error")


def error(kind: str, message: str) -> bytes:
    """Return an error body. `kind` is Anthropic's or the gateway's type; unknown ones become `api_error`."""
    known = kind if kind in KINDS else OWN_KINDS.get(kind, "api_error")
    return dump_json({"type": "error", "error": {"type": known, "message": message}})


def sentence_of(status: int, data: bytes) -> str:
    """Return the message of an error of another protocol. Claude Code compacts a conversation if it reads Anthropic's
    words for that."""
    message = error_message(status, data)
    return f"prompt is too long: {message}" if is_context_overflow(data) else message


def error_sentence(body: Mapping[str, Any]) -> str:
    """Return the message of an error in Anthropic's or OpenAI's shape, cut to 300 characters."""
    given = body.get("error")
    message = given.get("message") if isinstance(given, dict) else given
    return str(message)[:300]
