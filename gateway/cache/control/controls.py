"""The promises of all routes, by name: a reload of the policy keeps what was learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.cache.control.route_control import RouteControl
from gateway.ports import PriorBands


class Controls:
    """`requests` counts those of a route since the start."""

    def __init__(self, prior: PriorBands, basis: str, requests: Callable[[str], int]) -> None:
        self._prior = prior
        self._basis = basis
        self._requests = requests
        self._routes: dict[str, RouteControl] = {}

    def of(self, route: str) -> RouteControl:
        """The route's own, with its count of requests brought up to date."""
        control = self._routes.get(route)
        if control is None:
            control = self._routes[route] = RouteControl(self._prior, self._basis)
        control.advance(self._requests(route))
        return control

    def all(self) -> Iterator[tuple[str, RouteControl]]:
        """Every route that has been asked for, up to date."""
        return ((route, self.of(route)) for route in tuple(self._routes))
