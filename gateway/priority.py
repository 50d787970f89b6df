"""Priorities and shed reasons: which requests go first under load, and why others are refused. `upstream.wait_queue`
decides."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Priority(IntEnum):
    """The priority of a request. Lower values go first."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class ShedReason(StrEnum):
    """Why a request was refused under load: the label `reason` of `nearhit_shed_total`."""

    MAX_INFLIGHT = "max_inflight"  # of the whole gateway; the following: of the backends of its route
    QUEUE_FULL = "queue-full"
    TENANT_SHARE = "tenant-share"  # its own tenant has most of the queue
    DISPLACED = "displaced"  # it waited, and a request of a higher priority or of a tenant with less took its room
    STANDING = "standing"  # it waited, and the queue was cut because it did not drain
    DEADLINE = "deadline"  # its turn would come after its deadline, or did
    WAITED = "waited"  # it waited for the maximum time that the gateway allows
