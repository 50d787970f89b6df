"""The parts that all routes share: upstreams, spaces, what is learnt of either, and what runs beside requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from gateway.cache.answer_judge import Judge
from gateway.cache.cluster_leases import Leasing
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.evictor import Evictions
from gateway.cache.feedback import Counterexamples
from gateway.cache.flight import Flight
from gateway.cache.frequency import Frequency
from gateway.cache.hit_for_miss import Unstorable
from gateway.cache.learned_state import Learning, Shelf
from gateway.cache.memory_cache import FrontStore
from gateway.cache.price import Price
from gateway.cache.served_hits import ServedHits
from gateway.cache.split_cache import SplitCache
from gateway.cache.stores import Stores, evictions_of
from gateway.config import Config
from gateway.fleet import Fleet
from gateway.observability.event_loop_monitor import LoopWatch
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, Embedder
from gateway.routing.latency_promises import Promises
from gateway.routing.mirroring import Shadows
from gateway.routing.rate_limiter import Quotas
from gateway.routing.tier_audits import LightAudits
from gateway.routing.tier_learning import Escalations
from gateway.space_factory import Ground, open_spaces
from gateway.steps.feedback import FeedbackEndpoint, Memory, Verdicts
from gateway.steps.traffic_log.recorder import Recorder
from gateway.tasks import Background, run_within
from gateway.traffic_recording import Standing, recorder_of
from gateway.upstream.backend import Pool
from gateway.upstream.factory import build_pools, reloads
from gateway.upstream.model_health import care_for


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
    unstorable: Unstorable
    leasing: Leasing | None  # None: no other gateway is on this store
    quotas: Quotas
    clock: Clock
    telemetry: Telemetry
    max_entry: int
    memory: Memory
    fleet: Fleet
    feedback: FeedbackEndpoint
    background: Background
    evictions: Evictions
    loop_watch: LoopWatch
    recorder: Recorder
    flights: dict[str, Flight] = field(default_factory=dict)
    frequency: Frequency = field(default_factory=Frequency)
    split_cache: SplitCache = field(default_factory=SplitCache)

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
    """`embedder`: of the model in use. `stack` ends whatever is to be ended. Raises `StartFailed`."""
    memory, standing = Memory(ServedHits(), Counterexamples()), Standing()
    ground = _ground(stack, config, environ, clock, draw, stores, memory, standing)
    pools, prices, telemetry, fleet = ground.pools, ground.prices, ground.telemetry, ground.fleet
    spaces, former = await open_spaces(stack, ground, embedder)
    background = Background()
    stack.push_async_callback(background.close)
    leasing, quotas = _leasing(stack, stores, telemetry), _quotas(stack, stores, clock, telemetry)
    escalations, routing = _routing(stack, ground, spaces)
    standing.stands_on(spaces, escalations)
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
        unstorable=Unstorable(clock),
        leasing=leasing,
        quotas=quotas,
        clock=clock,
        telemetry=telemetry,
        max_entry=config.store.max_entry,
        memory=memory,
        fleet=fleet,
        feedback=FeedbackEndpoint(verdicts, fleet.feedback(stack, verdicts.heed)),
        background=background,
        evictions=evictions_of(config, stores, spaces, telemetry, clock),
        loop_watch=LoopWatch(telemetry),
        recorder=ground.recorder,
    )


def _ground(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    draw: Callable[[], float],
    stores: Stores,
    memory: Memory,
    standing: Standing,
) -> Ground:
    telemetry = Telemetry()
    pools = build_pools(config, environ, clock, telemetry)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
    care_for(stack, pools.values(), lambda name: reloads(config.backends[name]), clock, telemetry)
    prices = {n: Price(b.price.input_per_million, b.price.output_per_million) for n, b in config.backends.items()}
    return Ground(
        config=config,
        environ=environ,
        stores=stores,
        counterexamples=memory.counterexamples,
        pools=pools,
        prices=prices,
        telemetry=telemetry,
        clock=clock,
        draw=draw,
        fleet=Fleet(stores, clock),
        recorder=recorder_of(stack, config, standing, clock, telemetry),
    )


def _leasing(stack: AsyncExitStack, stores: Stores, telemetry: Telemetry) -> Leasing | None:
    if stores.leases is None:
        return None
    leasing = Leasing(stores.leases, telemetry)
    stack.push_async_callback(leasing.close)  # once no flight is in the air any more
    return leasing


def _quotas(stack: AsyncExitStack, stores: Stores, clock: Clock, telemetry: Telemetry) -> Quotas:
    quotas = Quotas(stores.quotas, clock, telemetry)
    stack.push_async_callback(quotas.close)
    run_within(stack, quotas.run())
    return quotas


def _routing(stack: AsyncExitStack, ground: Ground, spaces: Spaces) -> tuple[Escalations, Learning]:
    """What is learnt of routes, here and of other gateways, and what keeps it."""
    fleet = ground.fleet
    escalations = Escalations(spaces.filled.complexity.basis, ground.clock, ground.telemetry, fleet.teller("routing"))
    routing = Learning(escalations, Shelf(ground.stores.redis, "routing"), position=fleet.position)
    stack.push_async_callback(routing.save)  # once nothing is learnt any more
    run_within(stack, routing.begin())
    fleet.hints(ground.pools)
    fleet.learns(stack, spaces, escalations, routing)
    return escalations, routing
