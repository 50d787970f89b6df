"""Builds the spaces: of the model in use, and where a migration wants it, of the one before."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.adapters.redis.migration import RedisMigration
from gateway.cache.answer_comparer import Comparisons
from gateway.cache.answer_judge import Judge
from gateway.cache.embedding_spaces import Newcomers, Space, Spaces
from gateway.cache.feedback import Counterexamples
from gateway.cache.hit_audits import Audits
from gateway.cache.index_checkpoints import FILE, file_of_former, forget_former
from gateway.cache.index_factory import open_index
from gateway.cache.inflight_questions import Aloft
from gateway.cache.labels import Labels
from gateway.cache.learned_state import Learning
from gateway.cache.model_factory import build_embedder, build_verifier
from gateway.cache.price import Price
from gateway.cache.stores import Stores
from gateway.cache.threshold.controls import Controls
from gateway.config import Config
from gateway.config.schema import EmbeddingModel
from gateway.errors import StoreUnavailable
from gateway.fleet import Fleet
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, Embedder
from gateway.routing.complexity import build_complexity
from gateway.steps.traffic_log.recorder import Recorder
from gateway.tasks import run_within
from gateway.upstream.backend import Pool

LOG = logging.getLogger("nearhit.migration")


@dataclass(frozen=True, slots=True)
class Ground:
    """What every space stands on."""

    config: Config
    environ: Mapping[str, str]
    stores: Stores
    counterexamples: Counterexamples
    pools: Mapping[str, Pool]
    prices: Mapping[str, Price]
    telemetry: Telemetry
    clock: Clock
    draw: Callable[[], float]
    fleet: Fleet
    recorder: Recorder


async def open_spaces(stack: AsyncExitStack, ground: Ground, embedder: Embedder) -> tuple[Spaces, AsyncExitStack]:
    """`embedder`: the one in use. Beside the spaces what ends that of the model before, once nothing needs it. All is
    ended with `stack` at the latest. Raises what the building of a verifier raises."""
    life = await stack.enter_async_context(AsyncExitStack())
    former = await _former(life, ground, embedder.fingerprint)
    if former is None:
        forget_former(ground.config)
        return Spaces(await _open(stack, ground, ground.config.embedder, embedder)), life
    section, older = former
    newcomers = Newcomers()
    serving = await _open(life, ground, section, older, told=newcomers.add, file=file_of_former(ground.config))
    return Spaces(serving, await _open(stack, ground, ground.config.embedder, embedder), newcomers), life


async def _former(life: AsyncExitStack, ground: Ground, in_use: str) -> tuple[EmbeddingModel, Embedder] | None:
    """The model that lookups still go by; None where there is none, or no need of it."""
    section = ground.config.embedder.migrate_from
    if section is None or await _gone_over(ground, in_use):
        return None
    try:
        _, older = await asyncio.to_thread(build_embedder, section, ground.config.data_dir)
    except Exception as error:  # whatever it is, the gateway can do without
        LOG.warning(
            "embedder.migrate_from: the model cannot be loaded, expected the one that questions were stored under: "
            "until they are embedded anew they are exact hits or misses",
            extra={"fields": {"model": section.model, "error": str(error)}},
        )
        return None
    life.callback(older.close)
    if older.fingerprint == in_use:
        LOG.warning("embedder.migrate_from names the model in use, expected the one before it, or none")
        await life.aclose()
        return None
    return section, older


async def _gone_over(ground: Ground, in_use: str) -> bool:
    """Nothing is known of a store that is away: then it is as if there was everything to do."""
    try:
        settled = await RedisMigration(ground.stores.redis, embedder=in_use).settled()
    except StoreUnavailable:
        return False
    if settled:
        LOG.info("embedder.migrate_from: lookups have gone over already, it can be taken out of the configuration")
    return settled


async def _open(
    life: AsyncExitStack,
    ground: Ground,
    section: EmbeddingModel,
    embedder: Embedder,
    *,
    told: Callable[[str], None] | None = None,
    file: str = FILE,
) -> Space:
    config, telemetry = ground.config, ground.telemetry
    behind = ground.stores.redis.seen_by(embedder.fingerprint, told)
    index, checkpoints = open_index(life, config, ground.environ, embedder, ground.clock, file)
    verifier = await asyncio.to_thread(build_verifier, config.verifier, section, config.data_dir)
    life.callback(verifier.close)
    basis = f"{embedder.fingerprint} {verifier.basis}"
    controls = Controls(verifier.prior, basis, telemetry.requests_of, ground.fleet.teller("quality"))
    learning = Learning(controls, behind, position=ground.fleet.position)
    life.push_async_callback(learning.save)  # once nothing is learnt any more
    labels = Labels(controls, ground.counterexamples, behind, telemetry, ground.recorder.label)
    comparisons = Comparisons(embedder, labels, telemetry)
    judge = Judge(ground.pools, ground.prices)
    audits = Audits(comparisons, labels, controls, judge, telemetry, ground.clock, ground.draw)
    life.push_async_callback(audits.close)
    jobs = [comparisons.run(), learning.run(), *([] if checkpoints is None else [checkpoints.run()])]
    for job in jobs:
        run_within(life, job)
    return Space(
        embedder=embedder,
        index=index,
        checkpoints=checkpoints,
        store=ground.stores.front.seen_by(embedder.fingerprint, behind),
        behind=behind,
        verifier=verifier,
        controls=controls,
        complexity=build_complexity(embedder.fingerprint),
        labels=labels,
        comparisons=comparisons,
        audits=audits,
        learning=learning,
        aloft=Aloft(),
    )
