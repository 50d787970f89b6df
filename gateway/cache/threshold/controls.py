"""The promises of all routes, by name: a reload of the policy keeps what was learnt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gateway.cache.threshold.route_control import RouteControl, Said
from gateway.ports import PriorBands


class Controls:
    """`requests` counts those of a route since the start; `tell` is given what other gateways are to hear of one: the
    basis, the route, and what `RouteControl` has said."""

    def __init__(
        self,
        prior: PriorBands,
        basis: str,
        requests: Callable[[str], int],
        tell: Callable[[str, str, Said], None] = lambda *_: None,
    ) -> None:
        self._prior = prior
        self.basis = basis
        self._requests = requests
        self._tell = tell
        self._routes: dict[str, RouteControl] = {}

    def of(self, route: str) -> RouteControl:
        """The route's own, with its count of requests brought up to date."""
        control = self._routes.get(route)
        if control is None:
            tell = partial(self._tell, self.basis, route)
            control = self._routes[route] = RouteControl(self._prior, self.basis, tell=tell)
        control.advance(self._requests(route))
        return control

    def all(self) -> Iterator[tuple[str, RouteControl]]:
        """Every route that has been asked for, up to date."""
        return ((route, self.of(route)) for route in tuple(self._routes))

    def say_traffic(self) -> None:
        """Of every route."""
        for _, control in self.all():
            control.say_traffic()

    def hear(self, basis: str, route: str, said: Said) -> None:
        """Raises what `RouteControl.hear` does."""
        if basis == self.basis and route in self._routes:
            self._routes[route].hear(said)
