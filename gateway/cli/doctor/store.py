"""Checks of the store and of an external index, with the gateway's own clients. They create nothing."""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.adapters.faiss.rebuilder import IndexPlan
from gateway.adapters.redis.client import StoreAccess, connect
from gateway.adapters.redis.cluster import primary_clients
from gateway.adapters.redis.embedded_valkey import server_program, socket_path
from gateway.adapters.system.child_process import ChildFailed
from gateway.cache.index_factory import build_device
from gateway.cache.stores import access_of
from gateway.cli.doctor import Finding, fault, ok, warning
from gateway.config import Config
from gateway.config.fields import milvus_lite_path
from gateway.config.store_url import StoreKind
from gateway.errors import IndexUnavailable, StartupError

TIMEOUT_S = 5.0
PINGS = 5
START_TIMEOUT_S = 5.0
# From this version on, a server confirms that a removal is on its disk (WAITAOF, docs/operations.md).
MIN_WAITAOF_VERSION = (7, 2)
# Removals depend on the clocks of all gateways (docs/operations.md), which may differ by up to a second.
SKEW_WARNING_S = 1.0
SKEW_FAULT_S = 60.0


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """Facts on a store's server. `where` is its URL without credentials.

    `information` (INFO) and `settings` (CONFIG GET) are empty if the server denies them.
    `latency_s` is the median of a few PINGs, `skew_s` the server's clock minus ours.
    """

    where: str
    information: Mapping[str, str]
    settings: Mapping[str, str]
    latency_s: float
    skew_s: float


def unreachable(where: str, why: str, embedded: bool) -> Finding:
    if embedded:
        return fault(
            "store",
            f"the embedded store does not answer: {why}",
            "the gateway restarts it by itself; if it fails again, see the logs in the folder store of data_dir",
        )
    return fault(
        "store",
        f"the store at {where} does not answer: {why}",
        "start it, or correct store.url; until then every request is a miss",
    )


def store_findings(facts: StoreFacts, config: Config) -> Iterator[Finding]:
    """Yield a finding on the server itself, and then one for each problem."""
    said = facts.information
    if not said:
        found = f"the store at {facts.where} answers in {1e3 * facts.latency_s:.1f} ms, but its user may not run INFO"
        yield warning(
            "store", found, "let the user of store.url run INFO and TIME, so that the settings can be checked"
        )
        return
    name, version = _version(said)
    found = f"{name} {version} at {facts.where} answers in {1e3 * facts.latency_s:.1f} ms"
    yield _latency(found, facts, config.store.timeout)
    if config.store.url != "embedded" and _parse_version(version) < MIN_WAITAOF_VERSION:
        yield warning("store", f"{name} {version} cannot confirm that a removal is on disk", "use Redis 7.2 or Valkey")
    if said.get("role") in ("slave", "replica"):
        yield fault("store", "this server is a replica and accepts no writes", "name its primary in store.url")
    if config.store.target.kind in (StoreKind.SENTINEL, StoreKind.CLUSTER) and said.get("connected_slaves", "0") == "0":
        yield warning("store", "this primary has no replica: if it fails, nothing takes over", "start one")
    yield from _persistence(facts, config)
    yield from _memory(facts)
    if config.store.url != "embedded":
        yield clock_finding(facts.skew_s)


def _latency(found: str, facts: StoreFacts, timeout_s: float) -> Finding:
    limit = f"store.timeout is {1e3 * timeout_s:g} ms"
    if facts.latency_s >= timeout_s:
        return fault("store", f"{found}, but {limit}: every lookup times out", "move it nearer, or raise store.timeout")
    if facts.latency_s >= timeout_s / 2:
        return warning("store", f"{found}, and {limit}", "move it nearer, or raise store.timeout")
    return ok("store", found)


def _persistence(facts: StoreFacts, config: Config) -> Iterator[Finding]:
    said, set_to = facts.information, facts.settings
    appends = said.get("aof_enabled") == "1"
    for key, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if said.get(key, "ok") != "ok":
            yield fault("store", f"its last {what} could not be written", "see its log; often the disk is full")
    if config.jobs.fsync and not (appends and set_to.get("appendfsync") == "always"):
        yield fault(
            "store",
            "jobs.fsync is on, but the server does not fsync each write, or does not show it: jobs are refused",
            "set appendonly yes and appendfsync always there, or jobs.fsync: off",
        )
    elif not appends and not set_to.get("save", "?"):
        todo = "set appendonly yes there, unless that is intended"
        yield warning("store", "it writes nothing to disk: a restart loses answers, removals and jobs", todo)
    elif not appends:
        todo = "set appendonly yes there, so that removals and jobs are kept"
        yield warning("store", "it writes only snapshots: a crash loses everything since the last one", todo)


def _memory(facts: StoreFacts) -> Iterator[Finding]:
    said = facts.information
    policy, most = said.get("maxmemory_policy", "noeviction"), int(said.get("maxmemory", "0") or 0)
    used = int(said.get("used_memory", "0") or 0)
    if policy.startswith("allkeys"):
        yield warning(
            "store",
            f"its maxmemory-policy is {policy}: it may drop jobs, removals and learnt thresholds",
            "set maxmemory-policy volatile-lru there: answers have an expiry, everything else does not",
        )
    elif policy == "noeviction" and most:
        level = fault if used >= most else warning
        state = "is full" if used >= most else f"is {used / most:.0%} full"
        todo = "set maxmemory-policy volatile-lru there, or store.max_bytes below its maxmemory"
        yield level(
            "store", f"its memory {state}, and with maxmemory-policy noeviction a full store refuses answers", todo
        )


