"""Opens the embedding model with its space, and what carries stored entries over to a new model.

Only a gateway with a route that compares questions imports this module.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import cache, partial
from importlib import import_module

from gateway.adapters.redis.migration import RedisMigration
from gateway.cache.answer_comparer import AnswerComparer
from gateway.cache.answer_judge import AnswerJudge
from gateway.cache.audits import HitAudits
from gateway.cache.decoys import Decoys
from gateway.cache.embedding_migration import EmbedderCutover, EmbeddingMigration
from gateway.cache.embedding_spaces import PendingEmbeddings, Space, Spaces
from gateway.cache.index_checkpoints import FILE, former_checkpoint_file, remove_former_checkpoint
from gateway.cache.index_factory import open_index
from gateway.cache.inflight_questions import InflightQuestions
from gateway.cache.labels import Labels, LearnedPairs
from gateway.cache.late_vectors import LateVectors
from gateway.cache.learned_state import StateKeeper
from gateway.cache.learning_budget import LearningBudget
from gateway.cache.load_level import EncoderLoad
from gateway.cache.model_factory import build_embedder, build_verifier
from gateway.cache.pair_queue import PairQueue
from gateway.cache.screening import open_screen
from gateway.cache.stores import Stores
from gateway.cache.threshold.route_control import Controls
from gateway.cache.vector_backlog import VectorBacklog
from gateway.config import Config
from gateway.config.schema import EmbeddingModel
from gateway.errors import StoreUnavailable
from gateway.ports import ComplexityScorer, LearningEmbedder
from gateway.steps.parts import Parts, PartsInputs, recovery_of
from gateway.tasks import run_in

LOG = logging.getLogger("nearhit.migration")


async def open_spaces(stack: AsyncExitStack, inputs: PartsInputs, spaces: Spaces) -> AsyncExitStack:
    """Open the space of the model in use and, during a migration, the space of the previous model. Return the exit
    stack that closes the previous one once nothing needs it; `stack` closes both at the latest. Raise what
    `build_embedder` and `build_verifier` raise."""
    config = inputs.config
    _, embedder = await asyncio.to_thread(build_embedder, config.embedder, config.data_dir)
    stack.callback(embedder.close)
    exit_stack = await stack.enter_async_context(AsyncExitStack())
    former = await _previous_model(exit_stack, inputs, embedder.fingerprint)
    if former is None:
        remove_former_checkpoint(config)
        spaces.open(await _open(stack, inputs, config.embedder, embedder), None, PendingEmbeddings())
        return exit_stack
    section, previous_embedder = former
    pending = PendingEmbeddings()
    serving = await _open(
        exit_stack, inputs, section, previous_embedder, on_put=pending.add, file=former_checkpoint_file(config)
    )
    spaces.open(serving, await _open(stack, inputs, config.embedder, embedder), pending)
    return exit_stack


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
        open_complexity=cache(partial(_complexity, embedder.fingerprint)),
        labels=labels,
        comparisons=comparisons,
        audits=audits,
        learning=learning,
        inflight_questions=InflightQuestions(),
        late=late,
        backlog=backlog,
        screen=screen,
    )


def _complexity(embedder: str) -> ComplexityScorer:
    """Import and build the scorer. Raise `StartupError`."""
    scorer: ComplexityScorer = import_module("gateway.routing.complexity").build_complexity(embedder)
    return scorer


def migration_of(stores: Stores, parts: Parts) -> EmbeddingMigration:
    """Build the migration of stored entries to the embedding model in use."""
    foreign = RedisMigration(stores.redis, embedder=parts.spaces.target.embedder.fingerprint)
    return EmbeddingMigration(foreign, parts.spaces, parts.telemetry, parts.clock)


def cutover_of(
    config: Config, stores: Stores, parts: Parts, migration: EmbeddingMigration, on_cutover: Callable[[], None]
) -> EmbedderCutover:
    """Build the cutover. `on_cutover` rebuilds the request pipeline for the space that then serves."""
    recovery = recovery_of(stores, parts, parts.spaces.target)
    return EmbedderCutover(
        parts.spaces, migration, recovery, on_cutover, parts.opener.former, lambda: remove_former_checkpoint(config)
    )
