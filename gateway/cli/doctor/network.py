"""The network: who answers at the gateway's ports, and what stands between it and its backends."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from gateway.adapters.system.clock import SystemClock
from gateway.cli.admin_client import url_of
from gateway.cli.doctor import MAX_FAULTS_SHOWN, Finding, fault, ok, warning
from gateway.config import Config, OnnxBackendConfig
from gateway.config.units import Address
from gateway.dialects.known import VERSIONED
from gateway.observability.telemetry import Telemetry
from gateway.upstream.aiohttp_session import open_session
from gateway.upstream.base_url import ends_in_version
from gateway.upstream.factory import build_pools
from gateway.upstream.upstream import Upstream

TIMEOUT_S = 5.0
MAX_ADDRESSES = 4  # of one name that are tried
ADMIN_REALM = "nearhit admin"
REACHABLE_STATUSES = (200, 401, 403)  # no credentials are shown: an API may want some before it tells
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class PortFacts:
    """`error`: why nothing can listen there; None: it is free. `answers`: what a nearhit there says of itself; None
    where no nearhit answers."""

    key: str
    address: Address
    error: str | None
    in_use: bool = False
    answers: Mapping[str, Any] | None = None


def port(facts: PortFacts) -> Finding:
    where = f"{facts.address} ({facts.key})"
    if facts.answers is not None:
        return ok("ports", f"{where}: a nearhit answers")
    if facts.in_use:
        todo = f"find it with `ss -ltnp 'sport = :{facts.address.port}'` and stop it, or change {facts.key}"
        return fault("ports", f"{where}: taken, and what answers there is no nearhit", todo)
    if facts.error is not None:
        return fault("ports", f"{where}: nothing can listen there: {facts.error}", f"change {facts.key}")
    free = "the system chooses a port" if facts.address.port == 0 else "free, no gateway runs there"
    return ok("ports", f"{where}: {free}")


def running(ready: Mapping[str, Any] | None, stats: Mapping[str, Any] | None, refused: str | None) -> Iterator[Finding]:
    """Of a gateway that answers. `ready`: its /readyz; `stats`: its /admin/stats; `refused`: why there are none."""
    if ready is not None and ready.get("draining"):
        yield warning("gateway", "it is about to stop, and answers what it has begun", "wait for the next one")
    if refused is not None:
        yield warning("gateway", f"its admin port tells nothing: {refused}", "give the token that it was started with")
    if stats is None:
        return
    if stats.get("store_breaker", "closed") != "closed":
        yield fault("gateway", "it leaves its store alone after failures: all are misses", "see the store's findings")
    if not stats.get("index_ready", True):
        yield warning("gateway", "it still reads its index: not every question is found by similarity", "wait")
    for problem in stats.get("policy", {}).get("faults", ())[:MAX_FAULTS_SHOWN]:
        found = f"the last policy was refused, an older one is in force: {problem}"
        yield fault("gateway", found, "change that line: a saved file is read at once")
    for name, backend in stats.get("backends", {}).items():
        if backend.get("breaker", "closed") != "closed":
            found = f"it leaves the backend {name} alone after failures (breaker {backend['breaker']})"
            yield warning("gateway", found, "see the backends' findings; it asks again by itself")
    yield from _stalls(stats)
    yield ok("gateway", f"it runs, policy {stats.get('policy', {}).get('hash', 'unknown')}")


def _stalls(stats: Mapping[str, Any]) -> Iterator[Finding]:
    """More than one a minute since its start."""
    counts: Mapping[str, float] = stats.get("loop_stalls", {})
    total = sum(counts.values())
    if total <= max(1.0, (stats.get("now", 0.0) - stats.get("started", 0.0)) / 60):
        return
    most = max(counts, key=counts.__getitem__)
    longest = stats.get("loop", {}).get("longest") or {}
    at = f", the longest for {longest['ms']:g} ms" if longest else ""
    at += f" in {longest['where']}" if longest.get("where") else ""  # where not: nobody looked in time
    todo = {
        "starved": "give it a processor: other work, or a limit of its container, keeps it from one",
        "busy": "add gateways or server.workers: this one has more to compute than one processor does",
    }.get(most, "see docs/operations.md, NearhitLoopStalls: something blocks it")
    yield warning("gateway", f"its event loop stood still {total:.0f} times, most of them {most}{at}", todo)


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    """`ready` and `stats` are None where no gateway answers; `refused` where it does not tell us its figures."""

    ports: tuple[PortFacts, ...]
    ready: Mapping[str, Any] | None = None
    stats: Mapping[str, Any] | None = None
    refused: str | None = None

    @property
    def is_running(self) -> bool:
        return self.ready is not None or self.stats is not None or self.refused is not None


async def inspect_gateway(config: Config, token: str | None) -> GatewayFacts:
    """Who listens where the gateway would. `token`: of its admin port."""
    server = config.server
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as session:
        listen, admin = _try_bind(server.listen), _try_bind(server.admin)
        ready = await _readyz(session, server.listen) if listen == errno.EADDRINUSE else None
        stats, refused = await _stats(session, server.admin, token) if admin == errno.EADDRINUSE else (None, None)
    is_ours: Mapping[str, Any] | None = {} if stats is not None or refused is not None else None
    ports = [
        _port_facts("server.listen", server.listen, listen, ready),
        _port_facts("server.admin", server.admin, admin, is_ours),
    ]
    if server.grpc is not None:  # who listens there cannot be asked cheaply: it goes by its neighbour
        ports.append(_port_facts("server.grpc", server.grpc, _try_bind(server.grpc), ready))
    return GatewayFacts(tuple(ports), ready, stats, refused)


def _try_bind(address: Address) -> int | None:
    """Listens for a moment, as the gateway would -> None, or the number of the error."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except socket.gaierror:
            return errno.EADDRNOTAVAIL
        except OSError as error:
            return error.errno
    return None


