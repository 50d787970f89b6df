"""Builds the parts that all routes share: upstreams, spaces, the state learnt of both, and background tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from gateway.adapters.redis.migration import RedisMigration
from gateway.cache.admission import HitForMiss, UseCounts
from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.answer_judge import AnswerJudge
from gateway.cache.audits import HitAudits
from gateway.cache.conversations import TurnNotes
from gateway.cache.decoys import Decoys
from gateway.cache.embedding_spaces import PendingEmbeddings, Space, Spaces
from gateway.cache.erasure import RecentErasures
from gateway.cache.erasure_key import erasure_secret
from gateway.cache.eviction import Evictor
from gateway.cache.feedback import Counterexamples, ServedHits
from gateway.cache.flight import SharedCall
from gateway.cache.hits import SplitCache
from gateway.cache.index_checkpoints import FILE, former_checkpoint_file, remove_former_checkpoint
from gateway.cache.index_factory import open_index
from gateway.cache.inflight_questions import InflightQuestions
from gateway.cache.label_archive import LabelArchive
from gateway.cache.labels import Labels, LearnedPairs
from gateway.cache.late_vectors import LateVectors
from gateway.cache.learned_state import SnapshotStore, StateKeeper
from gateway.cache.learning_budget import LearningBudget
from gateway.cache.links import Links
from gateway.cache.load_level import EncoderLoad
from gateway.cache.memory_cache import TieredStore
from gateway.cache.model_factory import build_embedder, build_verifier
from gateway.cache.pair_queue import PairQueue
from gateway.cache.schema_checks import SchemaChecks
from gateway.cache.screening import open_screen
from gateway.cache.stores import Stores, build_evictor
from gateway.cache.threshold.route_control import Controls
from gateway.cache.vector_backlog import VectorBacklog
from gateway.config import Config
from gateway.config.schema import EmbeddingModel
from gateway.errors import StoreUnavailable
from gateway.files import unowned_dirs
from gateway.observability.event_loop_monitor import EventLoopMonitor
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, LearningEmbedder
from gateway.prices import Tariff
from gateway.routing.complexity import build_complexity
from gateway.routing.latency_promises import Promises
from gateway.routing.tier_audits import TierAudits
from gateway.routing.tier_learning import TierLearning
from gateway.steps.feedback import FeedbackEndpoint, FeedbackService, FeedbackState
from gateway.steps.fleet import Fleet, fleet_of
from gateway.steps.metering import Meter, MeterCore, meter_opener
from gateway.steps.recording import RecordedState, Recording
from gateway.steps.resources import Resources, resources_opener
from gateway.subjects import SubjectDigests, SubjectsOf, subject_key
from gateway.tasks import Background, run_in
from gateway.unread_memory import UnreadMemory
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.factory import build_pools
from gateway.upstream.tariffs import tariffs_of


def label_archive_of(stack: AsyncExitStack, config: Config, clock: Clock) -> LabelArchive:
    """Build the labels that are kept with their texts. `stack` writes the last ones."""
    archive = LabelArchive(config.data_dir, clock, partial(unowned_dirs, config.data_dir, config.server.workers))
    stack.push_async_callback(archive.flush)
    run_in(stack, archive.run())
    return archive


LOG = logging.getLogger("nearhit.migration")


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


async def open_spaces(
    stack: AsyncExitStack, inputs: PartsInputs, embedder: LearningEmbedder
) -> tuple[Spaces, AsyncExitStack]:
    """Open the space of the model in use (`embedder`) and, during a migration, the space of the previous model. Return
    them with the exit stack that closes the previous one once nothing needs it; `stack` closes both at the latest.
    Raise what `build_verifier` raises."""
    exit_stack = await stack.enter_async_context(AsyncExitStack())
    former = await _previous_model(exit_stack, inputs, embedder.fingerprint)
    if former is None:
        remove_former_checkpoint(inputs.config)
        return Spaces(await _open(stack, inputs, inputs.config.embedder, embedder)), exit_stack
    section, previous_embedder = former
    pending = PendingEmbeddings()
    serving = await _open(
        exit_stack, inputs, section, previous_embedder, on_put=pending.add, file=former_checkpoint_file(inputs.config)
    )
    return Spaces(serving, await _open(stack, inputs, inputs.config.embedder, embedder), pending), exit_stack


async def _previous_model(
    exit_stack: AsyncExitStack, inputs: PartsInputs, current_fingerprint: str
) -> tuple[EmbeddingModel, LearningEmbedder] | None:
    """Return the previous model, which lookups still use, or None if there is none, or it is not needed."""
    section = inputs.config.embedder.migrate_from
    if section is None or await _is_migrated(inputs, current_fingerprint):
        return None
    try:
        _, previous_embedder = await asyncio.to_thread(build_embedder, section, inputs.config.data_dir)
    except Exception as error:  # the gateway works without the model
        LOG.warning(
            "embedder.migrate_from: the model cannot be loaded, expected the model that questions were stored with: "
            "until they are embedded again, they are exact hits or misses",
            extra={"fields": {"model": section.model, "error": str(error)}},
        )
        return None
    exit_stack.callback(previous_embedder.close)
    if previous_embedder.fingerprint == current_fingerprint:
        LOG.warning("embedder.migrate_from names the model in use, expected the previous model, or no migrate_from")
        await exit_stack.aclose()
        return None
    return section, previous_embedder


async def _is_migrated(inputs: PartsInputs, current_fingerprint: str) -> bool:
    """Return whether lookups use the new model already; False if the store does not answer."""
    try:
        settled = await RedisMigration(inputs.stores.redis, embedder=current_fingerprint).is_settled()
    except StoreUnavailable:
        return False
    if settled:
        LOG.info("embedder.migrate_from: lookups use the new model already, remove the setting")
    return settled


async def _open(
    exit_stack: AsyncExitStack,
    inputs: PartsInputs,
    section: EmbeddingModel,
    embedder: LearningEmbedder,
    *,
    on_put: Callable[[str], None] | None = None,
    file: str = FILE,
) -> Space:
    config, telemetry = inputs.config, inputs.telemetry
    backing_store = inputs.stores.redis.for_embedder(embedder.fingerprint, on_put)
    index, checkpoints = open_index(exit_stack, config, inputs.environ, embedder, inputs.clock, file)
    pair_queue = PairQueue()
    verifier = await asyncio.to_thread(build_verifier, config.verifier, section, config.data_dir, pairs=pair_queue)
    exit_stack.callback(verifier.close)
    basis = f"{embedder.fingerprint} {verifier.basis}"
    controls = Controls(verifier.prior, basis, telemetry.requests_of, inputs.fleet.publisher("quality"))
    learning = StateKeeper(controls, backing_store, position=inputs.fleet.position)
    exit_stack.push_async_callback(learning.save)  # once nothing is learnt any more
    decoys = Decoys(embedder.fingerprint, inputs.fleet.publisher("decoy"))
    pairs = LearnedPairs(inputs.counterexamples, inputs.links, decoys, backing_store)
    labels = Labels(controls, pairs, telemetry, (inputs.recorder.label, inputs.label_archive.add), inputs.erased)
    load = EncoderLoad((lambda: embedder.queue, pair_queue.measure), section.timeout, telemetry.left_out)
    budget = LearningBudget(config.learning.cpu_share, lambda: embedder.cpu, load, telemetry)
    comparisons = AnswerComparer(embedder, labels, telemetry, budget)
    judge = AnswerJudge(inputs.pools, inputs.prices)
    audits = HitAudits(comparisons, labels, controls, judge, telemetry, inputs.clock, inputs.draw)
    exit_stack.push_async_callback(audits.close)
    store = inputs.stores.front.for_embedder(embedder.fingerprint, backing_store)
    late = LateVectors(embedder, index, store, telemetry, load)
    backlog = VectorBacklog(embedder, index, store, backing_store, telemetry, load)
    late.left = backlog.add
    jobs = [comparisons.run(), learning.run(), late.run(), backlog.run()]
    jobs += [] if checkpoints is None else [checkpoints.run()]
    for job in jobs:
        run_in(exit_stack, job)
    exit_stack.push_async_callback(late.drain)  # before its job is cancelled
    screen = await asyncio.to_thread(open_screen, section, index)
    return Space(
        embedder=embedder,
        load=load,
        index=index,
        checkpoints=checkpoints,
        store=store,
        backing_store=backing_store,
        verifier=verifier,
        controls=controls,
        decoys=decoys,
        complexity=build_complexity(embedder.fingerprint),
        labels=labels,
        comparisons=comparisons,
        audits=audits,
        learning=learning,
        inflight_questions=InflightQuestions(),
        late=late,
        backlog=backlog,
        screen=screen,
    )


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that all routes share. Lookups use `space`."""

    space: Space
    spaces: Spaces
    former: AsyncExitStack  # closes the space of the previous model
    pools: Mapping[str, UpstreamPool]
    promises: Promises
    escalations: TierLearning
    routing: StateKeeper  # saves and restores the escalations
    light_audits: TierAudits
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
    flights: dict[str, SharedCall] = field(default_factory=dict)
    frequency: UseCounts = field(default_factory=UseCounts)
    split_cache: SplitCache = field(default_factory=SplitCache)

    @property
    def subjects_of(self) -> SubjectsOf | None:
        """The digests of those who cause a request, or None if there is no key."""
        return None if self.subjects is None else self.subjects.of_request

    @property
    def store(self) -> TieredStore:
        return self.space.store


