"""The stages of a route, in their order, and the parts that all routes share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.adapters.front_store import FrontStore
from gateway.audits import Audits
from gateway.background import Background
from gateway.cache.control.controls import Controls
from gateway.cache.lifetimes import exact_lifetime
from gateway.comparisons import Comparisons
from gateway.flight import Flight
from gateway.labels import Labels
from gateway.learning import Learning
from gateway.messages import Bypass, Vector
from gateway.pipeline import Handler, Stage, compose
from gateway.policy.model import Route, Semantic
from gateway.ports import Clock, Embedder, VectorIndex, Verifier
from gateway.stages.admit import Admit, Price
from gateway.stages.audit import Audit
from gateway.stages.coalesce import Coalesce
from gateway.stages.dispatch import Dispatch, Lane
from gateway.stages.embed import Embed
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.feedback import Memory
from gateway.stages.models import Models
from gateway.stages.policy import Chains
from gateway.stages.render import Render
from gateway.stages.semantic_lookup import SemanticLookup
from gateway.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class Parts:
    """What all routes share."""

    store: FrontStore
    index: VectorIndex
    embedder: Embedder
    verifier: Verifier
    controls: Controls
    lanes: Mapping[str, Lane]
    prices: Mapping[str, Price]
    flights: dict[str, Flight]
    hardness: Vector | None
    clock: Clock
    telemetry: Telemetry
    max_entry: int
    memory: Memory
    labels: Labels
    comparisons: Comparisons
    audits: Audits
    learning: Learning
    background: Background


def route_chains(route: Route, parts: Parts) -> Chains:
    """The stages of one route. What its policy turns off is not in its chain."""
    clock, telemetry = parts.clock, parts.telemetry
    caching = route.exact_ttl_s is not None or route.semantic is not None

    def dispatch(bypass: Bypass | None) -> Handler:
        return Dispatch(route, parts.lanes, clock, telemetry, parts.hardness, bypass)

    exact = ExactLookup(parts.store, clock, telemetry, exact_lifetime(route), parts.background)
    learns = route.semantic is not None and route.semantic.acceptance.max_wrong_hits is not None
    admit = Admit(
        parts.store,
        parts.index,
        clock,
        telemetry,
        route,
        max_entry=parts.max_entry,
        prices=parts.prices,
        told=parts.comparisons.missed if learns else None,  # a plain threshold has nothing to learn from misses
    )
    if not caching:
        calls: Sequence[Stage] = [Render()]
    elif route.semantic is None:
        calls = [Render(), exact, Coalesce(exact.at_hand, parts.flights), admit]
    else:
        calls = [
            Render(),  # outermost: hits, followers and misses alike come out in the form that the client asked for
            exact,  # the cheapest answer first
            Coalesce(exact.at_hand, parts.flights),  # before anything that costs: a crowd pays for it once
            Embed(parts.embedder),  # once, for the lookup, the index and the complexity
            *_audit(route.semantic, parts),  # outside `Admit`, which stores what an audit fetches
            admit,  # inside the flight, so that who comes after it finds the answer; outside the lookup, to see misses
            SemanticLookup(
                parts.index,
                parts.store,
                parts.embedder,
                parts.verifier,
                parts.controls,
                clock,
                telemetry,
                route.semantic,
                route.jitter,
                parts.memory,
            ),
        ]
    backends = {name: parts.lanes[name].backend for name in route.target.backends}
    return Chains(
        calls=compose(calls, dispatch(None if caching else Bypass.POLICY)),
        others=compose([Models(backends)], dispatch(Bypass.PASS_THROUGH)),
    )


def _audit(rule: Semantic, parts: Parts) -> Sequence[Stage]:
    return [Audit(parts.audits, rule.audit)] if rule.audit.share > 0 else []
