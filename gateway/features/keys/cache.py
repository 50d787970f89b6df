"""Keeps the API keys that this gateway knows: those of the configuration, and recently used ones of the store.

A key of the store is looked up once, then trusted as long as the store reports no change. The gateway polls the version
of the keys four times a second. It trusts a key for at most `MAX_AGE_S` after the last successful poll. So a revocation
takes effect within that time on every gateway that reaches the store, even if polls fail. After a change each key is
looked up again at its next use. If the store does not answer, known keys stay valid for `grace_s`; the keys of the
configuration always stay valid.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.errors import Overloaded, StoreUnavailable
from gateway.features.keys.records import (
    ApiKey,
    KeyStore,
    KeyUnreadable,
    decode,
    listed_keys,
)
from gateway.features.keys.redis import RedisApiKeys
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import CONFIGURED, Principal
from gateway.steps.key_lookup import ApiKeys, LookupResult

LOG = logging.getLogger("nearhit.keys")
POLL_S = 0.25
MAX_AGE_S = 1.0
MAX_KNOWN = 10_000  # keys; 1 kB each
MAX_UNKNOWN = 1_000  # digests of invalid keys; kept apart, so that they evict no key


@dataclass(frozen=True, slots=True)
class _CachedKey:
    result: LookupResult
    generation: int
    requested_at: float  # monotonic clock


class KeyCache:
    """Caches lookups of API keys. `configured` maps digests to principals. For use from one event loop, with `run` as a
    task."""

    def __init__(
        self,
        store: KeyStore,
        configured: Mapping[str, Principal],
        clock: Clock,
        telemetry: Telemetry,
        *,
        grace_s: float,
    ) -> None:
        self._store = store
        self._configured = dict(configured)
        self._clock = clock
        self._telemetry = telemetry
        self._grace_s = grace_s
        self._known: BoundedCache[str, _CachedKey] = BoundedCache(MAX_KNOWN)
        self._unknown: BoundedCache[str, _CachedKey] = BoundedCache(MAX_UNKNOWN)
        self._inflight: dict[str, asyncio.Task[_CachedKey]] = {}
        self._generation = 0
        self._version: bytes | None = None
        self._confirmed = float("-inf")  # monotonic clock: start of the last successful poll
        self._superseded = float("-inf")  # the same, for the previous generation

    def is_valid(self, permit: Principal) -> bool:
        """Return whether a principal is known, without a lookup, to be as good as when it was found."""
        if permit.generation == CONFIGURED:
            return True
        return self._is_confirmed(permit.generation) and (permit.until is None or self._clock.wall() < permit.until)

    def cached(self, digest: str) -> Principal | None:
        """Return the principal of a key that needs no lookup, or None to look it up."""
        configured = self._configured.get(digest)
        if configured is not None:
            return configured
        key = self._known.peek(digest)
        if key is None or not isinstance(key.result, Principal) or not self.is_valid(key.result):
            return None
        return key.result

    async def find(self, digest: str) -> LookupResult:
        """Look up a key by its digest. Raise `Overloaded` if the store does not answer and the key is not known."""
        cached = self.cached(digest)
        if cached is not None:
            return cached
        return await self._lookup(digest, lambda: self._store.by_digest(digest), digest)

    async def find_by_id(self, identity: str) -> LookupResult:
        """Look up a key by its id, for work that was accepted while the key was valid. Raise as `find`."""
        return await self._lookup(identity, lambda: self._store.by_id(identity), None)

    async def tenants(self) -> Collection[str]:
        """Return the tenants with a key in the store. Raise `StoreUnavailable`."""
        return {key.tenant for key in await listed_keys(self._store)}

    async def run(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        """Poll the store for a change of keys."""
        requested_at = self._clock.monotonic()
        try:
            version = await self._store.version()
        except StoreUnavailable:
            return
        if version != self._version:
            self._superseded = self._confirmed
            self._generation += 1
            self._version = version
        self._confirmed = requested_at

    async def close(self) -> None:
        for task in self._inflight.values():
            task.cancel()
        await asyncio.gather(*self._inflight.values(), return_exceptions=True)

    def _is_confirmed(self, generation: int) -> bool:
        return generation == self._generation and self._clock.monotonic() - self._confirmed <= MAX_AGE_S

    async def _lookup(
        self, name: str, fetch: Callable[[], Awaitable[bytes | None]], digest: str | None
    ) -> LookupResult:
        key = self._known.peek(name) or self._unknown.peek(name)
        if key is None or not self._is_confirmed(key.generation):
            key = await self._fetch_shared(name, fetch, digest, key)
        if isinstance(key.result, str):
            return key.result
        until = key.result.until
        return "expired" if until is not None and self._clock.wall() >= until else key.result

    async def _fetch_shared(
        self, name: str, fetch: Callable[[], Awaitable[bytes | None]], digest: str | None, previous: _CachedKey | None
    ) -> _CachedKey:
        """Look up a key once for all requests that wait for it."""
        task = self._inflight.get(name)
        if task is None:
            task = self._inflight[name] = asyncio.create_task(self._fetch(name, fetch, digest))
            task.add_done_callback(lambda task: self._on_done(name, task))
        try:
            return await asyncio.shield(task)
        except StoreUnavailable:
            if previous is not None and self._clock.monotonic() - self._last_confirmed(previous) <= self._grace_s:
                self._telemetry.key_lookups.add("kept")
                return previous
            self._telemetry.key_lookups.add("unavailable")
            raise Overloaded("API keys cannot be looked up now: try again", retry_after_s=1) from None

    async def _fetch(self, name: str, fetch: Callable[[], Awaitable[bytes | None]], digest: str | None) -> _CachedKey:
        generation, requested_at = self._generation, self._clock.monotonic()
        data = await fetch()
        result = self._parse(data, digest, generation)
        key = _CachedKey(result, generation, requested_at)
        self._telemetry.key_lookups.add("absent" if result == "unknown" else "found")
        for cache in (self._known, self._unknown):
            cache.pop(name)
        (self._unknown if result == "unknown" else self._known).put(name, key)
        return key

    def _on_done(self, name: str, task: asyncio.Task[_CachedKey]) -> None:
        self._inflight.pop(name, None)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the waiters have it, or have left

    def _parse(self, data: bytes | None, digest: str | None, generation: int) -> LookupResult:
        if data is None:
            return "unknown"
        try:
            key: ApiKey = decode(data)
        except KeyUnreadable as error:
            LOG.error("a key in the store cannot be read, so it is refused: %s", error)
            return "unknown"
        if digest is not None and all(secret.digest != digest for secret in key.secrets):
            return "unknown"
        if key.revoked is not None:
            return "revoked"
        return key.permit(digest, generation)

    def _last_confirmed(self, key: _CachedKey) -> float:
        """Return when the result was last known to be true, on the monotonic clock."""
        if key.generation == self._generation:
            return max(key.requested_at, self._confirmed)
        if key.generation == self._generation - 1:
            return max(key.requested_at, self._superseded)
        return key.requested_at


def open_lookup(keys: ApiKeys) -> KeyCache:
    """Build the lookup of a gateway."""
    return KeyCache(RedisApiKeys(keys.store), keys.configured, keys.clock, keys.telemetry, grace_s=keys.grace_s)
