"""Builds the parts that all routes share: upstreams, spaces, the state learnt of both, and background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

from gateway.cache.admission import HitForMiss, UseCounts
from gateway.cache.conversations import TurnNotes
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.erasure import RecentErasures
from gateway.cache.erasure_key import erasure_secret
from gateway.cache.eviction import Evictor
from gateway.cache.feedback import Counterexamples, ServedHits
from gateway.cache.flight import SharedCall
from gateway.cache.hits import SplitCache
from gateway.cache.label_archive import LabelArchive
from gateway.cache.learned_state import SnapshotStore, StateKeeper
from gateway.cache.links import Links
from gateway.cache.memory_cache import TieredStore
from gateway.cache.purge import Purge
from gateway.cache.recovery import Recovery
from gateway.cache.schema_checks import SchemaChecks
from gateway.cache.stores import Stores, build_evictor
from gateway.config import Config
from gateway.files import unowned_dirs
from gateway.observability.event_loop_monitor import EventLoopMonitor
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.prices import Tariff
from gateway.routing.latency_promises import Promises
from gateway.routing.tier_learning import TierLearning
from gateway.steps.feedback import FeedbackEndpoint, FeedbackService, FeedbackState
from gateway.steps.fleet import ChangeFollower, Fleet, fleet_of
from gateway.steps.metering import Meter, MeterCore, meter_opener
from gateway.steps.recording import RecordedState, Recording
from gateway.steps.resources import Resources, resources_opener
from gateway.subjects import SubjectDigests, SubjectsOf, subject_key
from gateway.tasks import Background, restart_on_failure, run_in
from gateway.unread_memory import UnreadMemory
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.factory import build_pools
from gateway.upstream.tariffs import tariffs_of

if TYPE_CHECKING:  # imported with the first route that compares questions
    from gateway.routing.tier_audits import TierAudits


def label_archive_of(stack: AsyncExitStack, config: Config, clock: Clock) -> LabelArchive:
    """Build the labels that are kept with their texts. `stack` writes the last ones."""
    archive = LabelArchive(config.data_dir, clock, partial(unowned_dirs, config.data_dir, config.server.workers))
    stack.push_async_callback(archive.flush)
    run_in(stack, archive.run())
    return archive


# Imported when a policy comes into force that compares questions.
OPENING, TIER_AUDITS = "gateway.steps.opening", "gateway.routing.tier_audits"


@dataclass(frozen=True, slots=True)
class PartsInputs:
    """The inputs that every space is built from."""

    config: Config
    environ: Mapping[str, str]
    stores: Stores
    counterexamples: Counterexamples
    links: Links
    pools: Mapping[str, UpstreamPool]
    prices: Mapping[str, Tariff]
    telemetry: Telemetry
    clock: Clock
    draw: Callable[[], float]
    fleet: Fleet
    recorder: Recording
    label_archive: LabelArchive
    erased: RecentErasures


class SpaceOpener:
    """`SpaceOpener` opens the spaces when the first policy that compares questions comes into force."""

    def __init__(self, stack: AsyncExitStack, inputs: PartsInputs, spaces: Spaces) -> None:
        """`stack` closes the spaces, after all that uses them."""
        self.stack = stack
        self._inputs = inputs
        self._spaces = spaces
        self._lock = asyncio.Lock()
        self.former: AsyncExitStack  # closes the space of the previous model; there once the spaces are open

    async def open(self) -> None:
        """Open the spaces, if they are not yet. Raise `ModelMissing`, `ModelCorrupt` or `StartupError`."""
        async with self._lock:
            if self._spaces.is_open:
                return
            opening = await asyncio.to_thread(import_module, OPENING)
            async with AsyncExitStack() as stack:
                self.former = await opening.open_spaces(stack, self._inputs, self._spaces)
                self.stack.push_async_exit(stack.pop_all())


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that all routes share. Lookups use `space`."""

    spaces: Spaces
    opener: SpaceOpener
    pools: Mapping[str, UpstreamPool]
    promises: Promises
    escalations: TierLearning
    routing: StateKeeper  # saves and restores the escalations
    scores: StateKeeper  # saves and restores their scores
    light_audits: Callable[[], TierAudits]  # opens them
    draw: Callable[[], float]
    prices: Mapping[str, Tariff]
    unstorable: HitForMiss
    meter: Callable[[], Meter]  # opens the meter of calls
    resources: Callable[[], Resources]  # opens the makers of resources
    clock: Clock
    telemetry: Telemetry
    max_entry: int
    max_body_keys: int
    max_body: int
    memory: FeedbackState
    turn_notes: TurnNotes
    fleet: Fleet
    feedback: FeedbackEndpoint
    background: Background
    evictions: Evictor
    loop_monitor: EventLoopMonitor
    recorder: Recording
    label_archive: LabelArchive
    unread: UnreadMemory
    erased: RecentErasures
    erasure_secret: str | None  # without it, entries have no digests of those who caused them
    subjects: SubjectDigests | None  # as `erasure_secret`
    schemas: SchemaChecks
    front: TieredStore  # the store, for entries without vectors
    flights: dict[str, SharedCall] = field(default_factory=dict)
    frequency: UseCounts = field(default_factory=UseCounts)
    split_cache: SplitCache = field(default_factory=SplitCache)

    @property
    def subjects_of(self) -> SubjectsOf | None:
        """The digests of those who cause a request, or None if there is no key."""
        return None if self.subjects is None else self.subjects.of_request

    @property
    def space(self) -> Space:
        """The space that lookups use."""
        return self.spaces.serving

    @property
    def store(self) -> TieredStore:
        return self.space.store if self.spaces.is_open else self.front


