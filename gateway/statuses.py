"""The statuses that say that a server has failed. Pure."""

from __future__ import annotations

OVERLOADED = 529  # Anthropic's overload, which says the same as a 503

# Every 5xx but these two, which say that the request is beyond the server: it would fail again.
_BEYOND = frozenset({501, 505})

# With these a server may say in `Retry-After` when it accepts calls again: RFC 6585 section 4, RFC 9110 section 15.6.4.
ASKS_TO_WAIT = frozenset({429, 503, OVERLOADED})


def is_failure(status: int) -> bool:
    """Return whether the server has failed, so that another one, or the same one later, may answer.

    Servers in front of a model send more than RFC 9110 lists, such as Cloudflare's 520 to 527.
    """
    return 500 <= status <= 599 and status not in _BEYOND


def is_overload(status: int) -> bool:
    """Return whether the server says that it has too many calls from all its clients together."""
    return status in (503, OVERLOADED)
