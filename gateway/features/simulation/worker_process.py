"""Runs a simulation in a separate process, from one serialised job."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import orjson

from gateway.cache.templates import is_framed
from gateway.cache.threshold_verifier import ThresholdVerifier
from gateway.cache.verifiers import LearnedVerifier, load_weights
from gateway.config import Config
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import read_policy
from gateway.config.policy.model import Policy, PolicySource
from gateway.credentials import ANONYMOUS
from gateway.features.simulation.alternatives import AlternativesReport, alternatives_report
from gateway.features.simulation.replay import ReplaySetting
from gateway.features.simulation.simulation import Simulation, simulate
from gateway.ports import Opinion, StoredCandidate, Verifier
from gateway.prices import Price, Tariff
from gateway.steps.traffic_log.digests import digest_of, tenant_digests
from gateway.steps.traffic_log.reader import TrafficLog, TrafficUnreadable, read_traffic
from gateway.steps.traffic_log.segments import FOLDER, KEY_FILE
from gateway.upstream.tariffs import Listed, list_tariff, listed_of

NICE = 10  # niceness: the requests of a gateway on this machine have priority
Texts = Sequence[tuple[str, bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """The inputs of a simulation as plain values, for serialisation.

    A policy is the names and contents of its files, in order.
    """

    wanted: str  # `last-24h`, or a path
    now: float  # wall-clock time
    folder: str  # folder of the gateway's traffic log
    embedder: str | None  # fingerprint of the model in use; None: no comparison
    verifier: str  # learned | checks
    largest: int  # largest answer that may be stored, bytes
    prices: dict[str, tuple[float, float]]  # per backend: input and output, dollars per million tokens
    adapters: dict[str, str]  # per backend
    tenants: tuple[str, ...]  # known names
    present: tuple[tuple[str, bytes], ...]
    new: tuple[tuple[str, bytes], ...]
    lists: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of backends with list prices: of their `Listed`
    data_dir: str = ""  # of the gateway, for its catalogue
    task: str = "simulate"  # or `alternatives`, which is about the present policy alone

    def packed(self) -> bytes:
        content: bytes = msgpack.packb(asdict(self))
        return content


def build_job(
    config: Config,
    present: Policy,
    new: Policy,
    wanted: str,
    now: float,
    embedder: str | None,
    task: str = "simulate",
) -> SimulationJob:
    return SimulationJob(
        wanted,
        now,
        str(config.data_dir / FOLDER),
        embedder,
        config.verifier.adapter,
        config.store.max_entry,
        {name: (b.price.input_per_million, b.price.output_per_million) for name, b in config.backends.items()},
        {name: backend.adapter for name, backend in config.backends.items()},
        (ANONYMOUS, *config.auth.keys),
        tuple((text.file, text.content) for text in present.texts),
        tuple((text.file, text.content) for text in new.texts),
        {name: tuple(listed) for name, b in config.backends.items() if (listed := listed_of(b, config.data_dir))},
        str(config.data_dir),
        task,
    )


def unpack_job(content: bytes) -> SimulationJob:
    return SimulationJob(**msgpack.unpackb(content, use_list=False))


def run_job(job: SimulationJob) -> Simulation:
    """Run a simulation with the garbage collector off, so call it in a separate process.

    The job creates millions of small values without cycles. Collection would double its duration. Raises
    `TrafficUnreadable` or `ConfigInvalid`.
    """
    return _run_without_collection(_simulate, job)


def run_alternatives(job: SimulationJob) -> AlternativesReport:
    """Estimate the alternatives to the present policy, as `run_job` runs a simulation."""
    return _run_without_collection(_estimate, job)


def _estimate(job: SimulationJob) -> AlternativesReport:
    traffic = read_traffic(job.wanted, Path(job.folder), job.now)
    return alternatives_report(traffic, _policy(job, job.present), _tariffs(job))


def _run_without_collection(work: Callable[[SimulationJob], T], job: SimulationJob) -> T:
    collects = gc.isenabled()
    gc.disable()
    try:
        return work(job)
    finally:
        if collects:
            gc.enable()


def _simulate(job: SimulationJob) -> Simulation:
    present, new = _policy(job, job.present), _policy(job, job.new)
    traffic = read_traffic(job.wanted, Path(job.folder), job.now)
    _require_same_embedder(job, traffic)
    verifier: Verifier = ThresholdVerifier() if job.verifier == "checks" else LearnedVerifier(load_weights())

    def ask(question: str, stored: str, similarity: float) -> Opinion | None:
        if is_framed(question, stored, [stored]):  # the varying parts would need embeddings
            return None
        return verifier.opinions(question, [StoredCandidate(stored, similarity)])[0]

    setting = ReplaySetting(
        _tariffs(job),
        _names(job),
        verifier.prior,
        job.largest,
        ask if any(row.prompt is not None for row in traffic.requests) else None,
        job.adapters,
    )
    return simulate(traffic, present, new, setting)


def _tariffs(job: SimulationJob) -> dict[str, Tariff]:
    """Return the prices of the day of the simulation."""
    own: dict[str, Tariff] = {name: Price(*price) for name, price in job.prices.items()}
    return own | {
        name: list_tariff(name, Listed(*listed), Path(job.data_dir), lambda: job.now)
        for name, listed in job.lists.items()
    }


def _policy(job: SimulationJob, texts: Texts) -> Policy:
    reading = read_policy([PolicySource(file, content) for file, content in texts], job.prices)
    if reading.policy is None:
        raise ConfigInvalid(reading.faults)
    return reading.policy


def _require_same_embedder(job: SimulationJob, traffic: TrafficLog) -> None:
    recorded = traffic.heading.embedder
    if job.embedder is not None and job.embedder != recorded:
        raise TrafficUnreadable(
            f"the traffic of {job.wanted} was embedded by {recorded}, and the configuration has {job.embedder}: "
            "similarities of another model are not comparable, expected traffic of the model in use"
        )


def _names(job: SimulationJob) -> dict[bytes, str]:
    """Return the names of tenants by digest. Without the key of the log, the result is empty."""
    where = Path(job.folder if job.wanted.startswith("last-") else job.wanted)
    try:
        key = ((where if where.is_dir() else where.parent) / KEY_FILE).read_bytes()
    except OSError:
        return {}
    digest = tenant_digests(digest_of(key))
    return {digest(name): name for name in job.tenants}


def main() -> int:
    """Read a job from stdin and write its result as JSON to stdout, for `gateway.features.simulation.runner`."""
    sys.stdout.buffer.write(job_response(unpack_job(sys.stdin.buffer.read())))
    return 0


def job_response(job: SimulationJob) -> bytes:
    """Return the result of a job as JSON. A job that cannot run gives `error`."""
    try:
        found = run_alternatives(job) if job.task == "alternatives" else run_job(job).as_json()
        return orjson.dumps({"ok": True, **found})
    except TrafficUnreadable as error:
        return orjson.dumps({"ok": False, "error": error.message})


if __name__ == "__main__":
    os.nice(NICE)
    sys.exit(main())