def _port_facts(key: str, address: Address, error: int | None, answers: Mapping[str, Any] | None) -> PortFacts:
    in_use = error == errno.EADDRINUSE
    said = None if error is None else errno.errorcode.get(error, str(error))
    return PortFacts(key, address, said, in_use, answers if in_use else None)


async def _readyz(session: aiohttp.ClientSession, address: Address) -> Mapping[str, Any] | None:
    _, value, _ = await _get(session, f"{url_of(address)}/readyz", None)
    return value if value is not None and "ready" in value else None


async def _stats(
    session: aiohttp.ClientSession, address: Address, token: str | None
) -> tuple[Mapping[str, Any] | None, str | None]:
    """-> the figures, or why there are none from a nearhit; nothing at all from anybody else."""
    status, value, realm = await _get(session, f"{url_of(address)}/admin/stats", token)
    if status == 401 and ADMIN_REALM in realm:
        return None, "it wants another token than auth.admin_token_env holds here"
    if status == 200 and value is not None and "verdicts" in value:
        return value, None
    return None, None


async def _get(
    session: aiohttp.ClientSession, url: str, token: str | None
) -> tuple[int, Mapping[str, Any] | None, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            value = orjson.loads(await response.content.read(16 * 2**20))
            realm = response.headers.get("WWW-Authenticate", "")
            return response.status, value if isinstance(value, dict) else None, realm
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return 0, None, ""


@dataclass(frozen=True, slots=True)
class UpstreamFacts:
    """`why`: what stands in the way of asking it; None: it is ready. `suggested_url`: the base URL that is likely
    meant; None: nothing speaks against this one."""

    address: str
    why: str | None
    suggested_url: str | None = None


def backend(name: str, upstreams: Sequence[UpstreamFacts]) -> Iterator[Finding]:
    down = [one for one in upstreams if one.why is not None]
    # A backend with another address that answers goes on; without one its requests fail.
    level = fault if len(down) == len(upstreams) else warning
    for one in down:
        yield level(
            "backends", f"{name}: {one.address} {one.why}", f"start it, or put backends.{name} right in config.yaml"
        )
    for one in upstreams:
        if one.suggested_url is not None:
            found = f"{name}: {one.address} answers, and has no list of models (404); {one.suggested_url} has one"
            todo = f"put backends.{name} right in config.yaml, or what --upstream is given: {one.suggested_url}"
            yield warning("backends", found, todo)
    good = [one.address for one in upstreams if one.why is None and one.suggested_url is None]
    if good:
        yield ok("backends", f"{name}: {', '.join(good)} answers")


async def inspect_backends(config: Config, environ: Mapping[str, str]) -> list[Finding]:
    """Asks each address as the gateway's own health probe does, and where it is not ready, finds out why."""
    found: list[Finding] = []
    network = {}
    for name, section in config.backends.items():
        if isinstance(section, OnnxBackendConfig):
            found.append(
                ok("backends", f"{name}: runs in the gateway, its files are in {section.path}; not loaded here")
            )
        else:
            network[name] = section
    pools = build_pools(config.model_copy(update={"backends": network}), environ, SystemClock(), Telemetry())
    try:
        looked = [asyncio.gather(*map(_inspect_upstream, pool.endpoints)) for pool in pools.values()]
        for name, upstreams in zip(pools, await asyncio.gather(*looked), strict=True):
            found += backend(name, upstreams)
    finally:
        for pool in pools.values():
            await pool.close()
    return found


async def _inspect_upstream(endpoint: Upstream) -> UpstreamFacts:
    address = endpoint.upstream.address
    try:
        async with asyncio.timeout(TIMEOUT_S):
            ready = await endpoint.backend.ready()
    except TimeoutError:
        ready = False
    if not ready:
        return UpstreamFacts(address, await connection_failure(address))
    suggested_url = await suggested_base_url(address, TIMEOUT_S) if endpoint.upstream.provider == "openai" else None
    return UpstreamFacts(address, None, suggested_url)


async def suggested_base_url(url: str, limit_s: float) -> str | None:
    """The base URL that is likely meant: the same with /v1, where there is a list of models and none at `url`. None:
    nothing speaks against `url`, or it cannot be told within `limit_s`."""
    if ends_in_version(urlsplit(url).path):
        return None
    below = url + VERSIONED
    async with open_session(limit_s, 1) as session:
        try:
            async with asyncio.timeout(limit_s):
                if (
                    await _models_status(session, url) == NOT_FOUND
                    and await _models_status(session, below) in REACHABLE_STATUSES
                ):
                    return below
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
    return None


async def _models_status(session: aiohttp.ClientSession, url: str) -> int:
    """The status of the list of models."""
    async with session.get(URL(f"{url}/models", encoded=True), allow_redirects=False) as response:
        return response.status


async def connection_failure(url: str) -> str:
    """What stands in the way of a connection to `http(s)://` or `grpc(s)://`: the rest of a sentence about it."""
    parts = urlsplit(url)
    secure = parts.scheme in ("https", "grpcs")
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _try_connect(host, port, ssl.create_default_context() if secure else None)
    except socket.gaierror:
        return f"cannot be found: the name {host} is not known to DNS"
    except ssl.SSLCertVerificationError as error:
        return f"shows a certificate that is not accepted: {error.verify_message}"
    except ssl.SSLError as error:
        return f"does not complete TLS: {error.reason or 'no reason is given'}"
    except ConnectionRefusedError:
        return "refuses connections: nothing listens there"
    except TimeoutError:
        return f"completes no connection within {TIMEOUT_S:g} s"
    except OSError as error:
        return f"cannot be reached: {error.strerror or type(error).__name__}"
    if parts.scheme.startswith("grpc"):
        return "takes connections, and the model is not ready there"
    return "takes connections, and answers with a server error or too late"


async def _try_connect(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Raises what the last of its addresses raised, where none of them can be reached."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(one[4][0]) for one in found))[:MAX_ADDRESSES]
    name = None if context is None else host
    for last, address in zip([*[False] * (len(addresses) - 1), True], addresses, strict=True):
        try:
            _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
        except OSError:
            if last:
                raise
            continue
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return