async def build_parts(
    stack: AsyncExitStack,
    config: Config,
    environ: Mapping[str, str],
    clock: Clock,
    draw: Callable[[], float],
    stores: Stores,
    embedder: LearningEmbedder,
) -> Parts:
    """Build all parts, with the embedder of the model in use. `stack` closes them. Raise `StartupError`."""
    secret = erasure_secret(config, environ)
    memory = FeedbackState(ServedHits(), Counterexamples(), Links())
    inputs = _build_inputs(stack, config, environ, clock, draw, stores, memory)
    pools, prices, telemetry, fleet = inputs.pools, inputs.prices, inputs.telemetry, inputs.fleet
    spaces, former = await open_spaces(stack, inputs, embedder)
    background = Background()
    stack.push_async_callback(background.close)
    turn_notes = TurnNotes(memory.links, stores.redis, telemetry)
    stack.push_async_callback(turn_notes.close)
    fleet.open_leases(stack, telemetry)
    fleet.announce_embedder(stack, spaces, clock)
    meter_stack = await stack.enter_async_context(AsyncExitStack())
    escalations, routing = _open_routing(stack, inputs, spaces)
    inputs.recorder.state = RecordedState(spaces, escalations)
    verdicts = FeedbackService(memory, spaces, escalations, telemetry)
    audits = TierAudits(pools, prices, AnswerJudge(pools, prices), escalations, telemetry, clock, draw)
    stack.push_async_callback(audits.close)
    schemas = SchemaChecks(telemetry)
    stack.callback(schemas.close)
    evictions = build_evictor(config, stores, spaces, telemetry, clock)
    for space in spaces.all:
        space.late.stored = space.backlog.stored = evictions.stored
    return Parts(
        space=spaces.serving,
        spaces=spaces,
        former=former,
        pools=pools,
        promises=Promises(clock, telemetry),
        escalations=escalations,
        routing=routing,
        light_audits=audits,
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
    )


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
            run_in(stack, task(endpoint))
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


def _open_routing(stack: AsyncExitStack, inputs: PartsInputs, spaces: Spaces) -> tuple[TierLearning, StateKeeper]:
    """Return the tier learning of the routes, shared with other gateways, and the keeper of its state."""
    fleet = inputs.fleet
    escalations = TierLearning(
        spaces.target.complexity.basis, inputs.clock, inputs.telemetry, fleet.publisher("routing")
    )
    routing = StateKeeper(escalations, SnapshotStore(inputs.stores.redis, "routing"), position=fleet.position)
    stack.push_async_callback(routing.save)  # once nothing is learnt any more
    scores = StateKeeper(escalations.scores, SnapshotStore(inputs.stores.redis, "complexity"))
    stack.push_async_callback(scores.save)
    run_in(stack, routing.start())
    run_in(stack, scores.start())
    run_in(stack, escalations.run())
    fleet.share_breaker_hints(inputs.pools)
    fleet.share_learning(stack, spaces, escalations, routing)
    return escalations, routing
