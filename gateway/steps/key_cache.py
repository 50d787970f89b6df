"""The keys that this gateway knows: of the configuration, and of the store as far as they were shown lately.

A key of the store is looked up once and then believed as long as the store says that no key has changed: the version
of its keys is asked for four times a second. It is believed for at most `MAX_AGE_S` after the last time that the store
said so: within that time a revocation holds on every gateway that reaches the store, however the asking fares. After a
change each key is asked for once more, when it is shown next. Where the store does not answer, what was known goes on
for `grace_s`; the configuration's keys always do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.config.api_keys import ApiKey, KeyStore, KeyUnreadable, decode
from gateway.errors import Overloaded, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.principal import CONFIGURED, Principal

LOG = logging.getLogger("nearhit.keys")
POLL_S = 0.25
MAX_AGE_S = 1.0
MAX_KNOWN = 10_000  # keys; 1 kB each
MAX_UNKNOWN = 1_000  # digests of what is no key; apart, so that they push no key out
LookupResult = Principal | str
"""A permit, or why there is none: `unknown`, `expired`, `revoked`."""


@dataclass(frozen=True, slots=True)
class _CachedKey:
    result: LookupResult
    generation: int
    requested_at: float  # monotonic clock


class KeyCache:
    """`configured`: digest -> permit. To be used from one event loop, `run` beside it."""

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
        self._confirmed = float("-inf")  # monotonic clock: when the store was last asked whether a key has changed
        self._superseded = float("-inf")  # the same of the generation before

    def is_valid(self, permit: Principal) -> bool:
        """Whether it is as good as when it was found, as far as is known without asking."""
        if permit.generation == CONFIGURED:
            return True
        return self._is_confirmed(permit.generation) and (permit.until is None or self._clock.wall() < permit.until)

    def cached(self, digest: str) -> Principal | None:
        """Of a key that need not be asked for."""
        configured = self._configured.get(digest)
        if configured is not None:
            return configured
        known = self._known.peek(digest)
        if known is None or not isinstance(known.result, Principal) or not self.is_valid(known.result):
            return None
        return known.result

    async def find(self, digest: str) -> LookupResult:
        """Raises `Overloaded` where the store does not answer and the key is not known."""
        cached = self.cached(digest)
        if cached is not None:
            return cached
        return await self._lookup(digest, lambda: self._store.by_digest(digest), digest)

    async def find_by_id(self, identity: str) -> LookupResult:
        """For what was asked for while the key was good."""
        return await self._lookup(identity, lambda: self._store.by_id(identity), None)

    async def run(self) -> None:
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        """Learns whether a key has changed."""
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
        known = self._known.peek(name) or self._unknown.peek(name)
        if known is None or not self._is_confirmed(known.generation):
            known = await self._fetch_shared(name, fetch, digest, known)
        if isinstance(known.result, str):
            return known.result
        until = known.result.until
        return "expired" if until is not None and self._clock.wall() >= until else known.result

    async def _fetch_shared(
        self, name: str, fetch: Callable[[], Awaitable[bytes | None]], digest: str | None, previous: _CachedKey | None
    ) -> _CachedKey:
        """A crowd that shows one key asks once."""
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
        known = _CachedKey(result, generation, requested_at)
        self._telemetry.key_lookups.add("absent" if result == "unknown" else "found")
        for cache in (self._known, self._unknown):
            cache.pop(name)
        (self._unknown if result == "unknown" else self._known).put(name, known)
        return known

    def _on_done(self, name: str, task: asyncio.Task[_CachedKey]) -> None:
        self._inflight.pop(name, None)
        if not task.cancelled():
            task.exception()  # whoever waited for it has it, or has left

    def _parse(self, data: bytes | None, digest: str | None, generation: int) -> LookupResult:
        if data is None:
            return "unknown"
        try:
            key: ApiKey = decode(data)
        except KeyUnreadable as error:
            LOG.error("a key of the store is unreadable, and good for nothing: %s", error)
            return "unknown"
        if digest is not None and all(secret.digest != digest for secret in key.secrets):
            return "unknown"
        if key.revoked is not None:
            return "revoked"
        return key.permit(digest, generation)

    def _last_confirmed(self, known: _CachedKey) -> float:
        """Monotonic clock: when it was last known to be so."""
        if known.generation == self._generation:
            return max(known.requested_at, self._confirmed)
        if known.generation == self._generation - 1:
            return max(known.requested_at, self._superseded)
        return known.requested_at
