"""The groups of fields of a request. Each group has one writer, or the few steps that its docstring names.

A request replaces a group as a whole, so requests that agree in one share the object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.credentials import NONE_SHOWN, Credentials
from gateway.principal import Principal


@dataclass(frozen=True, slots=True)
class Client:
    """The client of a request. `Authenticate` sets it. Requests with the same head share it."""

    tenant: str = ""
    """The party whose stored answers it may see."""
    account: str = ""
    """The party that limits and shares of a backend count for: see `gateway.credentials.Credentials`."""
    credentials: Credentials = NONE_SHOWN
    permit: Principal | None = None
    """The rights of its API key, if the gateway requires one."""
    read_only: bool = False
    """Its requests may have hits, and change neither the cache nor what routes learn."""


UNKNOWN_CLIENT = Client()  # of a request that no step has authenticated


class Deadlines(NamedTuple):
    """The latency budget of a request, as times on the monotonic clock. None is no limit. `ParseAndRoute` sets it from
    the request's headers and its route."""

    whole: float | None = None
    """When the whole answer is due."""
    first_token: float | None = None
    """When the first token is due."""
    tpot_s: float | None = None
    """The maximum of seconds per output token."""


NO_DEADLINES = Deadlines()  # of a request without a latency budget
