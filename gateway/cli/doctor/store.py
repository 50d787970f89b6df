"""Findings on the store, from what its server says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.cli.doctor.findings import Finding, fault, ok, warning
from gateway.config import Config
from gateway.config.store_url import Kind

CHECK = "store"
# From this version on a server says whether a removal is on its disk (WAITAOF, docs/operations.md).
TELLS_OF_ITS_DISK = (7, 2)
# Removals count by the clocks of all gateways (docs/operations.md): within a second they are taken to agree.
CLOCKS_AGREE_S = 1.0
CLOCKS_WRONG_S = 60.0


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a server said. `where`: its URL without credentials. Empty: `information` (of INFO) or `settings` (of
    CONFIG GET) where that is denied.

    `latency_s`: the median of a few PINGs. `ahead_s`: by how much its clock goes before ours."""

    where: str
    information: Mapping[str, str]
    settings: Mapping[str, str]
    latency_s: float
    ahead_s: float


def unreachable(where: str, why: str, embedded: bool) -> Finding:
    if embedded:
        return fault(
            CHECK,
            f"the embedded store does not answer: {why}",
            "the gateway starts it again by itself; if it does not last, see the logs in store of data_dir",
        )
    return fault(
        CHECK,
        f"the store at {where} does not answer: {why}",
        "start it, or put store.url right; until then every request is a miss",
    )


def store_findings(facts: StoreFacts, config: Config) -> Iterator[Finding]:
    """The first one says what is there; further ones say what is wrong with it."""
    said = facts.information
    if not said:
        found = (
            f"the store at {facts.where} answers in {1e3 * facts.latency_s:.1f} ms, and the user may not ask for more"
        )
        yield warning(CHECK, found, "let the user of store.url run INFO and TIME, to have its settings examined")
        return
    name, version = _version(said)
    found = f"{name} {version} at {facts.where} answers in {1e3 * facts.latency_s:.1f} ms"
    yield _latency(found, facts, config.store.timeout)
    if config.store.url != "embedded" and _parsed(version) < TELLS_OF_ITS_DISK:
        yield warning(
            CHECK, f"{name} {version} cannot say what is on its disk", "use Redis 7.2 or Valkey, so that removals can"
        )
    if said.get("role") in ("slave", "replica"):
        yield fault(CHECK, "this server is a replica and takes no writes", "name its primary in store.url")
    if config.store.target.kind in (Kind.SENTINEL, Kind.CLUSTER) and said.get("connected_slaves", "0") == "0":
        yield warning(CHECK, "no replica follows this primary: when it dies nothing takes over", "start one")
    yield from _persistence(facts, config)
    yield from _memory(facts)
    if config.store.url != "embedded":
        yield clock_finding(facts.ahead_s)


def _latency(found: str, facts: StoreFacts, timeout_s: float) -> Finding:
    limit = f"store.timeout is {1e3 * timeout_s:g} ms"
    if facts.latency_s >= timeout_s:
        return fault(CHECK, f"{found}, and {limit}: nothing is found in time", "move it nearer, or raise store.timeout")
    if facts.latency_s >= timeout_s / 2:
        return warning(CHECK, f"{found}, and {limit}", "move it nearer, or raise store.timeout")
    return ok(CHECK, found)


def _persistence(facts: StoreFacts, config: Config) -> Iterator[Finding]:
    said, set_to = facts.information, facts.settings
    appends = said.get("aof_enabled") == "1"
    for key, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if said.get(key, "ok") != "ok":
            yield fault(CHECK, f"its last {what} could not be written", "see its log; often its disk is full")
    if config.jobs.fsync and not (appends and set_to.get("appendfsync") == "always"):
        yield fault(
            CHECK,
            "jobs.fsync is on, and the server does not write through, or does not say so: jobs are refused",
            "set appendonly yes and appendfsync always there, or jobs.fsync: off",
        )
    elif not appends and not set_to.get("save", "?"):
        todo = "set appendonly yes there, unless losing them is meant"
        yield warning(CHECK, "nothing is written to disk: a restart of it loses answers, removals and jobs", todo)
    elif not appends:
        todo = "set appendonly yes there, so that removals and jobs are kept"
        yield warning(CHECK, "it writes snapshots alone: what came after the last one is lost with it", todo)


def _memory(facts: StoreFacts) -> Iterator[Finding]:
    said = facts.information
    policy, most = said.get("maxmemory_policy", "noeviction"), int(said.get("maxmemory", "0") or 0)
    used = int(said.get("used_memory", "0") or 0)
    if policy.startswith("allkeys"):
        yield warning(
            CHECK,
            f"its maxmemory-policy is {policy}: it may drop jobs, removals and what was learnt",
            "set maxmemory-policy volatile-lru there: answers have an expiry, the rest has none",
        )
    elif policy == "noeviction" and most:
        level = fault if used >= most else warning
        state = "is full" if used >= most else f"is {used / most:.0%} full"
        todo = "set maxmemory-policy volatile-lru there, or store.max_bytes below its maxmemory"
        yield level(CHECK, f"its memory {state}, and with maxmemory-policy noeviction it then refuses answers", todo)


def clock_finding(ahead_s: float) -> Finding:
    found = f"the store's clock and this one differ by {abs(ahead_s):.2f} s"
    if abs(ahead_s) >= CLOCKS_WRONG_S:
        return fault(
            "clock", found, "run chrony or systemd-timesyncd on both: what expires and what is removed goes by it"
        )
    if abs(ahead_s) >= CLOCKS_AGREE_S:
        return warning("clock", found, "run chrony or systemd-timesyncd on both: removals count by these clocks")
    return ok("clock", found)


def _version(said: Mapping[str, str]) -> tuple[str, str]:
    if "valkey_version" in said:
        return "Valkey", said["valkey_version"]
    return "Redis", said.get("redis_version", "0")


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2])) or (0,)