def clock_finding(skew_s: float) -> Finding:
    found = f"the store's clock and this one differ by {abs(skew_s):.2f} s"
    if abs(skew_s) >= SKEW_FAULT_S:
        return fault(
            "clock", found, "run chrony or systemd-timesyncd on both: expiry and removals depend on these clocks"
        )
    if abs(skew_s) >= SKEW_WARNING_S:
        return warning("clock", found, "run chrony or systemd-timesyncd on both: removals depend on these clocks")
    return ok("clock", found)


def _version(said: Mapping[str, str]) -> tuple[str, str]:
    if "valkey_version" in said:
        return "Valkey", said["valkey_version"]
    return "Redis", said.get("redis_version", "0")


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2])) or (0,)


async def store(config: Config, environ: Mapping[str, str], gateway_runs: bool) -> list[Finding]:
    """Check the configured server, or the embedded one of a running gateway.

    If no gateway runs, check only that the embedded server can start.
    """
    embedded = config.store.url == "embedded"
    if embedded and not gateway_runs:
        return [await asyncio.to_thread(_bundled_server)]
    path = socket_path(config.data_dir.resolve() / "store") if embedded else None
    url = f"unix://{path}" if embedded else config.store.url
    where = "its socket" if embedded else config.store.target.where
    try:
        access = access_of(config.store, environ)
    except StartupError as error:
        return [fault("store", str(error), "correct that; the gateway does not start")]
    try:
        async with asyncio.timeout(TIMEOUT_S):
            facts = await _probe_servers(url, where, access)
    except (RedisError, OSError, TimeoutError, ValueError) as error:
        return [unreachable(where, _why(error), embedded)]
    return [finding for one in facts for finding in store_findings(one, config)]


def _bundled_server() -> Finding:
    try:
        said = subprocess.run(  # noqa: S603 - the program that comes with the package
            [server_program(), "--version"], capture_output=True, text=True, timeout=START_TIMEOUT_S, check=True
        ).stdout
    except (OSError, ChildFailed, subprocess.SubprocessError) as error:
        todo = "pip install -r requirements.lock, or name a server in store.url"
        return fault("store", f"the embedded server cannot start: {type(error).__name__}", todo)
    version = next((word for word in said.split() if word.startswith("v=")), "v=unknown").removeprefix("v=")
    return ok("store", f"the embedded Valkey {version} can start; the gateway starts it")


async def _probe_servers(url: str, where: str, access: StoreAccess) -> list[StoreFacts]:
    """Probe the server; in a cluster, each primary."""
    client: Any = connect(url, access=access)
    try:
        async with primary_clients(client) as servers:
            return [await _probe(server, f"{at} of {where}" if at else where) for at, server in servers.items()]
    finally:
        await client.aclose()


async def _probe(client: Any, where: str) -> StoreFacts:
    await client.ping()  # opens the connection, so that the latency does not include it
    latencies = []
    for _ in range(PINGS):
        begun = time.perf_counter()
        await client.ping()
        latencies.append(time.perf_counter() - begun)
    latency_s = statistics.median(latencies)
    try:
        before = time.time()
        seconds, micros = await client.time()
        skew_s = seconds + micros / 1e6 - (before + time.time()) / 2
        information = {str(name): str(value) for name, value in (await client.info()).items()}
    except NoPermissionError:
        return StoreFacts(where, {}, {}, latency_s, 0.0)
    return StoreFacts(where, information, await _settings(client), latency_s, skew_s)


async def _settings(client: Any) -> dict[str, str]:
    """Return the settings; empty if the server denies CONFIG GET, as hosted ones do."""
    try:
        told = {**await client.config_get("append*"), **await client.config_get("save")}
    except ResponseError:
        return {}
    return {_text(name): _text(value) for name, value in told.items()}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _why(error: BaseException) -> str:
    """Describe the error without the server's own message, which may repeat credentials."""
    if isinstance(error, AuthenticationError):
        return "it rejects the user or the password"
    if isinstance(error, MasterNotFoundError):
        cause = error.__cause__
        return "no sentinel knows this primary" if cause is None else f"no sentinel answers: {_why(cause)}"
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def index(config: Config, environ: Mapping[str, str], gateway_runs: bool) -> list[Finding]:
    """Check a GPU index or Milvus. An index in process on the CPU has no finding: the limits cover its memory."""
    url, device = config.index.url, config.index.device
    if device != "cpu":
        try:
            build_device(device)
        except StartupError as error:
            return [fault("index", str(error), "follow that message")]
        return [ok("index", f"faiss finds {device}, for partitions of {IndexPlan().device_from:,} entries and more")]
    if config.index.adapter != "milvus" or url is None:
        return []
    if milvus_lite_path(url) and gateway_runs:
        return [ok("index", f"the running gateway has {url} open; only one process may, so it is not checked")]
    milvus = import_module("gateway.features.milvus.opening")
    try:
        version = await asyncio.to_thread(milvus.milvus_version, config, environ, TIMEOUT_S)
    except StartupError as error:
        return [fault("index", str(error), "follow that message, or use index.adapter: faiss")]
    except IndexUnavailable as error:
        todo = "start it, or correct index.url or index.token_env; until then there are no semantic hits"
        return [fault("index", f"Milvus at {url} does not answer: {error}", todo)]
    return [ok("index", f"Milvus {version} at {url} answers")]
