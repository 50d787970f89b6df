"""Where a gateway that runs is, and how a command asks its admin port."""

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

from gateway.cli.output import print_result
from gateway.config.environment import read_secret
from gateway.config.load import load_config
from gateway.config.policy.single_backend import upstream_config
from gateway.config.units import Address
from gateway.errors import GatewayError

T = TypeVar("T")
CONNECT_S = 5.0
ANY_ENDPOINT = "http://127.0.0.1"  # stands for the URL of `--upstream`, which no command here calls
POLL_S = 0.1  # two looks for a gateway that is still starting
# A removal looks through the whole store before it answers: a million entries take minutes.
TIMEOUT_S = 900.0
WILDCARD_HOSTS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to


class CommandFailed(GatewayError):
    """One sentence for the operator."""


class WrongUsage(CommandFailed):
    """What was given does not go together, which the parser cannot see: exit code 2."""


@dataclass(frozen=True, slots=True)
class AdminAddress:
    """Where a gateway's ports are, as URLs without a slash at their end. `wait_s`: how long one may take to listen."""

    admin: str
    data: str
    token: str | None
    wait_s: float = 0.0


def admin_address(arguments: argparse.Namespace) -> AdminAddress:
    """From the configuration; without one, where `nearhit serve --upstream` listens. --admin and --token-env go before
    what it says. Raises `ConfigInvalid` or `StartupError`."""
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
    """Of a port on this machine, by an address that it can be reached at."""
    return f"http://{Address(WILDCARD_HOSTS.get(address.host, address.host), address.port)}"


class AdminClient:
    """Every method raises `CommandFailed`."""

    def __init__(self, address: AdminAddress, session: aiohttp.ClientSession) -> None:
        self._address = address
        self._session = session
        self._headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}

    async def wait_until_ready(self) -> None:
        """Returns when somebody answers there, or has not for `AdminAddress.wait_s`: who asks next says so."""
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
        """`body`: an object, or an iterator of bytes."""
        data = body if isinstance(body, AsyncIterator) else orjson.dumps(body)
        async with self._request("POST", path, data=data) as response:
            return await _read_object(response, self._address.admin)

    async def submit(self, path: str, content: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        """Bytes as they are -> the status and the object, whatever the status."""
        async with self._request("POST", path, data=BytesIO(content), extra_headers=headers) as response:
            return response.status, await _read_json(response, self._address.admin)

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        """The pieces of an answer that is a stream. One that breaks raises like any other failure."""
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
            raise CommandFailed(f"--admin {admin} is no URL: expected one such as http://127.0.0.1:9090") from None
        except aiohttp.ClientConnectorError:
            raise CommandFailed(
                f"no gateway answers at {admin}: expected one that runs with its admin port there, or another --admin"
            ) from None
        except (TimeoutError, aiohttp.ClientError, ConnectionError) as error:
            raise CommandFailed(f"the gateway at {admin} broke off: {error or 'it takes too long'}") from None


@asynccontextmanager
async def connect(address: AdminAddress) -> AsyncIterator[AdminClient]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        client = AdminClient(address, session)
        if address.wait_s:
            await client.wait_until_ready()
        yield client


def call_gateway(arguments: argparse.Namespace, call: Callable[[AdminClient], Coroutine[Any, Any, T]]) -> T:
    """What `call` makes of the gateway that the arguments name. Raises what it and `admin_address` raise."""

    async def work() -> T:
        async with connect(admin_address(arguments)) as admin:
            return await call(admin)

    return asyncio.run(work())


def print_response(
    arguments: argparse.Namespace,
    call: Callable[[AdminClient], Coroutine[Any, Any, dict[str, Any]]],
    text: Callable[[dict[str, Any]], str],
) -> int:
    """Prints what the gateway says, as JSON or as `text` has it."""
    said = call_gateway(arguments, call)
    return print_result(arguments, said, text(said))


async def _read_json(response: aiohttp.ClientResponse, admin: str) -> dict[str, Any]:
    try:
        value = orjson.loads(await response.read())
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise CommandFailed(f"{admin} answers with status {response.status} and no JSON object: is that an admin port?")
    if not isinstance(value.get("error", ""), str):  # an object: a dialect's error, of the data port or its backend
        raise CommandFailed(
            f"{admin} answers with status {response.status} as a model's endpoint does: expected the admin port "
            "(server.admin), not the data port"
        )
    if response.status == 401:
        raise CommandFailed(
            f"{admin} wants another token ({value.get('error', 'no reason is given')}): expected it in the variable of "
            "auth.admin_token_env or --token-env"
        )
    return value


async def _read_object(response: aiohttp.ClientResponse, admin: str) -> dict[str, Any]:
    value = await _read_json(response, admin)
    if response.status != 200:
        done = {key: item for key, item in value.items() if key in ("matched", "removed", "imported", "refused")}
        had = f" (done so far: {', '.join(f'{item} {key}' for key, item in done.items())})" if done else ""
        raise CommandFailed(f"{value.get('error', 'no reason is given')}{had}")
    return value
