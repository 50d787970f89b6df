"""Read from response headers how long an upstream wants no further calls. Pure.

It reads these headers and ignores values that it cannot parse:

- `Retry-After` (RFC 9110 section 10.2.3) and `retry-after-ms` (Azure);
- `x-ratelimit-remaining-*` with `x-ratelimit-reset-*` (OpenAI: `6m0s`, `120ms`);
- `anthropic-ratelimit-*` (RFC 3339 times);
- the IETF's `RateLimit` in its three forms (draft-ietf-httpapi-ratelimit-headers 03, 07 and 10).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import blake2b

from gateway.bounded_cache import BoundedCache
from gateway.statuses import ASKS_TO_WAIT

MAX_BACKOFF_S = 300.0  # the longest pause that one header can cause
RETRY_HEADERS = frozenset({"retry-after", "retry-after-ms"})
MAX_ACCOUNTS = 4096  # of accounts, each with its own limits and scopes; beyond this number the oldest are forgotten
MAX_SCOPE = 256  # characters of a remembered scope; clients write models and paths of any length
_DURATION = re.compile(r"(?:(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d))", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)
_PARAMETER = re.compile(r"(?:^|[;,\s])(remaining|reset|r|t)\s*=\s*(\d{1,12})", re.ASCII)


def bounded_scope(scope: str) -> str:
    """Return the scope, or its beginning and a digest if it is longer than `MAX_SCOPE`."""
    if len(scope) <= MAX_SCOPE:
        return scope
    digest = blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{scope[: MAX_SCOPE - len(digest) - 1]} {digest}"


class UpstreamBackoff:
    """`UpstreamBackoff` keeps the time until which an upstream wants no calls, for each account and scope.

    Limits belong to an account, which is identified by its credentials; "" stands for all. Most of them concern one
    scope of it, such as a model or a path; "" stands for everything. Times are monotonic.
    """

    __slots__ = ("until",)

    def __init__(self) -> None:
        self.until: BoundedCache[tuple[str, str], float] = BoundedCache(MAX_ACCOUNTS)  # usually empty

    def add(self, account: str, until: float, scope: str = "") -> None:
        key = account, scope
        self.until.put(key, max(until, self.until.peek(key) or 0.0))

    def remaining_s(self, account: str, now: float, scope: str = "") -> float:
        """Return the remaining seconds for this account or for all, and for this scope or for everything: 0 if
        calls are allowed."""
        if not self.until:
            return 0.0
        keys = {(account, scope), (account, ""), ("", scope), ("", "")}
        return max(0.0, max(self.until.peek(key) or 0.0 for key in keys) - now)

    def longest_s(self, now: float) -> float:
        """Return the remaining seconds of the longest pause that holds for all accounts, whatever its scope."""
        ends = (self.until.peek(key) or 0.0 for key in tuple(self.until) if not key[0])
        return max(0.0, max(ends, default=0.0) - now)


def rate_limit_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the response headers that `retry_delay_s` reads, with lower-case names. Most responses have none."""
    fields: dict[str, str] = {}
    for name, value in headers:
        low = name.lower()
        if "ratelimit" in low or low in RETRY_HEADERS:
            fields[low] = value
    return fields


def retry_delay_s(status: int, headers: Mapping[str, str], wall: float) -> float:
    """Return the seconds to wait, in [0, `MAX_BACKOFF_S`].

    `headers` come from `rate_limit_headers`; `wall` is in seconds since the epoch. `Retry-After` counts only with
    status 429, 503 and 529. An exhausted limit counts with every status, because the next call would be refused.
    """
    waits = [0.0, *_resets(headers, wall)]
    if status in ASKS_TO_WAIT:
        after = _retry_after(headers, wall)
        if after is not None:
            waits.append(after)
    return min(MAX_BACKOFF_S, max(waits))


def _retry_after(headers: Mapping[str, str], wall: float) -> float | None:
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    seconds = _number(value)
    if seconds is not None:
        return seconds
    at = _http_date(value)
    return None if at is None else max(0.0, at - wall)


def _resets(headers: Mapping[str, str], wall: float) -> Iterator[float]:
    """Yield the seconds until the reset of each exhausted limit."""
    for name, value in headers.items():
        if name.startswith("x-ratelimit-remaining") and _number(value) == 0:
            reset = headers.get(name.replace("remaining", "reset"), "")
            yield from _present(_duration(reset))
        elif name.startswith("anthropic-ratelimit-") and name.endswith("-remaining") and _number(value) == 0:
            at = _rfc3339(headers.get(name.removesuffix("remaining") + "reset", ""))
            yield from _present(None if at is None else max(0.0, at - wall))
        elif name == "ratelimit-remaining" and _number(value) == 0:
            yield from _present(_number(headers.get("ratelimit-reset", "")))
        elif name == "ratelimit":
            yield from _ietf(value)


def _ietf(value: str) -> Iterator[float]:
    """Yield the resets of `"default";r=0;t=30` (one for each policy) or of `limit=100, remaining=0, reset=30`."""
    policies = value.split(",") if ";" in value else [value]
    for policy in policies:
        fields = {name[0] if name in ("r", "t") else {"remaining": "r", "reset": "t"}[name]: int(number)
                 for name, number in _PARAMETER.findall(policy)}  # fmt: skip
        if fields.get("r") == 0 and "t" in fields:
            yield float(fields["t"])


def _present(seconds: float | None) -> Iterator[float]:
    if seconds is not None:
        yield seconds


def _number(value: str) -> float | None:
    value = value.strip()
    return float(value) if _NUMBER.fullmatch(value) else None


def _duration(value: str) -> float | None:
    """Parse `6m0s`, `1.5s` or `120ms` into seconds. A bare number is in seconds."""
    value = value.strip()
    parts = _DURATION.findall(value)
    if parts and "".join(number + unit for number, unit in parts) == value:
        return sum(float(number) * _UNITS[unit] for number, unit in parts)
    return _number(value)


def _http_date(value: str) -> float | None:
    try:
        at = parsedate_to_datetime(value)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def _rfc3339(value: str) -> float | None:
    try:
        at = datetime.fromisoformat(value.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
