"""The section `store`: where answers are kept, and how much of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.config.fields import EnvironmentName, File, StoreUrl, Text
from gateway.config.store_url import StoreKind, StoreTarget, parse_store_url
from gateway.config.units import PositiveDuration, Size
from gateway.config.validation import Problem, Section

SERVER_ONLY_KEYS = ("username", "password_env", "sentinel_password_env", "tls")

TLS_EXPECTED = "expected rediss://, redis+sentinel:// or redis+cluster:// in store.url"


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


class StoreConfig(Section):
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
    def target(self) -> StoreTarget:
        return parse_store_url(self.url)

    @classmethod
    def problems(cls, given: Mapping[str, Any]) -> Iterator[Problem]:
        try:
            target = parse_store_url(given.get("url", "embedded"))
        except ValueError:
            return  # the field itself reports it
        named = [key for key in SERVER_ONLY_KEYS if given.get(key) is not None]
        if target.kind is StoreKind.EMBEDDED:
            for key in named:
                yield Problem(key, "is for an outside store, expected its address in store.url")
            return
        if "tls" in named and target.scheme == "redis":
            yield Problem("tls", f"is not for redis://, {TLS_EXPECTED}")
        if "sentinel_password_env" in named and target.kind is not StoreKind.SENTINEL:
            yield Problem("sentinel_password_env", "is for sentinels, expected redis+sentinel:// in store.url")
        for key, said in (("username", target.username), ("password_env", target.password)):
            if key in named and said is not None:
                yield Problem(key, "is in store.url already, expected it in one place")
        if "username" in named and "password_env" not in named:
            yield Problem("username", "has no password, expected password_env beside it")
