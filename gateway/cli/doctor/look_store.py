"""Facts of the store's server, asked over the gateway's own client."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import Any

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from gateway.adapters.redis.client import Access, connect
from gateway.adapters.redis.cluster import each_server
from gateway.adapters.redis.embedded_valkey import server_program, socket_path
from gateway.adapters.system.child_process import ChildFailed
from gateway.cache.stores import access_of
from gateway.cli.doctor.findings import Finding, fault, ok
from gateway.cli.doctor.store import CHECK, StoreFacts, store_findings, unreachable
from gateway.config import Config
from gateway.errors import StartFailed

ANSWER_S = 5.0
PINGS = 5
STARTS_S = 5.0


async def store(config: Config, environ: Mapping[str, str], gateway_runs: bool) -> list[Finding]:
    """Of the server that is named; of the embedded one where a gateway runs on its folder. Else that it can be run."""
    embedded = config.store.url == "embedded"
    if embedded and not gateway_runs:
        return [await asyncio.to_thread(_bundled)]
    path = socket_path(config.data_dir.resolve() / "store") if embedded else None
    url = f"unix://{path}" if embedded else config.store.url
    where = "its socket" if embedded else config.store.target.where
    try:
        access = access_of(config.store, environ)
    except StartFailed as error:
        return [fault(CHECK, str(error), "put it right, the gateway does not start")]
    try:
        async with asyncio.timeout(ANSWER_S):
            facts = await _ask_all(url, where, access)
    except (RedisError, OSError, TimeoutError, ValueError) as error:
        return [unreachable(where, _why(error), embedded)]
    return [finding for one in facts for finding in store_findings(one, config)]


def _bundled() -> Finding:
    try:
        said = subprocess.run(  # noqa: S603 - the program that comes with the package
            [server_program(), "--version"], capture_output=True, text=True, timeout=STARTS_S, check=True
        ).stdout
    except (OSError, ChildFailed, subprocess.SubprocessError) as error:
        todo = "pip install -r requirements.lock, or name a server in store.url"
        return fault(CHECK, f"the embedded server cannot be run: {type(error).__name__}", todo)
    version = next((word for word in said.split() if word.startswith("v=")), "v=unknown").removeprefix("v=")
    return ok(CHECK, f"the embedded Valkey {version} can be run; it starts with the gateway")


async def _ask_all(url: str, where: str, access: Access) -> list[StoreFacts]:
    """Of a cluster each server that takes writes."""
    client: Any = connect(url, access=access)
    try:
        async with each_server(client) as servers:
            return [await _ask(server, f"{at} of {where}" if at else where) for at, server in servers.items()]
    finally:
        await client.aclose()


async def _ask(client: Any, where: str) -> StoreFacts:
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
        ahead_s = seconds + micros / 1e6 - (before + time.time()) / 2
        information = {str(name): str(value) for name, value in (await client.info()).items()}
    except NoPermissionError:
        return StoreFacts(where, {}, {}, latency_s, 0.0)
    return StoreFacts(where, information, await _settings(client), latency_s, ahead_s)


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
        return f"nothing within {ANSWER_S:g} s"
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return type(error).__name__


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
