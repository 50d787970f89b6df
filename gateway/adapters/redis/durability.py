"""What of a write is known to outlive the server: that it is on its disk, and that its replicas have it.

Both are asked on the connection that wrote, since a server waits for what that one has written (WAITAOF, WAIT).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError, RedisError

from gateway.adapters.redis.cluster import client_for_key, key_space_of
from gateway.errors import StoreUnavailable

# With an append-only file that is written through every second, what was written is on the disk within it.
DISK_MS = 1_500

# A replica that follows has what was written within a round trip; one that does not must not hold up who waits.
REPLICAS_MS = 1_000


async def replicas_of(client: Any) -> int:
    """How many follow now; one that is still copied to is not one that may take over. 0 where the user may not ask."""
    try:
        info = await client.info("replication")
    except NoPermissionError:
        return 0
    return sum(isinstance(value, dict) and value.get("state") == "online" for value in info.values())


def request_durability(pipe: Any, replicas: int) -> None:
    """To come after what was written, in one pipeline. Of all replicas: any of them may be the next primary."""
    pipe.execute_command("WAITAOF", 1, 0, DISK_MS)
    if replicas:
        pipe.execute_command("WAIT", replicas, REPLICAS_MS)


def is_durable(answers: Sequence[Any], replicas: int) -> bool:
    """Of what `request_durability` asked: on the disk, and on every replica. Servers before 7.2, or without an
    append-only file, refuse the first question: then it is not known."""
    waited = answers[0]
    on_disk = isinstance(waited, list) and bool(waited) and int(waited[0]) >= 1
    return on_disk and (not replicas or (isinstance(answers[1], int) and answers[1] >= replicas))


# Whether the store's server writes through: then what it has acknowledged is on its disk.
#
# By its configuration, and not by WAITAOF: with `appendfsync everysec` Valkey 9.1.2 acknowledges that without a call of
# fdatasync in between (docs/decisions/0018); with `always` each acknowledgement comes after one.

CHECK_EVERY_S = 10.0  # an operator may change it while the server runs

REQUIRED_SETTINGS = {b"appendonly": b"yes", b"appendfsync": b"always"}


class WriteThrough:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._jobs = key_space_of(client).key("jobs:")  # the server that this is about
        self._checked_at = float("-inf")

    async def ensure_synced(self) -> None:
        """Returns if what the server has acknowledged is on its disk. Raises `StoreUnavailable`."""
        if time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        try:
            async with client_for_key(self._client, self._jobs) as owner:
                reply = await owner.execute_command("CONFIG", "GET", "append*")
        except (RedisError, OSError) as error:
            raise StoreUnavailable(
                f"the store does not say whether it writes through: {type(error).__name__}"
            ) from None
        pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
        settings = {_bytes(name): _bytes(value) for name, value in pairs}
        if any(settings.get(name) != value for name, value in REQUIRED_SETTINGS.items()):
            raise StoreUnavailable(
                "jobs.fsync is on, and the store's server does not write through: expected appendonly yes and "
                "appendfsync always there"
            )
        self._checked_at = time.monotonic()


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
