"""Who goes first where there is not room for all, and why some do not get in. `upstream.wait_queue` decides."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Priority(IntEnum):
    """The lower value goes first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class ShedReason(StrEnum):
    """Why a request was refused under load: the label `reason` of `nearhit_shed_total`."""

    MAX_INFLIGHT = "max_inflight"  # of the whole gateway; what follows: of the backends of its route
    QUEUE_FULL = "queue-full"
    TENANT_SHARE = "tenant-share"  # its own tenant has most of what waits
    DISPLACED = "displaced"  # it waited, and one of a higher class or of a tenant with less took its room
    STANDING = "standing"  # it waited, and the queue was cut, since it did not get empty
    DEADLINE = "deadline"  # it would not have had its turn before it was due, or had not
    WAITED = "waited"  # it waited as long as the gateway lets a request wait