async def build_parts(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    draw: Callable[[], float],
    stores: Stores,
    *,
    embeds: bool,
) -> Parts:
    """Build all parts, with the spaces if a route of the policy `embeds`. `stack` closes them. Raise `StartupError`,
    and what `SpaceOpener.open` raises."""
    secret = erasure_secret(config, environ)
    memory = FeedbackState(ServedHits(), Counterexamples(), Links())
    inputs = _build_inputs(stack, config, environ, clock, draw, stores, memory)
    pools, prices, telemetry, fleet = inputs.pools, inputs.prices, inputs.telemetry, inputs.fleet
    spaces = Spaces()
    opener = SpaceOpener(await stack.enter_async_context(AsyncExitStack()), inputs, spaces)
    if embeds:  # before learnt state is read, which says nothing about another model
        await opener.open()
    background = Background()
    stack.push_async_callback(background.close)
    turn_notes = TurnNotes(memory.links, stores.redis, telemetry)
    stack.push_async_callback(turn_notes.close)
    fleet.open_leases(stack, telemetry)
    fleet.announce_embedder(stack, spaces, clock)
    meter_stack = await stack.enter_async_context(AsyncExitStack())
    escalations, routing, scores = _open_routing(stack, inputs, spaces)
    inputs.recorder.state = RecordedState(spaces, escalations)
    verdicts = FeedbackService(memory, spaces, escalations, telemetry)
    audits = await stack.enter_async_context(AsyncExitStack())

    @cache
    def open_audits() -> TierAudits:
        opened: TierAudits = import_module(TIER_AUDITS).open_audits(
            pools, prices, escalations, telemetry, clock, draw, inputs.recorder.compared
        )
        audits.push_async_callback(opened.close)
        return opened

    schemas = SchemaChecks(telemetry)
    stack.callback(schemas.close)
    evictions = build_evictor(config, stores, spaces, telemetry, clock)
    spaces.follow(partial(_count_late_vectors, evictions))
    return Parts(
        spaces=spaces,
        opener=opener,
        pools=pools,
        promises=Promises(clock, telemetry),
        escalations=escalations,
        routing=routing,
        scores=scores,
        light_audits=open_audits,
        draw=draw,
        prices=prices,
        unstorable=HitForMiss(clock),
        meter=meter_opener(MeterCore(stores.redis, config.store.timeout, clock, telemetry, meter_stack)),
        resources=resources_opener(stack, stores.redis, config.store.timeout),
        clock=clock,
        telemetry=telemetry,
        max_entry=config.store.max_entry,
        max_body_keys=config.server.max_body_keys,
        max_body=config.server.max_body,
        memory=memory,
        turn_notes=turn_notes,
        fleet=fleet,
        feedback=FeedbackEndpoint(verdicts, fleet.feedback(stack, verdicts.apply_feedback)),
        background=background,
        evictions=evictions,
        loop_monitor=EventLoopMonitor(telemetry),
        recorder=inputs.recorder,
        label_archive=inputs.label_archive,
        unread=UnreadMemory(config.server.max_unread),
        erased=inputs.erased,
        erasure_secret=secret,
        subjects=None if secret is None else SubjectDigests(subject_key(secret)),
        schemas=schemas,
        front=stores.front,
    )


