"""Read the error that an event of a stream reports in place of an answer. Pure.

Servers that have answered 200 before they know of an error say the rest in the stream, in many shapes. OpenAI's and
Anthropic's specifications name theirs; OpenRouter, vLLM, Gemini's compatible endpoint and FastAPI have others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.dialects.json_body import load_json
from gateway.messages import Event

UNKNOWN_STATUS = 502  # of an error that does not say more: another backend may be tried
MAX_MESSAGE = 300  # characters

# Status by the word in `type`, `code` or `status`: of OpenAI, Anthropic and Google.
STATUS_BY_WORD = {
    "invalid_request_error": 400, "invalid_argument": 400, "context_length_exceeded": 400, "invalid_prompt": 400,
    "bad_request": 400, "badrequesterror": 400,
    "authentication_error": 401, "unauthenticated": 401, "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403, "permission_denied": 403,
    "not_found_error": 404, "not_found": 404, "model_not_found": 404, "notfounderror": 404,
    "request_too_large": 413,
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "insufficient_quota": 429, "resource_exhausted": 429,
    "too_many_requests": 429, "tokens": 429, "requests": 429,
    "api_error": 500, "server_error": 500, "internal_server_error": 500, "internal": 500, "internalservererror": 500,
    "service_unavailable": 503, "unavailable": 503, "overloaded": 503,
    "timeout_error": 504, "deadline_exceeded": 504,
    "overloaded_error": 529,
}  # fmt: skip


class ReportedError(NamedTuple):
    """An error as an event reports it."""

    status: int  # 400 to 599
    kind: str
    message: str
    param: str | None
    code: str | None
    body: Mapping[str, Any]  # the data of the event; empty: it is no JSON object


def read_error(event: Event) -> ReportedError | None:
    """Return the error that an event reports, or None if it reports none."""
    named = event.name == "error"
    if not named and b"error" not in event.data and b"response.failed" not in event.data:
        return None
    try:
        body = load_json(event.data)
    except ValueError:
        body = event.data.decode("utf-8", "replace")
    if isinstance(body, list) and body:
        body = body[0]
    if not isinstance(body, dict):
        text = str(body)[:MAX_MESSAGE] or "the backend reported an error"
        return ReportedError(UNKNOWN_STATUS, "upstream_error", text, None, None, {}) if named else None
    error = _error_in(body, named=named)
    return None if error is None else _reported(error, body)


def _error_in(body: Mapping[str, Any], *, named: bool) -> Mapping[str, Any] | None:
    kind, error = body.get("type"), body.get("error")
    if isinstance(error, dict) and not any(error.values()):
        error = None  # an empty form, which some servers send with each chunk
    if kind == "response.failed":
        response = body.get("response")
        error = (response.get("error") if isinstance(response, dict) else None) or {}
    elif not error and (named or kind == "error" or body.get("object") == "error"):
        error = {key: value for key, value in body.items() if (key, value) != ("type", "error")}
    elif not error:
        return None
    return error if isinstance(error, dict) else {"message": error}


def _reported(error: Mapping[str, Any], body: Mapping[str, Any]) -> ReportedError:
    text = error.get("message") or error.get("detail") or body.get("message")
    message = text if isinstance(text, str) and text else "the backend reported an error"
    kind, code, param = error.get("type"), error.get("code"), error.get("param")
    return ReportedError(
        _status_of(error, body),
        kind if isinstance(kind, str) and kind else "upstream_error",
        message[:MAX_MESSAGE],
        param if isinstance(param, str) else None,
        str(code) if isinstance(code, str | int) and not isinstance(code, bool) else None,
        body,
    )


def _status_of(error: Mapping[str, Any], body: Mapping[str, Any]) -> int:
    """Return the status that an error names by a number, or else by a word."""
    words: list[str] = []
    for value in _status_fields(error, body):
        if isinstance(value, str) and not value.isdecimal():
            words.append(value.lower())
        elif isinstance(value, str | int) and 400 <= int(value) <= 599:
            return int(value)
    return next((STATUS_BY_WORD[word] for word in words if word in STATUS_BY_WORD), UNKNOWN_STATUS)


def _status_fields(error: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[Any]:
    for place in (error, body):
        for key in ("status", "status_code", "code", "http_code", "type"):
            yield place.get(key)
