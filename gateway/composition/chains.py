"""The parts that all routes share, and the stages of a route, in their order. Half of the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from gateway.adapters.batching_embedder import BatchingEmbedder
from gateway.adapters.front_store import FrontStore
from gateway.backends.model_care import care_for
from gateway.backends.pool import Pool
from gateway.background import Background, run_within
from gateway.cache.feedback import Counterexamples
from gateway.cache.frequency import Frequency
from gateway.cache.freshness import Lifetime
from gateway.cache.lifetimes import exact_lifetime, longest_lifetime_s
from gateway.cache.price import Price
from gateway.cache.served import ServedHits
from gateway.cache.taken_apart import TakenApart
from gateway.calling.promises import Promises
from gateway.calling.quotas import Quotas
from gateway.calling.shadows import Shadows
from gateway.composition.dispatching import direct_of, dispatch_of, fetch_of
from gateway.composition.fleet import Fleet
from gateway.composition.lookup_parts import looks_of
from gateway.composition.parts import Stores, evictions_of
from gateway.composition.recording import Standing, recorder_of
from gateway.composition.space_parts import Ground, open_spaces
from gateway.composition.upstreams import build_pools, reloads
from gateway.config import Config
from gateway.flights.flight import Joinable
from gateway.flights.leasing import Leasing
from gateway.flights.unstorable import Unstorable
from gateway.messages import Bypass, Entry, Request
from gateway.observing.loop_watch import LoopWatch
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler, Stage, compose
from gateway.policy.model import Route, Semantic
from gateway.ports import Clock, Embedder
from gateway.quality.escalations import Escalations
from gateway.quality.judge import Judge
from gateway.quality.learning import Learning, Shelf
from gateway.quality.light_audits import LightAudits
from gateway.spaces import Space, Spaces
from gateway.stages.admit import Admit
from gateway.stages.ahead import EmbedAhead
from gateway.stages.alike import Alike
from gateway.stages.apart import Apart, Together
from gateway.stages.audit import Audit
from gateway.stages.feedback import Feedback, Memory, Verdicts
from gateway.stages.lead import Lead
from gateway.stages.limit import CountRequests, Limit
from gateway.stages.models import Models
from gateway.stages.policy import Chains
from gateway.stages.record import Record
from gateway.stages.render import Render
from gateway.stages.semantic_lookup import SemanticLookup
from gateway.stages.storing import Storing
from gateway.traffic.recorder import Recorder
from gateway.upkeep.evictions import Evictions


@dataclass(frozen=True, slots=True)
class Parts:
    """What all routes share. `space` is the one that lookups go by."""

    space: Space
    spaces: Spaces
    former: AsyncExitStack  # ends the space before this one
    pools: Mapping[str, Pool]
    promises: Promises
    escalations: Escalations
    routing: Learning  # of the escalations
    light_audits: LightAudits
    shadows: Shadows
    prices: Mapping[str, Price]
    flights: dict[str, Joinable]
    unstorable: Unstorable
    leasing: Leasing | None  # None: no other gateway is on this store
    quotas: Quotas
    clock: Clock
    telemetry: Telemetry
    max_entry: int
    keyed: bool  # clients show API keys, which may have limits of their own
    memory: Memory
    fleet: Fleet
    feedback: Feedback
    background: Background
    evictions: Evictions
    loop_watch: LoopWatch
    recorder: Recorder
    frequency: Frequency = field(default_factory=Frequency)
    taken_apart: TakenApart = field(default_factory=TakenApart)

    @property
    def store(self) -> FrontStore:
        return self.space.store


async def build_parts(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    draw: Callable[[], float],
    stores: Stores,
    embedder: Embedder,
) -> Parts:
    """`embedder`: of the model in use. What is to be ended with the gateway is left to `stack`. Raises
    `StartFailed`."""
    telemetry, memory, fleet = Telemetry(), Memory(ServedHits(), Counterexamples()), Fleet(stores, clock)
    pools = build_pools(config, environ, clock, telemetry)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
    care_for(stack, pools.values(), lambda name: reloads(config.backends[name]), clock, telemetry)
    prices = {n: Price(b.price.input_per_million, b.price.output_per_million) for n, b in config.backends.items()}
    standing = Standing()
    recorder = recorder_of(stack, config, standing, clock, telemetry)
    ground = Ground(
        config, environ, stores, memory.counterexamples, pools, prices, telemetry, clock, draw, fleet, recorder
    )
    spaces, former = await open_spaces(stack, ground, embedder)
    background = Background()
    stack.push_async_callback(background.close)
    leasing = None if stores.leases is None else Leasing(stores.leases, telemetry)
    if leasing is not None:
        stack.push_async_callback(leasing.close)  # once no flight is in the air any more
    quotas = Quotas(stores.quotas, clock, telemetry)
    stack.push_async_callback(quotas.close)
    run_within(stack, quotas.run())
    escalations = Escalations(spaces.filled.complexity.basis, clock, telemetry, fleet.teller("routing"))
    standing.stands_on(spaces, escalations)
    routing = Learning(escalations, Shelf(stores.redis, "routing"), position=fleet.position)
    stack.push_async_callback(routing.save)  # once nothing is learnt any more
    run_within(stack, routing.begin())
    fleet.hints(pools)
    fleet.learns(stack, spaces, escalations, routing)
    verdicts = Verdicts(memory, spaces, escalations, telemetry)
    audits = LightAudits(pools, prices, Judge(pools, prices), escalations, telemetry, clock, draw)
    stack.push_async_callback(audits.close)
    shadows = Shadows(pools, prices, telemetry, clock, draw)
    stack.push_async_callback(shadows.close)
    return Parts(
        space=spaces.serving,
        spaces=spaces,
        former=former,
        pools=pools,
        promises=Promises(clock, telemetry),
        escalations=escalations,
        routing=routing,
        light_audits=audits,
        shadows=shadows,
        prices=prices,
        flights={},
        unstorable=Unstorable(clock),
        leasing=leasing,
        quotas=quotas,
        clock=clock,
        telemetry=telemetry,
        max_entry=config.store.max_entry,
        keyed=config.auth.mode == "keys",
        memory=memory,
        fleet=fleet,
        feedback=Feedback(verdicts, fleet.feedback(stack, verdicts.heed)),
        background=background,
        evictions=evictions_of(config, stores, spaces, telemetry, clock),
        loop_watch=LoopWatch(telemetry),
        recorder=recorder,
    )


def route_chains(route: Route, parts: Parts) -> Chains:
    """The stages of one route. What its policy turns off is not in its chain."""
    clock, telemetry = parts.clock, parts.telemetry
    caching = route.exact_ttl_s is not None or route.semantic is not None

    def dispatch(bypass: Bypass | None) -> Handler:
        return dispatch_of(route, parts, bypass)

    looks = looks_of(route, parts)
    learns = route.semantic is not None and route.semantic.acceptance.max_wrong_hits is not None
    told, unstorable = _told(route, parts, learns=learns), parts.unstorable
    storing = Storing(parts.store, parts.space.index, clock, telemetry, route, unstorable, told)
    admit = Admit(
        storing,
        clock,
        telemetry,
        route,
        max_entry=parts.max_entry,
        prices=parts.prices,
        unstorable=unstorable,
        frequency=parts.frequency,
    )

    render = Render(route.replay, clock, parts.taken_apart)
    apart, together = Apart(route.share, parts.evictions.used), Together()
    if not caching:
        calls: Sequence[Stage] = [render]
    elif route.semantic is None or looks.similar is None:
        calls = [render, apart, looks.exact, looks.coalesce, *_lead(route, parts), admit, together]
    else:
        calls = [
            render,  # outermost: hits, followers and misses alike come out in the form that the client asked for
            apart,  # before anything looks for an answer: each input has its own
            *_ahead(route, parts),  # beside the store's answer to the exact lookup
            looks.exact,  # the cheapest answer first
            *_audit(route.semantic, parts),  # outside of whatever may find a semantic hit, and of `Admit`
            looks.coalesce,  # before anything that costs: a crowd pays for it once
            looks.embed,  # once, for the lookup, the index and the complexity
            looks.similar,  # outside `Admit`: what it answers is never stored again
            *_alike(route.semantic, looks.similar, parts),
            *_lead(route, parts),  # only what nothing stored answers; outside `Admit`, whose put ends the lease
            admit,  # inside the flight, so that who comes after it finds the answer
            together,  # what was taken apart and not found makes one call
        ]
    pools = [parts.pools[name] for tier in route.target.tiers for name in tier.members]
    count, limit = _limits(route, parts)
    record = [] if route.record is None else [Record(parts.recorder, route)]
    return Chains(
        calls=compose([*record, *count, *calls, *limit], dispatch(None if caching else Bypass.POLICY)),
        others=compose([*count, Models(pools), *limit], dispatch(Bypass.PASS_THROUGH)),
        direct=direct_of(route, parts),
        beforehand=looks.beforehand,
        fetch=fetch_of(route, parts, admit),
    )


def _limits(route: Route, parts: Parts) -> tuple[Sequence[Stage], Sequence[Stage]]:
    """Outermost what counts hits, innermost what counts calls: so that the caches serve on where a limit is reached."""
    if not route.limits and not parts.keyed:
        return [], []
    counting = parts.keyed or any(rule.count_hits for rule in route.limits)
    counts = [CountRequests(route, parts.quotas, parts.telemetry)] if counting else []
    return counts, [Limit(route, parts.quotas, parts.prices, parts.telemetry)]


def _ahead(route: Route, parts: Parts) -> Sequence[Stage]:
    """Where there is a store to ask, and a thread that embeds meanwhile."""
    embedder = parts.space.embedder
    if route.exact_ttl_s is None or not isinstance(embedder, BatchingEmbedder):
        return []
    return [EmbedAhead(embedder, parts.store)]


def _alike(rule: Semantic, lookup: SemanticLookup, parts: Parts) -> Sequence[Stage]:
    if not rule.coalesce:
        return []
    return [Alike(lookup, parts.space.aloft, parts.unstorable, parts.clock, parts.telemetry)]


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


def _told(route: Route, parts: Parts, *, learns: bool) -> Callable[[Request, Entry], None]:
    audits = route.target.audit.share > 0

    def told(request: Request, entry: Entry) -> None:
        parts.evictions.stored(entry, None if request.embedding is None else request.embedding.vector)
        if learns:  # a plain threshold has nothing to learn from misses
            parts.space.comparisons.missed(request, entry)
        if audits:
            parts.light_audits.consider(request, entry, route.target, parts.space.comparisons)

    return told


def _audit(rule: Semantic, parts: Parts) -> Sequence[Stage]:
    return [Audit(parts.space.audits, rule.audit)] if rule.audit.share > 0 else []
