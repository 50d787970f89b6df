"""The port of the affinity of resources, which only a gateway before several upstreams needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from importlib import import_module
from typing import Protocol

from gateway.adapters.redis.store import RedisStore
from gateway.context import Handler
from gateway.upstream.backend import UpstreamPool

MODULE = "gateway.features.resource_affinity.step"


class Resources(Protocol):
    """The makers of resources, which all routes share."""

    def step(
        self, inner: Handler, pools: Mapping[str, UpstreamPool], others: Sequence[UpstreamPool], *, shared: bool
    ) -> Handler:
        """Return the step of a route. `pools` are all backends. `others` are those of the route that may have made an
        unknown resource. With `shared` all tenants get the route's answers, and their ids, from its cache."""

    async def close(self) -> None:
        """Return when what is known is stored."""


def resources_opener(stack: AsyncExitStack, store: RedisStore, timeout_s: float) -> Callable[[], Resources]:
    """Return a function that opens the makers of resources when the first route needs them. `stack` closes them."""

    @cache
    def opened() -> Resources:
        resources: Resources = import_module(MODULE).open_resources(store, timeout_s)
        stack.push_async_callback(resources.close)
        return resources

    return opened
