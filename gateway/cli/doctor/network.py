"""Checks of the network: the gateway's ports, a running gateway, and the connections to its backends."""

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
from gateway.config import Config
from gateway.config.units import Address
from gateway.dialects.known import VERSIONED, endpoint_of
from gateway.errors import BackendError
from gateway.observability.telemetry import Telemetry
from gateway.upstream.aiohttp_session import open_session
from gateway.upstream.base_url import ends_in_version
from gateway.upstream.factory import build_pools
from gateway.upstream.upstream import Upstream

TIMEOUT_S = 5.0
CREDENTIALS_S = 12.0  # for a backend whose credentials a command or a cloud gives
MAX_ADDRESSES = 4  # to try for one name
ADMIN_REALM = "nearhit admin"
MANY_TENANTS = 20  # of one key
MOST_ALIKE = 0.2  # share of one text among a route's answers
REACHABLE_STATUSES = (200, 401, 403)  # the check sends no credentials, and an API may require them
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class PortFacts:
    """Facts on a port. `error` tells why a gateway cannot listen there, or is None if the port is free.

    `answers` is the report of a nearhit that answers there, or None if no nearhit answers.
    """

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
        return fault("ports", f"{where}: in use by another program than nearhit", todo)
    if facts.error is not None:
        return fault("ports", f"{where}: the gateway cannot listen there: {facts.error}", f"change {facts.key}")
    free = "the system chooses a port" if facts.address.port == 0 else "free, no gateway runs there"
    return ok("ports", f"{where}: {free}")


def running(ready: Mapping[str, Any] | None, stats: Mapping[str, Any] | None, refused: str | None) -> Iterator[Finding]:
    """Check a running gateway. `ready` is its /readyz, `stats` its /admin/stats. `refused` tells why it sent no
    stats."""
    if ready is not None and ready.get("draining"):
        yield warning("gateway", "it is stopping, and finishes the requests in flight", "wait until a new one runs")
    if refused is not None:
        yield warning(
            "gateway", f"its admin port refused access: {refused}", "set the token that the gateway was started with"
        )
    if stats is None:
        return
    if stats.get("store_breaker", "closed") != "closed":
        yield fault(
            "gateway",
            "the circuit breaker of its store is not closed: requests are misses",
            "see the findings on the store",
        )
    if not stats.get("index_ready", True):
        yield warning("gateway", "its index is still loading: similar questions may be missed", "wait")
    for problem in stats.get("policy", {}).get("faults", ())[:MAX_FAULTS_SHOWN]:
        found = f"the last policy was rejected, and the one before is in force: {problem}"
        yield fault("gateway", found, "change that line: the gateway reads a saved file at once")
    for name, backend in stats.get("backends", {}).items():
        if backend.get("breaker", "closed") != "closed":
            found = f"the circuit breaker of the backend {name} is not closed ({backend['breaker']})"
            yield warning("gateway", found, "see the findings on backends; the gateway retries by itself")
    for other in stats.get("other_embedders", ()):
        found = f"its embedder is {stats.get('embedder', 'unknown')}, but another gateway on its store has {other}"
        todo = "give all gateways of a store the same embedder: else they share hits for equal questions only"
        yield warning("gateway", found, todo)
    yield from _tenants(stats)
    yield from _answers(stats)
    yield from _stalls(stats)
    yield ok("gateway", f"it runs, policy {stats.get('policy', {}).get('hash', 'unknown')}")


