"""Builds the data port with its fast paths. Used by `app` alone."""

from __future__ import annotations

from collections.abc import Callable
from ssl import SSLContext

from gateway.composition.access_parts import Access
from gateway.composition.hired import Hired, data_of
from gateway.composition.parts import Parts
from gateway.config import Config
from gateway.data_port.front import Front
from gateway.data_port.lookups import Lookups
from gateway.data_port.misses import Misses
from gateway.data_port.plans import Plans
from gateway.data_port.server import DataPort
from gateway.data_port.service import Health
from gateway.data_port.straight import Straight
from gateway.observing.observer import Observer
from gateway.stages.policy import RouteTable


def data_port_of(
    config: Config,
    parts: Parts,
    access: Access,
    observer: Observer,
    table: Callable[[], RouteTable],
    health: Health,
    *,
    tls: SSLContext | None,
    hired: Hired | None,
    beside: Callable[[], int],
) -> DataPort:
    """`beside`: requests that are being answered at the gRPC port."""
    front = Front(parts.store, table, observer, parts.clock, access.keyring.holds)
    keyring = access.keyring if parts.keyed else None
    others = None if config.server.grpc is None else beside
    plans = Plans(table, keyring)
    lookups = Lookups(plans, front, observer, parts.telemetry, parts.clock)
    misses = Misses(observer, parts.telemetry, parts.clock)
    straight = Straight(plans, observer, parts.telemetry, parts.clock)
    given = data_of(hired)
    return DataPort(config.server, parts.clock, health, front, lookups, misses, straight, table, tls, given, others)
