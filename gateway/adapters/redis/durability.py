"""What of a write is known to outlive the server: that it is on its disk, and that its replicas have it.

Both are asked on the connection that wrote, since a server waits for what that one has written (WAITAOF, WAIT).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import NoPermissionError

# With an append-only file that is written through every second, what was written is on the disk within it.
DISK_MS = 1_500
# A replica that follows has what was written within a round trip; one that does not must not hold up who waits.
REPLICAS_MS = 1_000


async def replicas_of(client: Any) -> int:
    """How many follow now; one that is still copied to is not one that may take over. 0 where the user may not ask."""
    try:
        said = await client.info("replication")
    except NoPermissionError:
        return 0
    return sum(isinstance(value, dict) and value.get("state") == "online" for value in said.values())


def ask_durable(pipe: Any, replicas: int) -> None:
    """To come after what was written, in one pipeline. Of all replicas: any of them may be the next primary."""
    pipe.execute_command("WAITAOF", 1, 0, DISK_MS)
    if replicas:
        pipe.execute_command("WAIT", replicas, REPLICAS_MS)


def is_durable(answers: Sequence[Any], replicas: int) -> bool:
    """Of what `ask_durable` asked: on the disk, and on every replica. Servers before 7.2, or without an append-only
    file, refuse the first question: then it is not known."""
    waited = answers[0]
    on_disk = isinstance(waited, list) and bool(waited) and int(waited[0]) >= 1
    return on_disk and (not replicas or (isinstance(answers[1], int) and answers[1] >= replicas))
