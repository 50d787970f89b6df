"""Durability of a write: whether it is on the server's disk, and on its replicas.

Both are requested on the connection that wrote, because WAITAOF and WAIT cover the writes of that connection.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from gateway.adapters.redis.cluster import client_for_key, key_space_of
from gateway.adapters.redis.replies import UNREADABLE
from gateway.errors import StoreUnavailable

# An append-only file that is synced every second has a write on disk within this time.
DISK_MS = 1_500

# A replica that keeps up has a write within a round trip. One that does not must not delay the caller.
REPLICAS_MS = 1_000


async def replicas_of(client: Any) -> int:
    """Return how many replicas follow now; a replica in its initial sync cannot take over and does not count. Return 0
    if the user may not ask."""
    try:
        info = await client.info("replication")
    except NoPermissionError:
        return 0
    return sum(isinstance(value, dict) and value.get("state") == "online" for value in info.values())


def request_durability(pipe: Any, replicas: int) -> None:
    """Append the durability requests to a pipeline, after its writes. All replicas are included, because any may be the
    next primary."""
    pipe.execute_command("WAITAOF", 1, 0, DISK_MS)
    if replicas:
        pipe.execute_command("WAIT", replicas, REPLICAS_MS)


def is_durable(answers: Sequence[Any], replicas: int) -> bool:
    """Return whether the answers confirm the write on disk and on every replica. Servers before 7.2 or without an
    append-only file reject WAITAOF: the result is then False."""
    waited = answers[0]
    on_disk = isinstance(waited, list) and bool(waited) and int(waited[0]) >= 1
    return on_disk and (not replicas or (isinstance(answers[1], int) and answers[1] >= replicas))


# Whether the store's server syncs each write before it acknowledges it.
#
# The check reads the configuration and does not use WAITAOF. With `appendfsync everysec`, Valkey 9.1.2 acknowledges
# WAITAOF without an fdatasync (docs/decisions/0018). With `always` it acknowledges after one.

CHECK_EVERY_S = 10.0  # an operator may change the setting while the server runs

REQUIRED_SETTINGS = {b"appendonly": b"yes", b"appendfsync": b"always"}


class WriteThrough:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._jobs = key_space_of(client).key("jobs:")  # a key on the server to check
        self._checked_at = float("-inf")

    async def ensure_synced(self) -> None:
        """Return if the server syncs each write before it acknowledges it. Raise `StoreUnavailable` otherwise."""
        if time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        try:
            async with client_for_key(self._client, self._jobs) as owner:
                reply = await owner.execute_command("CONFIG", "GET", "append*")
            pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
            settings = {_bytes(name): _bytes(value) for name, value in pairs}
        except (RedisError, OSError, *UNREADABLE) as error:
            raise StoreUnavailable(
                f"the store does not report whether it syncs each write: {type(error).__name__}"
            ) from None
        if any(settings.get(name) != value for name, value in REQUIRED_SETTINGS.items()):
            raise StoreUnavailable(
                "jobs.fsync is on, but the store's server does not sync each write: expected appendonly yes and "
                "appendfsync always"
            )
        self._checked_at = time.monotonic()


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
