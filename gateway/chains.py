"""The parts that all routes share, and the stages of a route, in their order. Half of the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from gateway.adapters.front_store import FrontStore
from gateway.aloft import Aloft
from gateway.audits import Audits
from gateway.background import Background
from gateway.cache.control.controls import Controls
from gateway.cache.feedback import Counterexamples
from gateway.cache.frequency import Frequency
from gateway.cache.freshness import Lifetime
from gateway.cache.lifetimes import exact_lifetime, longest_lifetime_s
from gateway.cache.served import ServedHits
from gateway.comparisons import Comparisons
from gateway.config import Config
from gateway.evictions import Evictions, evictions_of
from gateway.flight import Flight
from gateway.judge import Judge
from gateway.labels import Labels
from gateway.learning import Learning
from gateway.leasing import Leasing
from gateway.messages import Bypass, Entry, Request, Vector
from gateway.parts import Stores, build_backends, build_verifier, hardness_of
from gateway.pipeline import Handler, Stage, compose
from gateway.policy.model import Route, Semantic
from gateway.pool import Pool, pools_of
from gateway.ports import Clock, Embedder, VectorIndex, Verifier
from gateway.stages.admit import Admit, Price
from gateway.stages.alike import Alike
from gateway.stages.audit import Audit
from gateway.stages.coalesce import Coalesce
from gateway.stages.dispatch import Dispatch
from gateway.stages.embed import Embed
from gateway.stages.exact_lookup import ExactLookup
from gateway.stages.feedback import Memory
from gateway.stages.lead import Lead
from gateway.stages.models import Models
from gateway.stages.policy import Chains
from gateway.stages.render import Render
from gateway.stages.semantic_lookup import SemanticLookup
from gateway.telemetry import Telemetry
from gateway.unstorable import Unstorable


@dataclass(frozen=True, slots=True)
class Parts:
    """What all routes share."""

    store: FrontStore
    index: VectorIndex
    embedder: Embedder
    verifier: Verifier
    controls: Controls
    pools: Mapping[str, Pool]
    prices: Mapping[str, Price]
    flights: dict[str, Flight]
    unstorable: Unstorable
    aloft: Aloft
    leasing: Leasing | None  # None: no other gateway is on this store
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
    evictions: Evictions
    frequency: Frequency = field(default_factory=Frequency)


async def build_parts(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    draw: Callable[[], float],
    stores: Stores,
    index: VectorIndex,
    embedder: Embedder,
) -> Parts:
    """What is to be ended with the gateway is left to `stack`. Raises `StartFailed`."""
    backends = build_backends(config, environ, clock)
    for backend in backends.values():
        stack.push_async_callback(backend.close)
    telemetry, verifier = Telemetry(), build_verifier(config.verifier, config.embedder)
    stack.callback(verifier.close)
    prices = {n: Price(b.price.input_per_million, b.price.output_per_million) for n, b in config.backends.items()}
    memory = Memory(ServedHits(), Counterexamples())
    controls = Controls(verifier.prior, f"{embedder.fingerprint} {verifier.basis}", telemetry.requests_of)
    learning = Learning(controls, stores.redis)
    stack.push_async_callback(learning.save)  # once nothing is learnt any more
    labels = Labels(controls, memory.counterexamples, stores.redis, telemetry)
    comparisons = Comparisons(embedder, labels, telemetry)
    judge = Judge(backends, prices, telemetry)
    audits = Audits(comparisons, labels, controls, judge, telemetry, clock, draw)
    stack.push_async_callback(audits.close)
    background = Background()
    stack.push_async_callback(background.close)
    leasing = None if stores.leases is None else Leasing(stores.leases, telemetry)
    if leasing is not None:
        stack.push_async_callback(leasing.close)  # once no flight is in the air any more
    return Parts(
        store=stores.front,
        index=index,
        embedder=embedder,
        verifier=verifier,
        controls=controls,
        pools=pools_of(backends, clock, telemetry),
        prices=prices,
        flights={},
        unstorable=Unstorable(clock),
        aloft=Aloft(),
        leasing=leasing,
        hardness=await hardness_of(config, embedder),
        clock=clock,
        telemetry=telemetry,
        max_entry=config.store.max_entry,
        memory=memory,
        labels=labels,
        comparisons=comparisons,
        audits=audits,
        learning=learning,
        background=background,
        evictions=evictions_of(config, stores, index, telemetry, clock),
    )


def route_chains(route: Route, parts: Parts) -> Chains:
    """The stages of one route. What its policy turns off is not in its chain."""
    clock, telemetry = parts.clock, parts.telemetry
    caching = route.exact_ttl_s is not None or route.semantic is not None

    def dispatch(bypass: Bypass | None) -> Handler:
        return Dispatch(route, parts.pools, clock, telemetry, parts.hardness, bypass)

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
        unstorable=parts.unstorable,
        frequency=parts.frequency,
        told=_told(parts, learns=learns),
    )
    coalesce = Coalesce(exact.at_hand, parts.flights, parts.unstorable, telemetry)
    render = Render(route.replay, clock)
    if not caching:
        calls: Sequence[Stage] = [render]
    elif route.semantic is None:
        calls = [render, exact, coalesce, *_lead(route, parts), admit]
    else:
        lookup = SemanticLookup(
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
        )
        calls = [
            render,  # outermost: hits, followers and misses alike come out in the form that the client asked for
            exact,  # the cheapest answer first
            coalesce,  # before anything that costs: a crowd pays for it once
            Embed(parts.embedder),  # once, for the lookup, the index and the complexity
            *_audit(route.semantic, parts),  # outside `Admit`, which stores what an audit fetches
            lookup,  # outside `Admit`: what it answers is never stored again
            *_alike(route.semantic, lookup, parts),
            *_lead(route, parts),  # only what nothing stored answers; outside `Admit`, whose put ends the lease
            admit,  # inside the flight, so that who comes after it finds the answer
        ]
    pools = [parts.pools[name] for name in route.target.backends]
    return Chains(
        calls=compose(calls, dispatch(None if caching else Bypass.POLICY)),
        others=compose([Models(pools)], dispatch(Bypass.PASS_THROUGH)),
    )


def _alike(rule: Semantic, lookup: SemanticLookup, parts: Parts) -> Sequence[Stage]:
    if not rule.coalesce:
        return []
    return [Alike(lookup, parts.aloft, parts.unstorable, parts.clock, parts.telemetry)]


def _lead(route: Route, parts: Parts) -> Sequence[Stage]:
    """With an embedded store there is nobody else: a lease would only cost."""
    if parts.leasing is None:
        return []
    lifetime, exact = exact_lifetime(route), route.exact_ttl_s is not None
    return [
        Lead(
            parts.leasing,
            parts.store,
            parts.clock,
            parts.telemetry,
            parts.unstorable,
            lifetime or Lifetime(longest_lifetime_s(route), route.jitter),
            exact=exact,
        )
    ]


def _told(parts: Parts, *, learns: bool) -> Callable[[Request, Entry], None]:
    def told(request: Request, entry: Entry) -> None:
        parts.evictions.stored(entry, None if request.embedding is None else request.embedding.vector)
        if learns:  # a plain threshold has nothing to learn from misses
            parts.comparisons.missed(request, entry)

    return told


def _audit(rule: Semantic, parts: Parts) -> Sequence[Stage]:
    return [Audit(parts.audits, rule.audit)] if rule.audit.share > 0 else []