def _count_late_vectors(evictions: Evictor, space: Space) -> None:
    space.late.stored = space.backlog.stored = evictions.stored


def _build_inputs(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    draw: Callable[[], float],
    stores: Stores,
    memory: FeedbackState,
) -> PartsInputs:
    telemetry = Telemetry()
    stores.redis.on_unreadable = telemetry.unreadable_records.add
    pools = build_pools(config, environ, clock, telemetry)
    for pool in pools.values():
        stack.push_async_callback(pool.close)
    for endpoint in (endpoint for pool in pools.values() for endpoint in pool.endpoints):
        for task in endpoint.upstream.tasks:
            run_in(stack, restart_on_failure(partial(task, endpoint)))
    prices = tariffs_of(config, clock.wall)
    return PartsInputs(
        config=config,
        environ=environ,
        stores=stores,
        counterexamples=memory.counterexamples,
        links=memory.links,
        pools=pools,
        prices=prices,
        telemetry=telemetry,
        clock=clock,
        draw=draw,
        fleet=fleet_of(stores, clock),
        recorder=Recording(config, clock, stack),
        label_archive=label_archive_of(stack, config, clock),
        erased=RecentErasures(clock.wall),
    )


def _open_routing(
    stack: AsyncExitStack, inputs: PartsInputs, spaces: Spaces
) -> tuple[TierLearning, StateKeeper, StateKeeper]:
    """Return the tier learning of the routes, shared with other gateways, and the keepers of its state and scores."""
    fleet = inputs.fleet
    escalations = TierLearning("", inputs.clock, inputs.telemetry, fleet.publisher("routing"))
    routing = StateKeeper(escalations, SnapshotStore(inputs.stores.redis, "routing"), position=fleet.position)
    stack.push_async_callback(routing.save)  # once nothing is learnt any more
    scores = StateKeeper(escalations.scores, SnapshotStore(inputs.stores.redis, "complexity"))
    stack.push_async_callback(scores.save)
    run_in(stack, routing.start())
    run_in(stack, scores.start())
    run_in(stack, escalations.run())
    fleet.share_breaker_hints(inputs.pools)
    fleet.share_learning(stack, spaces, escalations, routing)
    return escalations, routing, scores


def recovery_of(
    stores: Stores,
    parts: Parts,
    space: Space | None,
    removal: Purge | None = None,
    replication: ChangeFollower | None = None,
) -> Recovery:
    """Build the recovery of one space, or without one that of the store alone. Pass `removal` and `replication` only
    for the recovery at the start: counterexamples and removals must be known before any lookup."""
    return Recovery(
        parts.front if space is None else space.store,
        stores.redis,
        None if space is None else space.index,
        parts.memory.counterexamples,
        parts.memory.links,
        parts.clock,
        None if space is None else space.checkpoints,
        None if space is None or space is not parts.spaces.serving else space.learning,
        removal,
        None if replication is None else replication.consumer,
    )
