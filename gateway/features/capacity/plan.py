"""Computes a fleet from a demand and unit costs. Pure. Each part shows its formula with the figures in it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gateway.features.capacity.costs import Costs
from gateway.features.capacity.demand import Demand, DemandImpossible


# The queueing model has one server with one queue: a gateway's event loop, or the thread of its embedding model.
@dataclass(frozen=True, slots=True)
class ServiceTime:
    """The service time of requests at one server: its mean in s, and `square`, the mean of its square in s^2."""

    mean_s: float
    square: float

    @classmethod
    def of(cls, kinds: Iterable[tuple[float, float]]) -> ServiceTime:
        """Return the service time of a mix of request kinds, each given as (share, seconds).

        Each kind has a constant service time. If the shares sum to less than 1, the rest takes no time.
        """
        known = list(kinds)
        return cls(sum(p * s for p, s in known), sum(p * s * s for p, s in known))


def mean_wait_s(rate: float, service: ServiceTime, reserved_share: float = 0.0) -> float:
    """Return the mean wait until service begins, for Poisson arrivals at `rate` per second.

    The formula is that of Pollaczek and Khinchine: rate E[S^2] / (2 (1 - utilisation)). `reserved_share`, in [0, 1),
    is the part of the server that other work takes. The wait is inf if the server cannot keep up.
    """
    left = 1.0 - reserved_share
    used = rate * service.mean_s / left if left > 0 else math.inf
    if used >= 1:
        return math.inf
    return rate * service.square / (2 * left * left * (1 - used))


def wait_quantile_s(rate: float, service: ServiceTime, quantile: float, reserved_share: float = 0.0) -> float:
    """Return the `quantile` of the wait, for a tail that is exponential: P(W > t) = u exp(-t u / E[W]).

    The tail is exact for exponential service. For other service times the error is a few per cent of the wait, as
    bench/capacity_model.py checks.
    """
    wait = mean_wait_s(rate, service, reserved_share)
    used = rate * service.mean_s / (1 - reserved_share) if reserved_share < 1 else math.inf
    if used <= 1 - quantile or wait == 0:
        return 0.0
    return wait / used * math.log(used / (1 - quantile)) if math.isfinite(wait) else math.inf


def servers(work: float, utilisation: float) -> float:
    """Return the number of servers, not rounded, for `work` seconds per second at `utilisation`, in (0, 1)."""
    return work / utilisation


def round_up(count: float) -> int:
    """Return `count` rounded up, at least 1. A rounding error of a sum does not add one."""
    return max(1, math.ceil(count - 1e-9))


US, MB, GB = 1e-6, 1e6, 1e9

FOLLOWER_SHARE = 0.5  # of the target utilisation of a core: if replication alone takes more, the plan uses Milvus


@dataclass(frozen=True, slots=True)
class PlanPart:
    """`count` machines or processes, spares included. `cores` and `memory_gb` are totals.

    `used` has the names of the costs in its formula.
    """

    name: str
    count: int
    formula: str
    cores: float = 0.0
    memory_gb: float = 0.0
    gpus: int = 0
    used: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A fleet for a demand. Rates are per second at the peak. Waits are in seconds, without the spare gateways."""

    demand: Demand
    index: str  # faiss | milvus
    index_reason: str
    parts: tuple[PlanPart, ...]
    changes: float
    loop_wait_p95_s: float
    threads_wait_p95_s: float
    client_bits: float
    upstream_bits: float
    store_bits: float
    out_gb_month: float
    notes: tuple[str, ...]

    def part(self, name: str) -> PlanPart:
        """Return the part with that name. Raises `KeyError`."""
        return {part.name: part for part in self.parts}[name]

    @property
    def cores(self) -> float:
        return sum(part.cores for part in self.parts)

    @property
    def memory_gb(self) -> float:
        return sum(part.memory_gb for part in self.parts)

    @property
    def gpus(self) -> int:
        return sum(part.gpus for part in self.parts)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a gateway: the service times of its event loop and of its worker threads.

    The two `_replication` fields are the share of a core that each gateway needs to follow the changes of the others.
    """

    loop: ServiceTime
    threads: ServiceTime
    loop_replication: float
    threads_replication: float


SECONDS_A_MONTH = 730 * 3600


def work_per_request(demand: Demand, costs: Costs, index: str) -> Work:
    """Return the work of a gateway for `demand`.

    Each event of a stream is a service of the loop by itself, because other requests run between two events.
    """
    d, c = demand, costs
    loop = [
        (d.exact, c.exact_loop_us * US),
        (d.semantic, c.semantic_loop_us * US),
        (d.miss, c.miss_loop_us * US),
        (d.miss * d.stream_share * d.stream_events, c.event_loop_us * US),
    ]
    elsewhere = c.embedding_threads_us if d.embedder == "triton" else 0.0
    threads = [
        (d.semantic, max(0.0, c.semantic_threads_us - elsewhere) * US),
        (d.miss, max(0.0, c.miss_threads_us - elsewhere) * US),
    ]
    changes = d.peak * d.inserts if index == "faiss" else 0.0
    return Work(
        ServiceTime.of(loop),
        ServiceTime.of(threads),
        changes * c.change_loop_us * US,
        changes * c.change_threads_us * US,
    )


def plan_fleet(demand: Demand, costs: Costs) -> FleetPlan:
    """Return the fleet for `demand`. Raises `DemandImpossible`."""
    index, index_reason = _index(demand, costs)
    work = work_per_request(demand, costs, index)
    gateways = _gateways(demand, costs, index, work)
    left = demand.peak / (gateways.count - demand.spare)
    changes = demand.peak * demand.inserts
    follows = gateways.count if index == "faiss" else 0
    parts = [gateways, _store(demand, costs, follows)]
    if index == "milvus":
        parts.append(_milvus(demand, costs))
    parts += _gpus(demand, costs)
    d, answer = demand, answer_bytes(demand, costs)
    both = demand.request_bytes + answer
    read = d.exact * costs.exact_store_bytes + d.semantic * costs.semantic_store_bytes + d.inserts * answer
    return FleetPlan(
        demand=d,
        index=index,
        index_reason=index_reason,
        parts=tuple(parts),
        changes=changes,
        loop_wait_p95_s=wait_quantile_s(left, work.loop, 0.95, work.loop_replication),
        threads_wait_p95_s=wait_quantile_s(left, work.threads, 0.95, work.threads_replication),
        client_bits=8 * d.peak * both,
        upstream_bits=8 * d.peak * d.miss * both,
        store_bits=8 * (d.peak * read + changes * follows * costs.change_store_bytes),
        out_gb_month=d.rps * answer * SECONDS_A_MONTH / GB,
        notes=tuple(_notes(d, costs, index, changes, follows)),
    )


def _index(d: Demand, c: Costs) -> tuple[str, str]:
    changes = d.peak * d.inserts
    loop, threads = (changes * us * US for us in (c.change_loop_us, c.change_threads_us))
    share = max(loop, threads)
    large = d.entries > c.faiss_entries
    if d.index == "faiss":
        if large:
            raise DemandImpossible(
                f"--index faiss is measured up to {c.faiss_entries:g} entries in each gateway, and --entries is "
                f"{d.entries:g}: use fewer entries or --index milvus, or set faiss_entries in --costs"
            )
        if share >= d.utilisation:
            raise DemandImpossible(
                f"--index faiss cannot follow {changes:,.0f} new entries a second at the peak: that takes {share:.0%} "
                f"of a core in each gateway, and --utilisation allows {d.utilisation:.0%}: use --index milvus or a "
                "smaller --stored-share"
            )
        return "faiss", "as requested"
    if d.index == "milvus":
        return "milvus", "as requested"
    if large:
        return "milvus", f"{d.entries:g} entries, and FAISS is measured up to {c.faiss_entries:g}"
    if share > FOLLOWER_SHARE * d.utilisation:
        return (
            "milvus",
            f"{changes:,.0f} new entries a second would take {share:.0%} of a core in each gateway to follow",
        )
    return "faiss", f"in each gateway: {d.entries:g} entries, {share:.1%} of a core to follow the others"


def _gateways(d: Demand, c: Costs, index: str, work: Work) -> PlanPart:
    loops = d.peak * work.loop.mean_s / (d.utilisation - work.loop_replication)
    threads = d.peak * work.threads.mean_s / (d.utilisation - work.threads_replication)
    count = round_up(max(loops, threads)) + d.spare
    following = count * (work.loop_replication + work.threads_replication)
    index_bytes = d.entries * c.entry_index_bytes if index == "faiss" else 0.0
    left = f"({d.utilisation:g} - {work.loop_replication:.3f} following)" if index == "faiss" else f"{d.utilisation:g}"
    return PlanPart(
        "gateways",
        count,
        f"{d.peak:,.0f}/s x {work.loop.mean_s / US:,.0f} us of event loop / {left} = {loops:,.1f}; "
        f"x {work.threads.mean_s / US:,.0f} us of threads = {threads:,.1f}; the larger, + {d.spare} spare",
        cores=servers(d.peak * (work.loop.mean_s + work.threads.mean_s) + following, d.utilisation)
        * _with_spares(count, d),
        memory_gb=count * (c.gateway_mb * MB + index_bytes) / GB,
        used=(
            *("exact_loop_us", "semantic_loop_us", "semantic_threads_us", "miss_loop_us", "miss_threads_us"),
            *(("event_loop_us",) if d.stream_share * d.stream_events else ()),
            *(("embedding_threads_us",) if d.embedder == "triton" else ()),
            *(("change_loop_us", "change_threads_us", "entry_index_bytes") if index == "faiss" else ()),
        ),
    )


def _with_spares(count: int, d: Demand) -> float:
    """Return the factor that adds the cores of the spares: they have cores although the load needs none of them."""
    return count / (count - d.spare)


def _store(d: Demand, c: Costs, follows: int) -> PlanPart:
    each = d.exact * c.exact_store_us + d.semantic * c.semantic_store_us + d.inserts * c.miss_store_us
    followed = d.peak * d.inserts * follows * c.change_store_us * US
    by_work = servers(d.peak * each * US + followed, d.utilisation)
    size = c.entry_store_bytes + answer_bytes(d, c)
    stored_bytes = d.entries * size
    by_memory = stored_bytes / (c.shard_gb * GB * c.shard_fill)
    shards = round_up(max(by_work, by_memory))
    following = f" + {followed:,.1f} for {follows} followers" if follows else ""
    nodes = shards * (1 + d.store_replicas)
    return PlanPart(
        "store shards",
        shards,
        f"({d.peak:,.0f}/s x {each:,.0f} us{following}) / {d.utilisation:g} = {by_work:,.1f} by work; "
        f"{d.entries:g} x {size:,.0f} B / ({c.shard_gb:g} GB x {c.shard_fill:g}) = {by_memory:,.1f} by memory; "
        f"the larger, each with {d.store_replicas} replica(s)",
        cores=float(nodes),
        memory_gb=stored_bytes * (1 + d.store_replicas) / c.shard_fill / GB,
        used=(
            *("exact_store_us", "semantic_store_us", "miss_store_us", "entry_store_bytes", "shard_gb", "shard_fill"),
            *(("event_store_bytes",) if d.stream_share * d.stream_events else ()),
            *(("change_store_us",) if follows else ()),
        ),
    )


def answer_bytes(d: Demand, c: Costs) -> float:
    """Return the mean size of an answer, complete or streamed, in the store and on the network."""
    return (1 - d.stream_share) * d.answer_bytes + d.stream_share * d.stream_events * c.event_store_bytes


def _milvus(d: Demand, c: Costs) -> PlanPart:
    memory = d.entries * c.entry_milvus_bytes / (c.milvus_node_gb * GB * c.shard_fill)
    searches = servers(d.peak * d.embeddings / c.milvus_searches, d.utilisation)
    inserts = servers(d.peak * d.inserts / c.milvus_inserts, d.utilisation)
    count = round_up(max(memory, searches, inserts)) + d.spare
    return PlanPart(
        "milvus nodes",
        count,
        f"{d.entries:g} x {c.entry_milvus_bytes:g} B / ({c.milvus_node_gb:g} GB x {c.shard_fill:g}) = {memory:,.1f}; "
        f"{d.peak * d.embeddings:,.0f} searches/s / ({c.milvus_searches:g} x {d.utilisation:g}) = {searches:,.1f}; "
        f"{d.peak * d.inserts:,.0f} inserts/s / ({c.milvus_inserts:g} x {d.utilisation:g}) = {inserts:,.1f}; "
        f"the largest, + {d.spare} spare",
        cores=count * c.milvus_node_gb / 4,  # 4 GB a core, as machines for memory are sold
        memory_gb=count * c.milvus_node_gb,
        used=("entry_milvus_bytes", "milvus_node_gb", "milvus_searches", "milvus_inserts", "shard_fill"),
    )


def _gpus(d: Demand, c: Costs) -> Iterator[PlanPart]:
    loads = (
        [("embedding GPUs", "embeddings_per_gpu", d.embeddings, c.embeddings_per_gpu)] if d.embedder == "triton" else []
    )
    if d.own_models:
        loads.append(("light model GPUs", "light_per_gpu", d.miss * (1 - d.large_share), c.light_per_gpu))
        loads.append(("large model GPUs", "large_per_gpu", d.miss * d.large_share, c.large_per_gpu))
    for name, cost, share, each in loads:
        if share > 0:
            count = servers(d.peak * share / each, d.utilisation)
            formula = f"{d.peak * share:,.0f}/s / ({each:g}/s x {d.utilisation:g}) = {count:,.1f}, + {d.spare} spare"
            yield PlanPart(name, round_up(count) + d.spare, formula, gpus=round_up(count) + d.spare, used=(cost,))


def _notes(d: Demand, c: Costs, index: str, changes: float, follows: int) -> Iterator[str]:
    inserts = d.rps * d.inserts
    if inserts > 0 and d.entries >= 1:
        stays = duration(d.entries / inserts)
        yield (
            f"{d.entries:g} entries and {inserts:,.0f} new ones a second: an entry stays {stays} on average; if "
            "the hit rate needs a longer time, plan more entries or a smaller --stored-share"
        )
    if changes > 0 and index == "faiss":
        yield (
            f"the log of changes is one key on one shard: {changes:,.0f} lines a second, read by {follows} gateways; "
            f"with store.max_changes {max(1000, 180 * changes):,.0f} a gateway may be down for three minutes"
        )
    if index == "milvus":
        yield "the cost of the Milvus client in a gateway is not included, because it is not measured"
    if d.embedder == "triton" and d.embeddings > 0:
        yield "the cost of a call to Triton for the event loop is not included, because it is not measured"
    if d.own_models and d.hit_rate > 0:
        each = (1 - d.large_share) / c.light_per_gpu + d.large_share / c.large_per_gpu
        yield f"hits save {servers(d.peak * d.hit_rate * each, d.utilisation):,.0f} GPUs of models"


def duration(seconds: float) -> str:
    for unit, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.1f} {name}"
    return f"{seconds:,.1f} s"
