"""The client of the admin port, and the addresses of a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Any, TypeVar

import aiohttp
import orjson

from gateway.cli.output import CommandFailed, print_result
from gateway.config.environment import read_secret
from gateway.config.load import load_config
from gateway.config.policy.single_backend import upstream_config
from gateway.config.units import Address

T = TypeVar("T")
CONNECT_S = 5.0
ANY_ENDPOINT = "http://127.0.0.1"  # stands for the URL of `--upstream`, which no command here calls
POLL_S = 0.1  # between two attempts to reach a gateway that is still starting
# A purge scans the whole store before it answers: a million entries take minutes.
TIMEOUT_S = 900.0
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, never bound


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """URLs of a gateway's ports, without a trailing slash.

    `wait_s` are the seconds to wait for the gateway to listen.
    """

    admin: str
    data: str
    token: str | None
    wait_s: float = 0.0


def admin_address(arguments: argparse.Namespace) -> AdminAddress:
    """Return the addresses in the configuration; without a file, those of `nearhit serve --upstream`.

    --admin and --token-env override the file. Raises `ConfigInvalid` or `StartupError`.
    """
    if arguments.config.exists():
        settings = load_config(arguments.config, os.environ)
    else:  # settings of the environment apply to `nearhit serve --upstream`, and so do they here
        settings, _ = upstream_config(ANY_ENDPOINT, os.environ)
    ports, data = settings.server.admin, settings.server.listen
    variable = arguments.token_env or settings.auth.admin_token_env
    token = read_secret(os.environ, variable, "--token-env" if arguments.token_env else "auth.admin_token_env")
    admin = (arguments.admin or url_of(ports)).rstrip("/")
    return AdminAddress(admin, url_of(data), token, getattr(arguments, "wait", 0.0))


def url_of(address: Address) -> str:
    """Return the URL of a port on this machine; loopback replaces a wildcard address."""
    return f"http://{Address(WILDCARD_HOSTS.get(address.host, address.host), address.port)}"


class AdminClient:
    """A client of the admin port. Every request raises `CommandFailed` if it fails."""

    def __init__(self, address: AdminAddress, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._session = session
        self._headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}

    async def wait_until_ready(self) -> None:
        """Return when the gateway answers, or after `AdminAddress.wait_s`; the next request then reports failure."""
        with suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(self._address.wait_s):
                while True:
                    if await self._is_ready():
                        return
                    await asyncio.sleep(POLL_S)

    async def _is_ready(self) -> bool:
        try:
            async with self._session.get(self._address.admin):
                return True
        except aiohttp.ClientConnectorError:
            return False

    async def get(self, path: str) -> dict[str, Any]:
        async with self._request("GET", path) as response:
            return await _read_object(response, self._address.admin)

    async def post(self, path: str, body: Any) -> dict[str, Any]:
        """Send `body`, an object or an async iterator of bytes; return the object of the response."""
        data = body if isinstance(body, AsyncIterator) else orjson.dumps(body)
        async with self._request("POST", path, data=data) as response:
            return await _read_object(response, self._address.admin)

    async def submit(self, path: str, content: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Send `content` unchanged; return the status and the object, whatever the status is."""
        async with self._request("POST", path, data=BytesIO(content), extra_headers=headers) as response:
            return response.status, await _read_json(response, self._address.admin)

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """Yield the chunks of a streamed response. Raises `CommandFailed` if the stream breaks."""
        async with self._request("GET", path) as response:
            if response.status != 200:
                await _read_object(response, self._address.admin)
            async for chunk in response.content.iter_chunked(2**16):
                yield chunk

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, extra_headers: Mapping[str, str] | None = None, **given: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        admin = self._address.admin
        headers = {**self._headers, **(extra_headers or {})}
        try:
            async with self._session.request(method, admin + path, headers=headers, **given) as response:
                yield response
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise CommandFailed(f"--admin {admin} is not a URL: expected one such as http://127.0.0.1:9090") from None
        except aiohttp.ClientConnectorError:
            raise CommandFailed(
                f"no gateway answers at {admin}: start one with its admin port there, or name another one with --admin"
            ) from None
        except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
            raise CommandFailed(f"the connection to the gateway at {admin} failed: {error or 'timeout'}") from None


@asynccontextmanager
async def connect(address: AdminAddress) -> AsyncIterator[AdminClient]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        client = AdminClient(address, session)
        if address.wait_s:
            await client.wait_until_ready()
        yield client


def call_gateway(arguments: argparse.Namespace, call: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    """Run `call` with a client of the gateway that the arguments name, and return its result.

    Raises the errors of `call` and of `admin_address`.
    """

    async def work() -> T:
        async with connect(admin_address(arguments)) as admin:
            return await call(admin)

    return asyncio.run(work())


def print_response(
    arguments: argparse.Namespace,
    call: Callable[[AdminClient], Coroutine[Any, Any, dict[str, Any]]],
    text: Callable[[dict[str, Any]], str],
) -> int:
    """Print the gateway's response as JSON, or as the text that `text` makes of it."""
    said = call_gateway(arguments, call)
    return print_result(arguments, said, text(said))


async def _read_json(response: aiohttp.ClientResponse, admin: str) -> dict[str, Any]:
    try:
        value = orjson.loads(await response.read())
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise CommandFailed(
            f"{admin} answered with status {response.status} and without a JSON object: is it an admin port?"
        )
    if not isinstance(value.get("error", ""), str):  # an object is an error of the data port or its backend
        raise CommandFailed(
            f"{admin} answered with status {response.status} in the format of a model endpoint: expected the admin "
            "port (server.admin), not the data port"
        )
    if response.status == 401:
        raise CommandFailed(
            f"{admin} rejected the token ({value.get('error', 'no reason given')}): expected a valid one in the "
            "variable that auth.admin_token_env or --token-env names"
        )
    return value


async def _read_object(response: aiohttp.ClientResponse, admin: str) -> dict[str, Any]:
    value = await _read_json(response, admin)
    if response.status != 200:
        done = {key: item for key, item in value.items() if key in ("matched", "removed", "imported", "refused")}
        had = f" (done so far: {', '.join(f'{item} {key}' for key, item in done.items())})" if done else ""
        raise CommandFailed(f"{value.get('error', 'no reason given')}{had}")
    return value
