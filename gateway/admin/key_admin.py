"""What operators do with keys: in the store first, and then here at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gateway.admin.key_requests import Change, Rotation, Wanted, changed, made, revoked, rotated
from gateway.api_keys import Key, KeyChange, KeyStore, KeyUnreadable, Outdated, decode, encode
from gateway.errors import BadRequest, NotFound, Overloaded
from gateway.ports import Clock
from gateway.steps.key_cache import Keyring

MAX_KEYS = 10_000
FORGOTTEN_S = 90 * 86_400.0  # after its end a key is only of use to tell that it has ended
ATTEMPTS = 5


class Keychain:
    """Every method raises `StoreUnavailable`, where nothing was done, or `Refused`."""

    def __init__(self, store: KeyStore, keyring: Keyring, clock: Clock) -> None:
        self._store = store
        self._keyring = keyring
        self._clock = clock

    async def listed(self) -> Sequence[Key]:
        """The youngest first."""
        found = []
        for data in await self._store.listed():
            try:
                found.append(decode(data))
            except KeyUnreadable:  # of a later version: whoever shows it is told that it is not known
                continue
        return sorted(found, key=lambda key: (-key.created, key.id))

    async def one(self, identity: str) -> Key:
        return _read(await self._store.by_id(identity))

    async def create(self, wanted: Wanted, given: Mapping[str, Any], by: str) -> tuple[Key, str]:
        """The key and its text, which nobody can be told again."""
        now = self._clock.wall()
        await self._make_room(now)
        key, text = made(wanted, given, by, now)
        await self._swap(None, key)
        return key, text

    async def change(self, identity: str, change: Change, given: Mapping[str, Any]) -> Key:
        key, _ = await self._changed(identity, lambda key, now: changed(key, change, given, now))
        return key

    async def rotate(self, identity: str, rotation: Rotation) -> tuple[Key, str]:
        texts: list[str] = []

        def become(key: Key, now: float) -> Key:
            key, text = rotated(key, rotation, now)
            texts.append(text)
            return key

        key, _ = await self._changed(identity, become)
        return key, texts[-1]

    async def revoke(self, identity: str) -> tuple[Key, bool]:
        """The key, and whether its end is known to have reached the store's disk."""
        return await self._changed(identity, revoked, synced=True)

    async def _changed(
        self, identity: str, become: Callable[[Key, float], Key], *, synced: bool = False
    ) -> tuple[Key, bool]:
        for _ in range(ATTEMPTS):
            data = await self._store.by_id(identity)
            before = _read(data)
            now = self._clock.wall()
            key = become(before.without_old_secrets(now), now)
            try:
                return key, await self._swap(before, key, data, synced=synced)
            except Outdated:  # somebody else has changed it meanwhile
                continue
        raise Overloaded("others are changing this key, nothing was done: try again", retry_after_s=1)

    async def _swap(
        self, before: Key | None, key: Key | None, data: bytes | None = None, *, synced: bool = False
    ) -> bool:
        former, digests = _digests(before), _digests(key)
        some = key or before
        assert some is not None
        new = None if key is None else encode(key)
        change = KeyChange(some.id, data, new, sorted(digests - former), sorted(former - digests))
        durable = await self._store.swap(change, synced=synced)
        await self._keyring.refresh()
        return durable

    async def _make_room(self, now: float) -> None:
        keys = await self.listed()
        if len(keys) < MAX_KEYS:
            return
        over = [key for key in keys if (key.ended(now) or now) < now - FORGOTTEN_S]
        for key in over:
            data = await self._store.by_id(key.id)
            if data is not None:
                await self._swap(key, None, data)
        if len(keys) - len(over) >= MAX_KEYS:
            raise BadRequest(f"there are {MAX_KEYS} keys: those that ended 90 days ago make room, and none has")


def _read(data: bytes | None) -> Key:
    if data is None:
        raise NotFound("there is no such key")
    try:
        return decode(data)
    except KeyUnreadable as error:
        raise BadRequest(f"the key cannot be read by this gateway: {error}") from None


def _digests(key: Key | None) -> set[str]:
    return set() if key is None else {secret.digest for secret in key.secrets}
