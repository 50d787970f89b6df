"""Build errors in Google's shape. Pure. https://cloud.google.com/apis/design/errors"""

from __future__ import annotations

from gateway.dialects.json_body import dump_json

# The gateway's and OpenAI's types of errors -> (status, Google's word for it).
KINDS = {
    "invalid_request_error": (400, "INVALID_ARGUMENT"),
    "content_blocked": (400, "INVALID_ARGUMENT"),
    "authentication_error": (401, "UNAUTHENTICATED"),
    "permission_error": (403, "PERMISSION_DENIED"),
    "not_found_error": (404, "NOT_FOUND"),
    "request_too_large": (413, "INVALID_ARGUMENT"),
    "idempotency_error": (422, "ABORTED"),
    "rate_limit_error": (429, "RESOURCE_EXHAUSTED"),
    "internal_error": (500, "INTERNAL"),
    "upstream_error": (502, "UNAVAILABLE"),
    "overloaded_error": (503, "UNAVAILABLE"),
    "guard_unavailable": (503, "UNAVAILABLE"),
    "timeout_error": (504, "DEADLINE_EXCEEDED"),
    "latency_budget_error": (504, "DEADLINE_EXCEEDED"),
    "not_cached": (504, "UNAVAILABLE"),
}
WORDS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    504: "DEADLINE_EXCEEDED",
}


def error(kind: str, message: str) -> bytes:
    """Return an error body. `kind` is the gateway's type; unknown ones become `INTERNAL`."""
    status, word = KINDS.get(kind, (500, "INTERNAL"))
    return error_body(status, word, message)


def error_of_status(status: int, message: str) -> bytes:
    """Return an error body for a response status."""
    return error_body(status, WORDS.get(status, "FAILED_PRECONDITION" if status < 500 else "UNAVAILABLE"), message)


def error_body(status: int, word: str, message: str) -> bytes:
    # The official client knows an error within a stream by these first bytes.
    return dump_json({"error": {"code": status, "message": message, "status": word}})
