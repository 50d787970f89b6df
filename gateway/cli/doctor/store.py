"""The store and the index outside, asked over the gateway's own clients. Nothing is made."""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.adapters.faiss.rebuilder import IndexPlan
from gateway.adapters.redis.client import StoreAccess, connect
from gateway.adapters.redis.cluster import primary_clients
from gateway.adapters.redis.embedded_valkey import server_program, socket_path
from gateway.adapters.system.child_process import ChildFailed
from gateway.cache.index_factory import build_device, milvus_version
from gateway.cache.stores import access_of
from gateway.cli.doctor import Finding, fault, ok, warning
from gateway.config import Config
from gateway.config.fields import milvus_lite_path
from gateway.config.store_url import StoreKind
from gateway.errors import IndexUnavailable, StartupError

TIMEOUT_S = 5.0
PINGS = 5
START_TIMEOUT_S = 5.0
# From this version on a server says whether a removal is on its disk (WAITAOF, docs/operations.md).
MIN_WAITAOF_VERSION = (7, 2)
# Removals count by the clocks of all gateways (docs/operations.md): within a second they are taken to agree.
SKEW_WARNING_S = 1.0
SKEW_FAULT_S = 60.0


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a server said. `where`: its URL without credentials. Empty: `information` (of INFO) or `settings` (of
    CONFIG GET) where that is denied.

    `latency_s`: the median of a few PINGs. `skew_s`: by how much its clock goes before ours."""

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
            "the gateway starts it again by itself; if it does not last, see the logs in store of data_dir",
        )
    return fault(
        "store",
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
        yield warning("store", found, "let the user of store.url run INFO and TIME, to have its settings examined")
        return
    name, version = _version(said)
    found = f"{name} {version} at {facts.where} answers in {1e3 * facts.latency_s:.1f} ms"
    yield _latency(found, facts, config.store.timeout)
    if config.store.url != "embedded" and _parse_version(version) < MIN_WAITAOF_VERSION:
        yield warning(
            "store", f"{name} {version} cannot say what is on its disk", "use Redis 7.2 or Valkey, so that removals can"
        )
    if said.get("role") in ("slave", "replica"):
        yield fault("store", "this server is a replica and takes no writes", "name its primary in store.url")
    if config.store.target.kind in (StoreKind.SENTINEL, StoreKind.CLUSTER) and said.get("connected_slaves", "0") == "0":
        yield warning("store", "no replica follows this primary: when it dies nothing takes over", "start one")
    yield from _persistence(facts, config)
    yield from _memory(facts)
    if config.store.url != "embedded":
        yield clock_finding(facts.skew_s)


def _latency(found: str, facts: StoreFacts, timeout_s: float) -> Finding:
    limit = f"store.timeout is {1e3 * timeout_s:g} ms"
    if facts.latency_s >= timeout_s:
        return fault(
            "store", f"{found}, and {limit}: nothing is found in time", "move it nearer, or raise store.timeout"
        )
    if facts.latency_s >= timeout_s / 2:
        return warning("store", f"{found}, and {limit}", "move it nearer, or raise store.timeout")
    return ok("store", found)


def _persistence(facts: StoreFacts, config: Config) -> Iterator[Finding]:
    said, set_to = facts.information, facts.settings
    appends = said.get("aof_enabled") == "1"
    for key, what in (("aof_last_write_status", "append-only file"), ("rdb_last_bgsave_status", "snapshot")):
        if said.get(key, "ok") != "ok":
            yield fault("store", f"its last {what} could not be written", "see its log; often its disk is full")
    if config.jobs.fsync and not (appends and set_to.get("appendfsync") == "always"):
        yield fault(
            "store",
            "jobs.fsync is on, and the server does not write through, or does not say so: jobs are refused",
            "set appendonly yes and appendfsync always there, or jobs.fsync: off",
        )
    elif not appends and not set_to.get("save", "?"):
        todo = "set appendonly yes there, unless losing them is meant"
        yield warning("store", "nothing is written to disk: a restart of it loses answers, removals and jobs", todo)
    elif not appends:
        todo = "set appendonly yes there, so that removals and jobs are kept"
        yield warning("store", "it writes snapshots alone: what came after the last one is lost with it", todo)


def _memory(facts: StoreFacts) -> Iterator[Finding]:
    said = facts.information
    policy, most = said.get("maxmemory_policy", "noeviction"), int(said.get("maxmemory", "0") or 0)
    used = int(said.get("used_memory", "0") or 0)
    if policy.startswith("allkeys"):
        yield warning(
            "store",
            f"its maxmemory-policy is {policy}: it may drop jobs, removals and what was learnt",
            "set maxmemory-policy volatile-lru there: answers have an expiry, the rest has none",
        )
    elif policy == "noeviction" and most:
        level = fault if used >= most else warning
        state = "is full" if used >= most else f"is {used / most:.0%} full"
        todo = "set maxmemory-policy volatile-lru there, or store.max_bytes below its maxmemory"
        yield level("store", f"its memory {state}, and with maxmemory-policy noeviction it then refuses answers", todo)


def clock_finding(skew_s: float) -> Finding:
    found = f"the store's clock and this one differ by {abs(skew_s):.2f} s"
    if abs(skew_s) >= SKEW_FAULT_S:
        return fault(
            "clock", found, "run chrony or systemd-timesyncd on both: what expires and what is removed goes by it"
        )
    if abs(skew_s) >= SKEW_WARNING_S:
        return warning("clock", found, "run chrony or systemd-timesyncd on both: removals count by these clocks")
    return ok("clock", found)


def _version(said: Mapping[str, str]) -> tuple[str, str]:
    if "valkey_version" in said:
        return "Valkey", said["valkey_version"]
    return "Redis", said.get("redis_version", "0")


def _parse_version(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2])) or (0,)


async def store(config: Config, environ: Mapping[str, str], gateway_runs: bool) -> list[Finding]:
    """Of the server that is named; of the embedded one where a gateway runs on its folder. Else that it can be run."""
    embedded = config.store.url == "embedded"
    if embedded and not gateway_runs:
        return [await asyncio.to_thread(_bundled_server)]
    path = socket_path(config.data_dir.resolve() / "store") if embedded else None
    url = f"unix://{path}" if embedded else config.store.url
    where = "its socket" if embedded else config.store.target.where
    try:
        access = access_of(config.store, environ)
    except StartupError as error:
        return [fault("store", str(error), "put it right, the gateway does not start")]
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
        return fault("store", f"the embedded server cannot be run: {type(error).__name__}", todo)
    version = next((word for word in said.split() if word.startswith("v=")), "v=unknown").removeprefix("v=")
    return ok("store", f"the embedded Valkey {version} can be run; it starts with the gateway")


async def _probe_servers(url: str, where: str, access: StoreAccess) -> list[StoreFacts]:
    """Of a cluster each server that takes writes."""
    client: Any = connect(url, access=access)
    try:
        async with primary_clients(client) as servers:
            return [await _probe(server, f"{at} of {where}" if at else where) for at, server in servers.items()]
    finally:
        await client.aclose()


async def _probe(client: Any, where: str) -> StoreFacts:
    await client.ping()  # opens the connection, which is no part of the latency
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
    """Hosted servers do not show theirs."""
    try:
        told = {**await client.config_get("append*"), **await client.config_get("save")}
    except ResponseError:
        return {}
    return {_text(name): _text(value) for name, value in told.items()}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _why(error: BaseException) -> str:
    """Without the server's own sentence, which may repeat what it was told."""
    if isinstance(error, AuthenticationError):
        return "it does not accept the user or the password"
    if isinstance(error, MasterNotFoundError):
        cause = error.__cause__
        return "no sentinel knows such a primary" if cause is None else f"no sentinel can be asked: {_why(cause)}"
    if isinstance(error, TimeoutError | RedisTimeoutError):
        return f"nothing within {TIMEOUT_S:g} s"
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


async def index(config: Config, environ: Mapping[str, str], gateway_runs: bool) -> list[Finding]:
    """None where the index is in process and on the CPU: the limits say what that takes."""
    url, device = config.index.url, config.index.device
    if device != "cpu":
        try:
            build_device(device)
        except StartupError as error:
            return [fault("index", str(error), "do what it says")]
        return [ok("index", f"faiss finds {device}, for partitions of {IndexPlan().device_from:,} entries and more")]
    if config.index.adapter != "milvus" or url is None:
        return []
    if milvus_lite_path(url) and gateway_runs:
        return [ok("index", f"the gateway that runs has {url} open; one process may, so it is not looked at")]
    try:
        version = await asyncio.to_thread(milvus_version, config, environ, TIMEOUT_S)
    except StartupError as error:
        return [fault("index", str(error), "do what it says, or use index.adapter: faiss")]
    except IndexUnavailable as error:
        todo = "start it, or put index.url or index.token_env right; until then nothing is found in other words"
        return [fault("index", f"Milvus at {url} does not answer: {error}", todo)]
    return [ok("index", f"Milvus {version} at {url} answers")]
