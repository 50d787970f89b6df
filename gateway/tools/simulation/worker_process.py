"""A simulation as one value: what a process of its own is given, and what it does with it."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
from gateway.messages import Price
from gateway.ports import Opinion, StoredCandidate, Verifier
from gateway.steps.traffic_log.reader import TrafficLog, TrafficUnreadable, read_traffic
from gateway.steps.traffic_log.recorded_request import digest_of, tenant_digests
from gateway.steps.traffic_log.segments import FOLDER, KEY_FILE
from gateway.tools.simulation.replay import ReplaySetting
from gateway.tools.simulation.simulation import Simulation, simulate

NICE = 10  # of a process that runs beside a gateway: requests go first
Texts = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class SimulationJob:
    """Plain values, so that it can be sent. Policies are the names and contents of their files, in order."""

    wanted: str  # `last-24h`, or a path
    now: float  # wall clock
    folder: str  # of the gateway's own log
    embedder: str | None  # fingerprint of the model in use; None: not compared
    verifier: str  # learned | checks
    largest: int  # bytes of an answer that may be stored
    prices: dict[str, tuple[float, float]]  # of every backend: input and output, dollars a million tokens
    adapters: dict[str, str]  # of every backend
    tenants: tuple[str, ...]  # names that are known
    present: tuple[tuple[str, bytes], ...]
    new: tuple[tuple[str, bytes], ...]

    def packed(self) -> bytes:
        content: bytes = msgpack.packb(asdict(self))
        return content


def build_job(
    config: Config, present: Policy, new: Policy, wanted: str, now: float, embedder: str | None
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
    )


def unpack_job(content: bytes) -> SimulationJob:
    return SimulationJob(**msgpack.unpackb(content, use_list=False))


def run_job(job: SimulationJob) -> Simulation:
    """For a process of its own: meanwhile nothing is collected, which of millions of small values, none of them in a
    cycle, would take as long as all else. Raises `TrafficUnreadable` or `ConfigInvalid`."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return _simulate(job)
    finally:
        if collects:
            gc.enable()


def _simulate(job: SimulationJob) -> Simulation:
    present, new = _policy(job, job.present), _policy(job, job.new)
    traffic = read_traffic(job.wanted, Path(job.folder), job.now)
    _require_same_embedder(job, traffic)
    verifier: Verifier = ThresholdVerifier() if job.verifier == "checks" else LearnedVerifier(load_weights())

    def ask(asked: str, stored: str, similarity: float) -> Opinion | None:
        if is_framed(asked, stored, [stored]):  # what varies would have to be embedded
            return None
        return verifier.opinions(asked, [StoredCandidate(stored, similarity)])[0]

    setting = ReplaySetting(
        {name: Price(*price) for name, price in job.prices.items()},
        _names(job),
        verifier.prior,
        job.largest,
        ask if any(row.prompt is not None for row in traffic.requests) else None,
        job.adapters,
    )
    return simulate(traffic, present, new, setting)


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
            "what would be near with that nobody knows, expected traffic of the model in use"
        )


def _names(job: SimulationJob) -> dict[bytes, str]:
    """Of tenants, by digest, where the key of the log is at hand."""
    where = Path(job.folder if job.wanted.startswith("last-") else job.wanted)
    try:
        key = ((where if where.is_dir() else where.parent) / KEY_FILE).read_bytes()
    except OSError:
        return {}
    digest = tenant_digests(digest_of(key))
    return {digest(name): name for name in job.tenants}


def main() -> int:
    """Reads a job, writes what came of it as JSON: `gateway.admin.simulation_runner` runs it so."""
    sys.stdout.buffer.write(job_response(unpack_job(sys.stdin.buffer.read())))
    return 0


def job_response(job: SimulationJob) -> bytes:
    """JSON, a refusal with `error`."""
    try:
        return orjson.dumps(run_job(job).as_json())
    except TrafficUnreadable as error:
        return orjson.dumps({"ok": False, "error": error.message})


if __name__ == "__main__":
    os.nice(NICE)
    sys.exit(main())
