"""The section `store` of `config.yaml`: where entries are kept, and how many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field

from gateway.config.fields import EnvironmentName, File, StoreUrl, Text, TlsFiles
from gateway.config.store_url import StoreKind, StoreTarget, parse_store_url
from gateway.config.units import PositiveDuration, Size, Switch
from gateway.config.validation import NOT_EMPTY, Problem, Section

SERVER_ONLY_KEYS = ("username", "password_env", "sentinel_password_env", "tls")

TLS_EXPECTED = "expected rediss://, redis+sentinel:// or redis+cluster:// in store.url"


class StoreTls(TlsFiles):
    """TLS to the store's servers. An empty section uses the authorities that the machine trusts."""

    certificate: File | None = None
    """PEM file with the client certificate, for servers that ask for one. Read at start."""
    key: File | None = None
    """PEM file with the private key of `certificate`, without a password. Read at start."""


class EncryptionKey(Section):
    """A secret of at least 32 random characters, such as from `openssl rand -base64 32`. Expected: one of the two."""

    env: EnvironmentName | None = None
    """The variable with the secret."""
    file: File | None = None
    """The file with the secret. Read at start."""

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        if (settings.get("env") is None) == (settings.get("file") is None):
            yield Problem(None, "expected either env, the name of a variable, or file, a path")


class StoreEncryption(Section):
    """Encryption of stored questions and answers with AES-256-GCM. Vectors stay plain."""

    keys: Annotated[
        tuple[EncryptionKey, ...], Field(strict=False, max_length=16, examples=["[{env: STORE_KEY}]"]), NOT_EMPTY
    ]
    """The keys. The first one writes, all of them read. After a change run `nearhit cache rekey`."""
    read_plain: Switch = True
    """`on`: plain records are read, too, until `nearhit cache rekey` has encrypted them. `off`: they are misses."""


class StoreConfig(Section):
    """The store that keeps the entries."""

    url: StoreUrl = "embedded"
    """`embedded`, or the address of an outside store that several gateways share."""
    username: Text | None = None
    """The user in the servers' access list (ACL). Without it, the default user."""
    password_env: EnvironmentName | None = None
    """The variable with that user's password."""
    sentinel_password_env: EnvironmentName | None = None
    """The variable with the password of the sentinels, if they need one."""
    tls: StoreTls | None = None
    """TLS to the servers, as `{ca: ..., certificate: ..., key: ...}` or `{}`. With sentinels or a cluster it covers all
    of their nodes."""
    encryption: StoreEncryption | None = None
    """Encryption of the entries, as `{keys: [{env: STORE_KEY}]}`. Without it their questions and answers are plain."""
    erasure_key_env: EnvironmentName | None = None
    """The variable with the secret of `nearhit cache erase`. It makes the digests of users and keys in entries, and it
    signs the reports. Without it, a gateway with an embedded store makes one in `data_dir/erasure.key`. On a shared
    store entries then name nobody, and an erasure is refused."""
    timeout: PositiveDuration = 0.25
    """The time of one operation; a lookup that takes longer is a miss. Opening a connection may take a second, or this
    if it is longer."""
    front_size: Size = 64 * 2**20
    """Memory for the hottest entries, in process, in front of the store."""
    max_entry: Size = 2**20
    """The largest response to store. A larger one is passed on and not stored."""
    max_entries: Annotated[int, Field(ge=1, le=1_000_000_000)] = 1_000_000
    """Entries in the store and its index. Beyond it the entries whose hits save the least per byte leave."""
    max_bytes: Size | None = None
    """Bytes of records and vectors. Beyond it entries leave as with `store.max_entries`. Without it, 75% of
    `store.max_memory`; for an outside store, no bound."""
    max_changes: Annotated[int, Field(ge=1_000, le=100_000_000)] = 200_000
    """Changes that the store keeps for gateways that lag behind or are away, some 100 bytes each."""
    max_memory: Size = 2**30
    """Memory of the embedded server. Beyond it the server evicts the least recently used entries."""

    @property
    def target(self) -> StoreTarget:
        """The parts of `url`."""
        return parse_store_url(self.url)

    @classmethod
    def problems(cls, settings: Mapping[str, Any]) -> Iterator[Problem]:
        try:
            target = parse_store_url(settings.get("url", "embedded"))
        except ValueError:
            return  # the field itself reports it
        named = [key for key in SERVER_ONLY_KEYS if settings.get(key) is not None]
        if target.kind is StoreKind.EMBEDDED:
            for key in named:
                yield Problem(key, "works with an outside store only, expected its address in store.url")
            return
        if "tls" in named and target.scheme == "redis":
            yield Problem("tls", f"does not work with redis://, {TLS_EXPECTED}")
        if "sentinel_password_env" in named and target.kind is not StoreKind.SENTINEL:
            yield Problem("sentinel_password_env", "works with sentinels only, expected redis+sentinel:// in store.url")
        for key, setting in (("username", target.username), ("password_env", target.password)):
            if key in named and setting is not None:
                yield Problem(key, "is also in store.url, expected it in one place")
        if "username" in named and "password_env" not in named:
            yield Problem("username", "has no password, expected password_env as well")
