"""Parse the requests that clients submit as jobs. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.adapters.system.ssrf_guard import TargetRefused, check_url
from gateway.credentials import CredentialRules
from gateway.dialects.targets import target_of
from gateway.errors import BadRequest
from gateway.features.jobs.store import Headers
from gateway.priority import Priority

WEBHOOK = "x-job-webhook"
QUERY = ":query"  # a query with a key is sealed under this name, which no header can have
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})
FIELDS = frozenset({"path", "body", "method", "webhook", "priority", "idempotency_key"})
# Paths that the gateway serves itself, including those of jobs.
OWN = re.compile(r"/v1/(jobs|feedback|batches|files)(/.*)?|/(healthz|readyz)")
TARGET = re.compile(r"/[!-~]{0,4095}")
KEY = re.compile(r"[!-~]{1,255}")
# Headers of the connection, or set again when the job runs. Clients' latency budgets are for a waiting client.
DROPPED_HEADERS = frozenset(
    {
        "accept-encoding", "connection", "content-encoding", "content-length", "expect", "host", "idempotency-key",
        "keep-alive", "prefer", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "x-priority", "x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms", WEBHOOK,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobRequest:
    """A submitted request, and how its client wants the response."""

    method: str
    path: str
    query: str
    body: bytes
    webhook: str
    priority: Priority
    key: str  # idempotency key; empty: none

    @property
    def digest(self) -> str:
        """The digest of everything that an idempotency key identifies."""
        parts = (self.method, self.path, self.query, self.webhook)
        return hashlib.sha256("\n".join(parts).encode() + b"\n" + self.body).hexdigest()


def parse_preferred(
    method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, allowed: Iterable[str]
) -> JobRequest:
    """Parse a request with `Prefer: respond-async`, on its own path. Raise `BadRequest`.

    `allowed` are private hosts that webhooks may name.
    """
    if method not in METHODS or headers.get("upgrade"):
        raise BadRequest(
            f"Prefer: respond-async is not possible here: expected {', '.join(sorted(METHODS))}, and no upgrade"
        )
    if OWN.fullmatch(path):
        raise BadRequest(f"Prefer: respond-async is not possible for {path[:128]}: expected a model's path")
    priority = headers.get("x-priority", "normal")
    return JobRequest(
        method, path, query, body, _webhook(headers.get(WEBHOOK), allowed), _priority(priority, "x-priority"),
        _key(headers.get("idempotency-key"), "Idempotency-Key"),
    )  # fmt: skip


def parse_description(fields: Mapping[str, Any], headers: Mapping[str, str], allowed: Iterable[str]) -> JobRequest:
    """Parse the body of `POST /v1/jobs`. Raise `BadRequest`."""
    unknown = sorted(set(fields) - FIELDS)
    if unknown:
        name = unknown[0][:64]
        raise BadRequest(f"{name!r} is not a field of a job: expected {', '.join(sorted(FIELDS))}", param=name)
    target, method = fields.get("path"), fields.get("method", "POST")
    if not isinstance(target, str) or not TARGET.fullmatch(target) or "#" in target:
        raise BadRequest("'path' is missing or invalid: expected one such as /v1/chat/completions", param="path")
    path, query = target_of(str(method), target)
    if OWN.fullmatch(path):
        raise BadRequest(f"'path' {path[:128]} is served by the gateway itself: expected a model's path", param="path")
    if method not in METHODS:
        raise BadRequest(f"'method' is invalid: expected one of {', '.join(sorted(METHODS))}", param="method")
    body = b"" if fields.get("body") is None else orjson.dumps(fields["body"])
    key = fields.get("idempotency_key", headers.get("idempotency-key"))
    priority = fields.get("priority", headers.get("x-priority", "normal"))
    return JobRequest(
        str(method), path, query, body, _webhook(fields.get("webhook"), allowed), _priority(priority, "'priority'"),
        _key(key, "'idempotency_key'"),
    )  # fmt: skip


def stored_headers(
    headers: Mapping[str, str], body: bytes, rules: CredentialRules, *, explicit: bool
) -> tuple[Headers, Headers]:
    """Return the headers to run the job with, and the credentials. `rules` tell which headers are credentials.

    If the request is `explicit`, a JSON object described it, so its Content-Type is that of the description.
    """
    pairs = [(name, value) for name, value in headers.items() if name.lower() not in DROPPED_HEADERS and name[0] != ":"]
    plain = [(name, value) for name, value in pairs if not rules.is_secret(name)]
    if explicit:
        plain = [(name, value) for name, value in plain if name.lower() != "content-type"]
        if body:
            plain.append(("Content-Type", "application/json"))
    if body:
        plain.append(("Content-Length", str(len(body))))
    return tuple(plain), tuple((name, value) for name, value in pairs if rules.is_secret(name))


def _webhook(value: object, allowed: Iterable[str]) -> str:
    if value is None:
        return ""
    try:
        return check_url(value, frozenset(allowed))
    except TargetRefused as refused:
        raise BadRequest(f"the webhook is refused: {refused}") from None


def _priority(value: object, where: str) -> Priority:
    try:
        return Priority[str(value).strip().upper()]
    except KeyError:
        raise BadRequest(f"{where} is invalid: expected high, normal or low") from None


def _key(value: object, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not KEY.fullmatch(value):
        raise BadRequest(f"{where} is invalid: expected 1 to 255 printable ASCII characters without spaces")
    return value
