"""Whether the store's server writes through: then what it has acknowledged is on its disk.

By its configuration, and not by WAITAOF: with `appendfsync everysec` Valkey 9.1.2 acknowledges that without a call of
fdatasync in between (docs/decisions/0018); with `always` each acknowledgement comes after one.
"""

from __future__ import annotations

import time
from typing import Any

from redis.exceptions import RedisError

from gateway.adapters.redis.cluster import at_home, names_of
from gateway.errors import StoreUnavailable

CHECK_EVERY_S = 10.0  # an operator may change it while the server runs
WANTED = {b"appendonly": b"yes", b"appendfsync": b"always"}


class Syncing:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._jobs = names_of(client).key("jobs:")  # the server that this is about
        self._known = float("-inf")

    async def synced(self) -> None:
        """Returns if what the server has acknowledged is on its disk. Raises `StoreUnavailable`."""
        if time.monotonic() - self._known < CHECK_EVERY_S:
            return
        try:
            async with at_home(self._client, self._jobs) as home:
                told = await home.execute_command("CONFIG", "GET", "append*")
        except (RedisError, OSError) as error:
            raise StoreUnavailable(
                f"the store does not say whether it writes through: {type(error).__name__}"
            ) from None
        pairs = told.items() if isinstance(told, dict) else zip(told[::2], told[1::2], strict=True)
        found = {_bytes(name): _bytes(value) for name, value in pairs}
        if any(found.get(name) != value for name, value in WANTED.items()):
            raise StoreUnavailable(
                "jobs.fsync is on, and the store's server does not write through: expected appendonly yes and "
                "appendfsync always there"
            )
        self._known = time.monotonic()


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
