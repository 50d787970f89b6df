"""Where answers are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field

from gateway.config.errors import show
from gateway.config.fields import EnvironmentName, File, StoreUrl, Text
from gateway.config.units import PositiveDuration, Size
from gateway.config.validation import Problem, Section

# What `store.url` names: one server, those that sentinels watch over, or a cluster.
EXPECTED = (
    "expected embedded, redis://HOST:PORT, rediss://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
    "redis+cluster://HOST:PORT,HOST:PORT"
)

SENTINEL_PORT, SERVER_PORT = 26379, 6379


class Kind(Enum):
    EMBEDDED = "embedded"
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


SCHEMES = {
    "redis": Kind.SERVER,
    "rediss": Kind.SERVER,
    "redis+sentinel": Kind.SENTINEL,
    "redis+cluster": Kind.CLUSTER,
}


@dataclass(frozen=True, slots=True)
class Target:
    """`addresses`: of the server, of the sentinels, or of some nodes of the cluster. `service`: what the sentinels call
    the servers that they watch over."""

    kind: Kind
    scheme: str = ""
    addresses: tuple[tuple[str, int], ...] = ()
    username: str | None = None
    password: str | None = None
    service: str = ""
    database: int = 0

    @property
    def where(self) -> str:
        """Without credentials."""
        if self.kind is Kind.EMBEDDED:
            return "embedded"
        tail = f"/{self.service}" if self.service else ""
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.addresses)}{tail}"


def target_of(value: object) -> Target:
    """Raises `ValueError` with the whole sentence. A URL may hold a password, so no sentence repeats it."""
    if value == "embedded":
        return Target(Kind.EMBEDDED)
    if not isinstance(value, str):
        raise ValueError(f"{EXPECTED}, got {show(value)}")
    # urlsplit drops line breaks silently: what was checked would not be what is used.
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"{EXPECTED}, got something else")
    try:
        return _target(urlsplit(value))
    except _Unsaid:
        raise ValueError(f"{EXPECTED}, got something else") from None


class _Unsaid(ValueError):
    """It is no such URL."""


def _target(url: SplitResult) -> Target:
    kind = SCHEMES.get(url.scheme)
    if kind is None:
        raise _Unsaid
    credentials, _, hosts = url.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    default = SENTINEL_PORT if kind is Kind.SENTINEL else SERVER_PORT
    addresses = tuple(_address(written, default) for written in hosts.split(","))
    if kind is Kind.SERVER and len(addresses) > 1:
        raise ValueError("names several servers, expected one, or redis+cluster:// or redis+sentinel:// before them")
    service, database = _path(kind, url)
    said = (unquote(username) or None, unquote(password) or None)
    return Target(kind, url.scheme, addresses, *said, service, database)


def _path(kind: Kind, url: SplitResult) -> tuple[str, int]:
    parts = [unquote(part) for part in url.path.strip("/").split("/") if part]
    if kind is Kind.SERVER:  # the client reads it, with what follows it
        return "", 0
    if url.query or url.fragment:
        raise ValueError(f"{url.scheme}:// takes no parameters, expected keys beside store.url")
    if kind is Kind.CLUSTER:
        if parts not in ([], ["0"]):
            raise ValueError("a cluster has one database, expected nothing after the addresses")
        return "", 0
    if not parts or len(parts) > 2 or not (parts[1:] or ["0"])[0].isdigit():
        raise ValueError("expected the name that the sentinels watch after their addresses, such as /mymaster")
    return parts[0], int((parts[1:] or ["0"])[0])


def _address(written: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{written}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port out of range, an unclosed bracket
        raise _Unsaid from None
    if not host or port == 0:
        raise _Unsaid
    return host, port or default


# Where answers are kept.
OUTSIDE = ("username", "password_env", "sentinel_password_env", "tls")

SECURED = "expected rediss://, redis+sentinel:// or redis+cluster:// in store.url"


class StoreTls(Section):
    """How the store's servers are spoken to. Nothing in it: TLS with the certificates that the machine trusts."""

    ca: File | None = None  # PEM: whom to trust; None: what the machine does
    certificate: File | None = None  # PEM: shown to servers that ask for one
    key: File | None = None  # PEM, without a password

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        for key, other in (("certificate", "key"), ("key", "certificate")):
            if given.get(key) is not None and given.get(other) is None:
                yield Problem(key, f"is of no use alone, expected {other} beside it")


class Store(Section):
    """Where answers are kept."""

    url: StoreUrl = "embedded"
    username: Text | None = None  # of the servers' access list; None: its default user
    password_env: EnvironmentName | None = None
    sentinel_password_env: EnvironmentName | None = None  # where the sentinels want one, too
    tls: StoreTls | None = None
    timeout: PositiveDuration = 0.25
    front_size: Size = 64 * 2**20  # answers kept in process, in front of the store
    max_entry: Size = 2**20  # a larger answer is not stored
    max_entries: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000
    max_bytes: Size | None = None  # of records and vectors; None: three quarters of the embedded server's memory
    max_changes: Annotated[int, Field(ge=1_000, le=100_000_000)] = 200_000  # kept for gateways that lag behind
    max_memory: Size = 2**30  # of the embedded server: beyond it the least recently used entries make room

    @property
    def target(self) -> Target:
        return target_of(self.url)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        try:
            target = target_of(given.get("url", "embedded"))
        except ValueError:
            return  # the field itself reports it
        named = [key for key in OUTSIDE if given.get(key) is not None]
        if target.kind is Kind.EMBEDDED:
            for key in named:
                yield Problem(key, "is for an outside store, expected its address in store.url")
            return
        if "tls" in named and target.scheme == "redis":
            yield Problem("tls", f"is not for redis://, {SECURED}")
        if "sentinel_password_env" in named and target.kind is not Kind.SENTINEL:
            yield Problem("sentinel_password_env", "is for sentinels, expected redis+sentinel:// in store.url")
        for key, said in (("username", target.username), ("password_env", target.password)):
            if key in named and said is not None:
                yield Problem(key, "is in store.url already, expected it in one place")
        if "username" in named and "password_env" not in named:
            yield Problem("username", "has no password, expected password_env beside it")
