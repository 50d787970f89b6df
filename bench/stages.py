"""Divides the CPU time of a request among the stages of the gateway.

Threads that do one thing count as a whole: the system counts their time, and `bench.stack_sampler` knows their names.
The event loop does many things; the samples of its stack give the share of each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EMBED, SEARCH, VERIFY, LEARN, STORE, REST = "embed", "search", "verify", "compare and learn", "store", "the rest"
STAGES = (EMBED, SEARCH, VERIFY, LEARN, STORE, REST)
# Threads by the name that the gateway gives them, without their number.
THREADS: Mapping[str, str] = {"embedder": EMBED, "nearhit-verifier": VERIFY, "nearhit-index": SEARCH}
MODULES: Mapping[str, str] = {
    "adapters.embedding": EMBED,
    "adapters.onnx": EMBED,
    "adapters.faiss": SEARCH,
    "cache.index_factory": SEARCH,
    "steps.semantic_lookup": SEARCH,
    "cache.features": VERIFY,
    "cache.forest": VERIFY,
    "cache.judgement": VERIFY,
    "cache.languages": VERIFY,
    "cache.lexical": VERIFY,
    "cache.templates": VERIFY,
    "cache.verifiers": VERIFY,
    "cache.answer_comparer": LEARN,
    "cache.answer_similarity": LEARN,
    "cache.audits": LEARN,
    "cache.background_calls": LEARN,
    "cache.decoys": LEARN,
    "cache.feedback": LEARN,
    "cache.gossip": LEARN,
    "cache.label_archive": LEARN,
    "cache.labels": LEARN,
    "cache.learned_state": LEARN,
    "cache.links": LEARN,
    "cache.threshold": LEARN,
    "adapters.redis": STORE,
    "cache.eviction": STORE,
    "cache.memory_cache": STORE,
    "cache.replication": STORE,
    "cache.stores": STORE,
    "cache.stream_consumer": STORE,
    "steps.store_response": STORE,
}
# Work below these belongs to learning, whatever it calls.
LEARNING = ("gateway.cache.answer_comparer", "gateway.cache.audits", "gateway.cache.labels")
# The caller of these decides.
SHARED = (
    "gateway.bounded_cache",
    "gateway.calls",
    "gateway.context",
    "gateway.entries",
    "gateway.messages",
    "gateway.ports",
    "gateway.tasks",
)
IDLE = "gateway.cli"  # the innermost module of the gateway while its event loop waits, reads and writes


def stage_of(stack: Sequence[str]) -> str:
    """Return the stage of a sample. `stack`: modules of the gateway, the innermost first."""
    if any(module in LEARNING for module in stack):
        return LEARN
    module = next((module for module in stack if module not in SHARED), "")
    parts = module.split(".")
    return MODULES.get(".".join(parts[1:3]), REST)


def without_number(thread: str) -> str:
    return re.sub(r"_\d+$", "", thread)


@dataclass(frozen=True, slots=True)
class Samples:
    """The output of `bench.stack_sampler`."""

    seconds: float
    """How long it took samples."""
    share: float
    """CPU time of the event loop meanwhile, as a share of a core."""
    loop: Mapping[str, float]
    """Seconds of the event loop by stage, without its own work."""
    threads: Mapping[int, str]

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> Samples:
        loop = dict.fromkeys(STAGES, 0.0)
        for stack, count in said["stacks"]:
            if stack and not stack[0].startswith(IDLE):
                loop[stage_of(stack)] += count * said["period_s"]
        names = {int(number): without_number(name) for number, name in said["threads"].items()}
        return cls(said["seconds"], said["cpu_s"] / said["seconds"], loop, names)


@dataclass
class StageCosts:
    """`StageCosts` adds up the cost of one kind of request, in seconds of all its requests."""

    requests: int = 0
    loop: dict[str, float] = field(default_factory=dict)
    """By stage, from samples."""
    threads: dict[str, float] = field(default_factory=dict)
    """By name, without the event loop."""

    def add(self, samples: Samples, idle: Samples, threads: Mapping[int, float], requests: int) -> None:
        """Add the samples and the time of each thread. `idle`: samples of the same gateway without requests."""
        self.requests += requests
        for stage, seconds in samples.loop.items():
            without = seconds - idle.loop[stage] * samples.seconds / idle.seconds
            self.loop[stage] = self.loop.get(stage, 0.0) + without
        for number, seconds in threads.items():
            name = samples.threads.get(number, "other")
            if name != "MainThread":
                self.threads[name] = self.threads.get(name, 0.0) + seconds

    def micros(self, loop_us: float) -> dict[str, float]:
        """Return microseconds per request of each stage. `loop_us`: of the event loop, without samples taken."""
        found = dict.fromkeys(STAGES, 0.0)
        sampled = {stage: max(0.0, 1e6 * each / self.requests) for stage, each in self.loop.items() if stage != REST}
        too_much = max(1.0, sum(sampled.values()) / loop_us)  # a sample of a thread that waits for its core counts
        for stage, micros in sampled.items():
            found[stage] += micros / too_much
        found[REST] += loop_us - sum(sampled.values()) / too_much
        for name, seconds in self.threads.items():
            found[THREADS.get(name, REST)] += 1e6 * seconds / self.requests
        return found
