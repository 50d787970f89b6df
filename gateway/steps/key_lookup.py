"""The port of the lookup of API keys.

Its code is imported at the start if clients need keys. Otherwise it is imported once an operator or a job has one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from gateway.adapters.redis.store import RedisStore
from gateway.context import Handler
from gateway.credentials import CredentialRules
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import Principal
from gateway.steps.authenticate import AuthThrottle
from gateway.tasks import run_in

MODULE, STEP = "gateway.features.keys.cache", "gateway.features.keys.step"

LookupResult = Principal | str
"""The principal of a key, or why there is none: `unknown`, `expired`, `revoked`."""

REJECTION_MESSAGES = {
    "unknown": "the API key is not known",
    "expired": "the API key has expired",
    "revoked": "the API key was revoked",
    "mistyped": "the API key is cut or mistyped: its checksum does not fit",
}


class KeyLookup(Protocol):
    """Finds the principals of API keys."""

    def is_valid(self, permit: Principal) -> bool:
        """Return whether a principal is known, without a lookup, to be as good as when it was found."""

    def cached(self, digest: str) -> Principal | None:
        """Return the principal of a key that needs no lookup, or None to look it up."""

    async def find(self, digest: str) -> LookupResult:
        """Look up a key by its digest. Raise `Overloaded` if the store does not answer and the key is not known."""

    async def find_by_id(self, identity: str) -> LookupResult:
        """Look up a key by its id, for work that was accepted while the key was valid. Raise as `find`."""

    async def tenants(self) -> Collection[str]:
        """Return the tenants with a key in the store. Raise `StoreUnavailable`."""

    async def refresh(self) -> None:
        """Poll the store for a change of keys."""

    async def run(self) -> None:
        """Poll until cancelled."""

    async def close(self) -> None:
        """End the lookups in progress."""


@dataclass(slots=True)
class ApiKeys:
    """Opens the lookup of API keys when it is needed. `configured` are the principals of the keys of the configuration,
    by digest."""

    store: RedisStore
    configured: Mapping[str, Principal]
    clock: Clock
    telemetry: Telemetry
    grace_s: float
    _lookup: KeyLookup | None = None
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _starts: asyncio.Lock = field(default_factory=asyncio.Lock)
    _runs: bool = False

    def open(self) -> KeyLookup:
        """Return the lookup, which follows the store once the gateway has begun."""
        if self._lookup is None:
            self._lookup = cast(KeyLookup, import_module(MODULE).open_lookup(self))
        return self._lookup

    def authentication(self, inner: Handler, rules: CredentialRules, failures: AuthThrottle) -> Handler:
        """Return the step that requires a key of each client. `failures` bounds the lookups of invalid keys."""
        step = import_module(STEP).ApiKeyAuth(inner, rules, self.open(), failures, self.telemetry)
        return cast(Handler, step.__call__)

    async def begin(self, stack: AsyncExitStack) -> None:
        """Follow the keys in the store until `stack` closes, at once if the lookup is open."""
        self._stack = await stack.enter_async_context(AsyncExitStack())
        if self._lookup is not None:
            await self.lookup()

    async def lookup(self) -> KeyLookup:
        """Return the lookup, once it has asked the store for the version of the keys."""
        if not self._runs:
            async with self._starts:
                await self._start()
        return self.open()

    async def _start(self) -> None:
        if self._runs:
            return
        await asyncio.to_thread(import_module, MODULE)  # the event loop goes on during the import
        lookup = self.open()
        await lookup.refresh()
        self._stack.push_async_callback(lookup.close)
        run_in(self._stack, lookup.run())
        self._runs = True

    async def refresh(self) -> None:
        """Hear of a change of keys, if they are looked up."""
        if self._lookup is not None:
            await self._lookup.refresh()