def _tenants(stats: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of a key that counts as many tenants, which share no answers and have a limit each."""
    report = stats.get("tenants_of_a_key") or {}
    tenants, headers = report.get("tenants", 1), ", ".join(report.get("headers", ()))
    if tenants >= MANY_TENANTS:
        yield warning(
            "gateway",
            f"one key counts as {tenants} tenants or more, which share no answers: its requests differ in {headers}",
            "if they are of one client, name the header that changes in auth.credential_headers, with a ! before it",
        )


def _answers(stats: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of routes whose answers say little about the questions."""
    for route in stats.get("quality", ()):
        if (share := route.get("answer_share", 0.0)) > MOST_ALIKE:
            yield warning(
                "gateway",
                f"one text is {share:.0%} of the answers of the route {route['route']}, so equal answers say little "
                "about the questions, and its semantic cache learns little",
                "see whether the backend answers with an error text; before a classifier this is usual "
                "(docs/concepts.md, Short answers)",
            )


def _stalls(stats: Mapping[str, Any]) -> Iterator[Finding]:
    """Warn of more than one stall per minute since the start."""
    counts: Mapping[str, float] = stats.get("loop_stalls", {})
    total = sum(counts.values())
    if total <= max(1.0, (stats.get("now", 0.0) - stats.get("started", 0.0)) / 60):
        return
    most = max(counts, key=counts.__getitem__)
    longest = stats.get("loop", {}).get("longest") or {}
    at = f", the longest for {longest['ms']:g} ms" if longest else ""
    at += f" in {longest['where']}" if longest.get("where") else ""  # without a place, no sample was taken in time
    todo = {
        "starved": "give it more CPU: other processes or a container limit take its processor",
        "busy": "add gateways or server.workers: this one needs more than one processor",
    }.get(most, "see docs/operations.md, NearhitLoopStalls: a call blocks the event loop")
    yield warning("gateway", f"its event loop stalled {total:.0f} times, mostly {most}{at}", todo)


@dataclass(frozen=True, slots=True)
class GatewayFacts:
    """Facts on a running gateway.

    `ready` and `stats` are None if no gateway answers. `refused` tells why it sent no stats.
    """

    ports: tuple[PortFacts, ...]
    ready: Mapping[str, Any] | None = None
    stats: Mapping[str, Any] | None = None
    refused: str | None = None

    @property
    def is_running(self) -> bool:
        return self.ready is not None or self.stats is not None or self.refused is not None


async def inspect_gateway(config: Config, token: str | None) -> GatewayFacts:
    """Find out what listens on the gateway's ports. `token` is that of the admin port."""
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
    if server.grpc is not None:  # a gRPC probe is expensive, so that the answer of the data port counts
        ports.append(_port_facts("server.grpc", server.grpc, _try_bind(server.grpc), ready))
    return GatewayFacts(tuple(ports), ready, stats, refused)


def _try_bind(address: Address) -> int | None:
    """Bind the address for a moment, as the gateway would. Return the errno, or None on success."""
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
    """Return the stats, or the reason why a nearhit refused them; (None, None) if no nearhit answers."""
    status, value, realm = await _get(session, f"{url_of(address)}/admin/stats", token)
    if status == 401 and ADMIN_REALM in realm:
        return None, "the token in the variable of auth.admin_token_env differs from its token"
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
    """Facts on an upstream. `why` is the reason why it is not ready, or None if it is ready.

    `suggested_url` is the base URL that is probably meant, or None if this one seems correct.
    """

    address: str
    why: str | None
    suggested_url: str | None = None


def backend(name: str, upstreams: Sequence[UpstreamFacts], credentials: str = "") -> Iterator[Finding]:
    """Report on a backend. `credentials` is the key that gives the gateway its own; without them it is called, too."""
    down = [one for one in upstreams if one.why is not None]
    # While another address of the backend answers, requests succeed: that is only a warning.
    level = fault if len(down) == len(upstreams) else warning
    for one in down:
        yield level(
            "backends",
            f"{name}: {one.address} {one.why}",
            f"start it, or correct backends.{name} in config.yaml, or the URL of --upstream",
        )
    for one in upstreams:
        if one.suggested_url is not None:
            found = f"{name}: {one.address} answers, but has no list of models (404); {one.suggested_url} has one"
            todo = f"correct backends.{name} in config.yaml, or the URL of --upstream: {one.suggested_url}"
            yield warning("backends", found, todo)
    good = [one.address for one in upstreams if one.why is None and one.suggested_url is None]
    if good:
        of_key = f", and {credentials} gives credentials" if credentials else ""
        yield ok("backends", f"{name}: {', '.join(good)} answers{of_key}")


async def inspect_backends(config: Config, environ: Mapping[str, str]) -> list[Finding]:
    """Probe each address as the gateway's health probe does; if it is not ready, find out why."""
    found: list[Finding] = []
    network = {}
    for name, section in config.backends.items():
        if section.unchecked:
            found.append(ok("backends", f"{name}: {section.unchecked}"))
        else:
            network[name] = section
    pools = build_pools(config.model_copy(update={"backends": network}), environ, SystemClock(), Telemetry())
    try:
        keys = {name: section.credentials for name, section in network.items()}
        looked = [
            asyncio.gather(*(_inspect_upstream(each, keys[name]) for each in pool.endpoints))
            for name, pool in pools.items()
        ]
        for name, upstreams in zip(pools, await asyncio.gather(*looked), strict=True):
            found += backend(name, upstreams, keys[name])
    finally:
        for pool in pools.values():
            await pool.close()
    return found


async def _inspect_upstream(endpoint: Upstream, credentials: str) -> UpstreamFacts:
    address = endpoint.upstream.address
    try:
        async with asyncio.timeout(CREDENTIALS_S if credentials else TIMEOUT_S):
            ready = await endpoint.backend.ready()
    except TimeoutError:
        ready = False
    except BackendError as error:
        return UpstreamFacts(address, f"is not called: {error}")
    if not ready:
        return UpstreamFacts(address, await connection_failure(address))
    suggested_url = await suggested_base_url(address, TIMEOUT_S) if _is_versioned(endpoint.upstream.provider) else None
    return UpstreamFacts(address, None, suggested_url)


def _is_versioned(provider: str) -> bool:
    endpoint = endpoint_of(provider)
    return endpoint is not None and endpoint.is_versioned


async def suggested_base_url(url: str, limit_s: float) -> str | None:
    """Return `url` with /v1, if only that address has a list of models; it is then probably meant.

    Return None if `url` seems correct, or if the answer takes more than `limit_s` seconds.
    """
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
    """Return the HTTP status of the list of models."""
    async with session.get(URL(f"{url}/models", encoded=True), allow_redirects=False) as response:
        return response.status


async def connection_failure(url: str) -> str:
    """Return why a connection to an `http(s)://` or `grpc(s)://` URL fails, as the predicate of a sentence."""
    parts = urlsplit(url)
    secure = parts.scheme in ("https", "grpcs")
    host, port = parts.hostname or "", parts.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await _try_connect(host, port, ssl.create_default_context() if secure else None)
    except socket.gaierror:
        return f"cannot be found: the name {host} is unknown to DNS"
    except ssl.SSLCertVerificationError as error:
        return f"sends a certificate that is not accepted: {error.verify_message}"
    except ssl.SSLError as error:
        return f"does not complete the TLS handshake: {error.reason or 'no reason given'}"
    except ConnectionRefusedError:
        return "refuses connections: nothing listens there"
    except TimeoutError:
        return f"accepts no connection within {TIMEOUT_S:g} s"
    except OSError as error:
        return f"cannot be reached: {error.strerror or type(error).__name__}"
    if parts.scheme.startswith("grpc"):
        return "accepts connections, but the model is not ready there"
    return "accepts connections, but answers with a server error or too late"


async def _try_connect(host: str, port: int, context: ssl.SSLContext | None) -> None:
    """Try the addresses of a host. If none of them is reachable, raise the error of the last one."""
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
