"""The parts of `store.url`, which names one server, the servers that sentinels watch, or a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from urllib.parse import SplitResult, unquote, urlsplit

from gateway.config.errors import format_value

EXPECTED = (
    "expected embedded, redis://HOST:PORT, rediss://HOST:PORT, redis+sentinel://HOST:PORT,HOST:PORT/NAME or "
    "redis+cluster://HOST:PORT,HOST:PORT"
)


class StoreKind(Enum):
    """The kinds of store."""

    EMBEDDED = "embedded"
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


SCHEMES = {
    "redis": StoreKind.SERVER,
    "rediss": StoreKind.SERVER,
    "redis+sentinel": StoreKind.SENTINEL,
    "redis+cluster": StoreKind.CLUSTER,
}


@dataclass(frozen=True, slots=True)
class StoreTarget:
    """The parts of a store's URL.

    `addresses` are those of the server, of the sentinels, or of some nodes of the cluster. `service` is the name of the
    servers that the sentinels watch.
    """

    kind: StoreKind
    scheme: str = ""
    addresses: tuple[tuple[str, int], ...] = ()
    username: str | None = None
    password: str | None = None
    service: str = ""
    database: int = 0

    @property
    def where(self) -> str:
        """The URL without credentials."""
        if self.kind is StoreKind.EMBEDDED:
            return "embedded"
        tail = f"/{self.service}" if self.service else ""
        return f"{self.scheme}://{','.join(f'{host}:{port}' for host, port in self.addresses)}{tail}"


def parse_store_url(value: object) -> StoreTarget:
    """Parse `store.url`. Raise `ValueError` with a sentence that does not repeat the URL: it may have a password."""
    if value == "embedded":
        return StoreTarget(StoreKind.EMBEDDED)
    if not isinstance(value, str):
        raise ValueError(f"{EXPECTED}, got {format_value(value)}")
    # urlsplit drops line breaks silently, so the checked URL would differ from the one in use.
    if not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"{EXPECTED}, got something else")
    try:
        return _parse_target(urlsplit(value))
    except _FormMismatch:
        raise ValueError(f"{EXPECTED}, got something else") from None


class _FormMismatch(ValueError):
    """The text is not a URL of this form."""


def _parse_target(url: SplitResult) -> StoreTarget:
    kind = SCHEMES.get(url.scheme)
    if kind is None:
        raise _FormMismatch
    credentials, _, hosts = url.netloc.rpartition("@")
    username, _, password = credentials.partition(":")
    default = SENTINEL_PORT if kind is StoreKind.SENTINEL else SERVER_PORT
    addresses = tuple(_parse_address(address_text, default) for address_text in hosts.split(","))
    if kind is StoreKind.SERVER and len(addresses) > 1:
        raise ValueError("has several servers, expected one, or redis+cluster:// or redis+sentinel:// in front of them")
    service, database = _parse_path(kind, url)
    login = (unquote(username) or None, unquote(password) or None)
    return StoreTarget(kind, url.scheme, addresses, *login, service, database)


def _parse_path(kind: StoreKind, url: SplitResult) -> tuple[str, int]:
    parts = [unquote(part) for part in url.path.strip("/").split("/") if part]
    if kind is StoreKind.SERVER:  # the client library reads path and parameters itself
        return "", 0
    if url.query or url.fragment:
        raise ValueError(f"{url.scheme}:// takes no parameters, expected other keys of the section store")
    if kind is StoreKind.CLUSTER:
        if parts not in ([], ["0"]):
            raise ValueError("a cluster has one database, expected nothing after the addresses")
        return "", 0
    if not parts or len(parts) > 2 or not (parts[1:] or ["0"])[0].isdigit():
        raise ValueError(
            "expected the name of the watched servers after the addresses of the sentinels, such as /mymaster"
        )
    return parts[0], int((parts[1:] or ["0"])[0])


def _parse_address(address_text: str, default: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{address_text}")
        host, port = parts.hostname, parts.port
    except ValueError:  # a port out of range, an unclosed bracket
        raise _FormMismatch from None
    if not host or port == 0:
        raise _FormMismatch
    return host, port or default


SENTINEL_PORT, SERVER_PORT = 26379, 6379
