"""The response store on Redis or Valkey: one code path for the embedded server and any other.

Each entry is one hash, `nearhit:1:entry:VERSION:FINGERPRINT`, so that an answer, its vector and their expiry stay
together. A sorted set by expiry lists the entries, so that no command ever scans keys of other programs.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import orjson
from redis.exceptions import ResponseError

from gateway.adapters.redis import replies
from gateway.adapters.redis.cluster import key_space_of, used_memory
from gateway.adapters.redis.connection import Word
from gateway.adapters.redis.keyspace import ONE_SERVER, PREFIX
from gateway.adapters.redis.records import PLAIN, RecordCodec, RecordInvalid
from gateway.adapters.redis.store_client import Script, StoreClient
from gateway.circuit_breaker import BreakerState
from gateway.entries import Entry, Vector
from gateway.errors import StoreUnavailable
from gateway.observability.json_logging import RateLimitedLog
from gateway.ports import (
    MAX_COUNTEREXAMPLES,
    MAX_LINKS,
    MAX_TURNS,
    ChangeJournal,
    ChangeKind,
    Clock,
    StoredVector,
    StoreStats,
)

TOKEN_DOLLARS = 1e-7  # the value of a token without a price: among unpriced answers the longer one wins


def worth_of(entry: Entry) -> float:
    """Return the dollars that a hit on the entry saves; always above 0."""
    return entry.cost_dollars + TOKEN_DOLLARS * (1 + entry.input_tokens + entry.output_tokens)


# Storing an answer: the script, and its call in wire form.
#
# hiredis takes 4 us to pack such a call, most of it for constant parts. Filling in a template takes 1 us
# (docs/decisions/0002).

# KEYS: the entry, its lease, the list of entries. ARGV: the lease's token, 0 for none; the expiry in ms, and as listed;
# the fingerprint; the record, the scope, its worth; the vector and its embedder, both empty for none; and the change
# log command. The field names are part of the script, so calls need not send them.
#
# Fencing: a lease in force may always write. A lost lease may not write if the entry there may be newer: an entry of a
# later lease, or of none. HSET is the first write, so a full server rejects it before anything has changed. If HSET
# creates all fields, there was no older entry whose fields must be removed.
PUT = Script("""
local mine = ARGV[1] ~= '0' and redis.call('GET', KEYS[2]) == ARGV[1]
if ARGV[1] ~= '0' and not mine and redis.call('EXISTS', KEYS[1]) == 1 then
  local other = tonumber(redis.call('HGET', KEYS[1], 'lease') or '0')
  if other == 0 or other > tonumber(ARGV[1]) then return 0 end
end
if ARGV[8] ~= '' then
  if redis.call('HSET', KEYS[1], 'record', ARGV[5], 'scope', ARGV[6], 'expires', ARGV[3], 'worth', ARGV[7],
      'vector', ARGV[8], 'embedder', ARGV[9]) < 6 then
    redis.call('HDEL', KEYS[1], 'lease', 'former', 'former_embedder')
  end
elseif redis.call('HSET', KEYS[1], 'record', ARGV[5], 'scope', ARGV[6], 'expires', ARGV[3], 'worth', ARGV[7]) < 4 then
  redis.call('HDEL', KEYS[1], 'lease', 'vector', 'embedder', 'former', 'former_embedder')
end
if ARGV[1] ~= '0' then redis.call('HSET', KEYS[1], 'lease', ARGV[1]) end
redis.call('PEXPIREAT', KEYS[1], ARGV[2])
redis.call('ZADD', KEYS[3], ARGV[3], ARGV[4])
if mine then redis.call('DEL', KEYS[2]) end
if #ARGV > 9 then redis.call(unpack(ARGV, 10)) end
return 1
""")


# KEYS: the entry. ARGV: its record as it is, and as it shall be; the change log command. HSET keeps the expiry.
AMEND = Script("""
if redis.call('HGET', KEYS[1], 'record') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'record', ARGV[2])
if #ARGV > 2 then redis.call(unpack(ARGV, 3)) end
return 1
""")


# KEYS: the entry. ARGV: its record, the vector, its embedder; the change log command.
ADD_VECTOR = Script("""
if redis.call('HGET', KEYS[1], 'record') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'vector', ARGV[2], 'embedder', ARGV[3])
if #ARGV > 3 then redis.call(unpack(ARGV, 4)) end
return 1
""")


def _bulk_string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return b"$%d\r\n%b\r\n" % (len(data), data)


_BULK_SLOT = b"$%d\r\n%b\r\n"  # a bulk string to fill in, after its length

_ENTRY, _LEASE, _LIST = ONE_SERVER.put_keys("")

_PUT_TEMPLATE = b"".join(
    [
        b"*15\r\n", _bulk_string("EVALSHA"), _bulk_string(PUT.digest), _bulk_string("3"),
        b"$%d\r\n", _ENTRY.encode(), b"%b\r\n", b"$%d\r\n", _LEASE.encode(), b"%b\r\n", _bulk_string(_LIST),
        _bulk_string("0"), *[_BULK_SLOT] * 8,
    ]
)  # fmt: skip


def pack_put(
    fingerprint: str,
    scope: str,
    expires_ms: int,
    listed: bytes,
    record: bytes,
    worth: bytes,
    vector: bytes,
    embedder: bytes,
) -> bytes:
    """Return a call of `PUT` without a lease, for one server without other gateways."""
    name, scope_bytes, expires = fingerprint.encode(), scope.encode(), b"%d" % expires_ms
    size = len(name)
    return _PUT_TEMPLATE % (
        len(_ENTRY) + size,
        name,
        len(_LEASE) + size,
        name,
        len(expires),
        expires,
        len(listed),
        listed,
        size,
        name,
        len(record),
        record,
        len(scope_bytes),
        scope_bytes,
        len(worth),
        worth,
        len(vector),
        vector,
        len(embedder),
        embedder,
    )


LOG = logging.getLogger("nearhit.store")

COUNTEREXAMPLES = PREFIX + "counterexamples"

LINKS = PREFIX + "links"
TURNS = PREFIX + "turns"

LEARNING = PREFIX + "learning"

MAX_ROUTES = 256  # each 1.5 MB with 2,000 labels and 384 dimensions

SCAN_BATCH = 500

BACKGROUND_S = 10.0  # per page of work that nobody waits for

# The input of `stored_vector`. During a migration an entry has two vectors (gateway/cache/embedding_migration.py): the
# one that lookups still use, and the one that they will use.
VECTOR_FIELDS = ("scope", "expires", "embedder", "vector", "former_embedder", "former")

OPTIONAL = replies.optional(replies.data)

MAX_NORM_ERROR = 0.01  # of the squared length of a stored vector; beyond it, bits have changed


class RedisStore:
    """`RedisStore` implements `ResponseStore`. `embedder` is the fingerprint of the vectors that this gateway can
    compare; other vectors stay untouched. `journal` reports writes to other gateways, if there are any. `codec` encodes
    records, and encrypts them if it has keys."""

    def __init__(
        self,
        client: Any,
        *,
        embedder: str,
        timeout_s: float,
        clock: Clock,
        journal: ChangeJournal | None = None,
        codec: RecordCodec = PLAIN,
    ) -> None:
        self._client = client
        self._store_client = StoreClient(client, timeout_s, clock)
        self.names = key_space_of(client)
        self._embedder = embedder.encode()
        self._clock = clock
        self.journal = journal
        self.codec = codec
        self.send, self.poll, self.run, self.execute, self.reading = (
            self._store_client.send,
            self._store_client.poll,
            self._store_client.run,
            self._store_client.execute,
            self._store_client.reading,
        )
        self._on_put: Callable[[str], None] | None = None
        self._warnings = RateLimitedLog()
        self.on_unreadable: Callable[[], None] = _ignore  # called for each record that a request cannot be served from

    def for_embedder(self, embedder: str, on_put: Callable[[str], None] | None = None) -> RedisStore:
        """Return the same store, with its breaker and connections, for vectors of another embedder. `on_put` is called
        for each entry stored with a vector."""
        view = copy.copy(self)
        view._embedder, view._on_put = embedder.encode(), on_put
        return view

    def former(self) -> list[RedisStore]:
        """Return the same store with the names of each former version. They report no changes."""
        views = []
        for names in self.names.former:
            view = copy.copy(self)
            view.names, view.journal = names, None
            views.append(view)
        return views

    @property
    def breaker(self) -> BreakerState:
        return self._store_client.breaker

    async def get(self, fingerprint: str) -> Entry | None:
        data = await self.send("HGET", self.names.entry(fingerprint), "record")
        return None if data is None else self.read_record(fingerprint, data)

    def read_record(self, fingerprint: str, data: bytes) -> Entry | None:
        """Return the entry in a record, or None if it is unreadable, or an entry of another fingerprint. Raise
        `StoreUnavailable` if it is no record at all."""
        with self.reading():
            if not isinstance(data, bytes):
                raise TypeError
        try:
            entry = self.codec.decode(data, fingerprint)
        except RecordInvalid as error:
            self.on_unreadable()
            self._warnings.warn(LOG, "unreadable record", {"fingerprint": fingerprint, "error": str(error)})
            return None
        return entry if entry.fingerprint == fingerprint else None

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        if not await self._put(entry, vector, lease):
            return False
        if self.journal is not None:
            await self.publish_change(_kind(vector), entry.fingerprint)
        if vector is not None and self._on_put is not None:
            self._on_put(entry.fingerprint)
        return True

    async def _put(self, entry: Entry, vector: Vector | None, lease: int) -> bool:
        if lease or self.names.tags or self.journal is not None:
            names = self.names.put_keys(entry.fingerprint)
            return bool(await self.run(PUT, names, self._arguments(entry, vector, lease)))
        # One server without other gateways: the same script, packed directly in wire form.
        embedder, encoded = b"" if vector is None else self._embedder, self._encode_put(entry, vector)
        packed = pack_put(entry.fingerprint, entry.scope, *encoded, embedder)
        if await self._store_client.send_packed(packed) is not None:
            return True
        names = self.names.put_keys(entry.fingerprint)
        return bool(await self.run(PUT, names, self._arguments(entry, vector, lease)))

    def _arguments(self, entry: Entry, vector: Vector | None, lease: int) -> list[Word]:
        """Return the arguments of `PUT`."""
        name, embedder = entry.fingerprint, b"" if vector is None else self._embedder
        expires_ms, listed, record, worth, vector_bytes = self._encode_put(entry, vector)
        arguments: list[Word] = [lease, expires_ms, listed, name, record, entry.scope, worth, vector_bytes, embedder]
        if self.journal is not None:
            arguments += self.change_command(_kind(vector), name)
        return arguments

    def _encode_put(self, entry: Entry, vector: Vector | None) -> tuple[int, bytes, bytes, bytes, bytes]:
        """Return the expiry in ms and as listed, the record, the worth, and the vector (empty for none)."""
        try:
            record = self.codec.encode(entry)
        except (ValueError, OverflowError) as error:  # for example, a backend header that is not UTF-8
            raise StoreUnavailable(f"the entry cannot be written: {type(error).__name__}") from None
        vector_bytes = b"" if vector is None else vector.astype("<f4", copy=False).tobytes()
        # The same text as `repr`, in a fifth of its time.
        return (
            int(entry.expires * 1000),
            orjson.dumps(entry.expires),
            record,
            orjson.dumps(worth_of(entry)),
            vector_bytes,
        )

    def change_command(self, kind: ChangeKind, *names: str) -> list[str | int]:
        """Return the change log command for the end of a script. It is empty if there are no other gateways. It is also
        empty if the log may be on another node: then call `publish_change` after the script."""
        return [] if self.journal is None or self.names.tags else self.journal.command(kind, *names)

    async def publish_change(self, kind: ChangeKind, *names: str) -> None:
        if self.journal is not None and self.names.tags:
            command = self.journal.command(kind, *names)
            await self.send(*command)

    async def amend(self, old: Entry, new: Entry) -> bool:
        name = old.fingerprint
        record = await self.send("HGET", self.names.entry(name), "record")
        if record is None or self.read_record(name, record) != old:
            return False
        command = self.change_command(ChangeKind.RECORDS, name)
        # The bytes that were read: an encrypted record differs each time that it is written.
        if not await self.run(AMEND, [self.names.entry(name)], [record, self.codec.encode(new), *command]):
            return False
        await self.publish_change(ChangeKind.RECORDS, name)
        return True

    async def add_vector(self, entry: Entry, vector: Vector) -> bool:
        name = entry.fingerprint
        record = await self.send("HGET", self.names.entry(name), "record")
        if record is None or self.read_record(name, record) != entry:
            return False
        arguments: list[Word] = [record, vector.astype("<f4", copy=False).tobytes(), self._embedder]
        arguments += self.change_command(ChangeKind.VECTORS, name)
        if not await self.run(ADD_VECTOR, [self.names.entry(name)], arguments):
            return False
        await self.publish_change(ChangeKind.VECTORS, name)
        if self._on_put is not None:
            self._on_put(name)
        return True

    async def foreign(self, fingerprints: Sequence[str]) -> set[str]:
        rows = await self.fields_of(fingerprints, ("embedder", "former_embedder"))
        return {
            name
            for name, made_by in zip(fingerprints, rows, strict=True)
            if made_by[0] is not None and self._embedder not in made_by
        }

    async def without_vector(self) -> AsyncIterator[list[str]]:
        async for members in self.listed(SCAN_BATCH, BACKGROUND_S):
            names = list(dict.fromkeys(name for name, _ in members))
            rows = await self.fields_of(names, ("embedder",), BACKGROUND_S)
            yield [name for name, (embedder,) in zip(names, rows, strict=True) if embedder is None]

    async def fields_of(
        self, fingerprints: Sequence[str], fields: Sequence[str], timeout_s: float | None = None
    ) -> list[list[bytes | None]]:
        """Return fields of entries, None for each that is absent. A key of another type has no fields: a program that
        writes to it must not hide the other entries."""

        async def read(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for name in fingerprints:
                    pipe.hmget(self.names.entry(name), *fields)
                return await pipe.execute(raise_on_error=False)

        def row(reply: Any) -> list[bytes | None]:
            if isinstance(reply, ResponseError) and str(reply).startswith("WRONGTYPE"):
                return [None] * len(fields)
            if isinstance(reply, Exception):
                raise reply
            return read_row(reply)

        if not fingerprints:
            return []
        read_row = replies.list_of(OPTIONAL, len(fields))
        return await self.execute(read, timeout_s, read=replies.list_of(row, len(fingerprints)))

    async def delete(self, fingerprints: Sequence[str]) -> int:
        if not fingerprints:
            return 0

        groups = self.names.group_by_list(fingerprints)

        async def unlink(client: Any) -> Any:
            async with client.pipeline(transaction=True) as pipe:
                for listed, names in groups.items():
                    pipe.unlink(*map(self.names.entry, names))
                    pipe.zrem(listed, *names)
                if self.journal is not None:
                    self.journal.append(pipe, ChangeKind.VECTORS, *fingerprints)
                return await pipe.execute()

        return await self.execute(unlink, read=lambda reply: sum(map(replies.count, reply[: 2 * len(groups) : 2])))

    async def vectors(self) -> AsyncIterator[StoredVector]:
        async for members in self.listed(SCAN_BATCH):
            for stored in await self.vectors_of([name for name, _ in members]):
                yield stored

    async def fingerprints(self) -> AsyncIterator[tuple[str, float]]:
        async for members in self.listed(SCAN_BATCH):
            for member in members:
                yield member

    async def listed(self, page_size: int, timeout_s: float | None = None) -> AsyncIterator[list[tuple[str, float]]]:
        """Yield all entries with their expiry, in pages of about `page_size`, each within `timeout_s`. Entries may come
        twice. Names that are no text are left out: one of them must not hide the others."""
        page: list[tuple[str, float]] = []
        for key in self.names.list_keys:
            cursor = 0
            while True:
                cursor, members = await self.execute(partial(_scan, key, cursor, page_size), timeout_s, read=_members)
                page += members
                if len(page) >= page_size:
                    yield page
                    page = []
                if cursor == 0:
                    break
        if page:
            yield page

    async def vectors_of(self, fingerprints: Sequence[str]) -> list[StoredVector]:
        named = zip(fingerprints, await self.fields_of(fingerprints, VECTOR_FIELDS), strict=True)
        vectors = [stored_vector(name, row, self._embedder) for name, row in named]
        return [stored for stored in vectors if stored is not None]

    async def add_counterexample(self, key: str) -> None:
        await self._add_keys(COUNTEREXAMPLES, [key], MAX_COUNTEREXAMPLES, ChangeKind.COUNTEREXAMPLE)

    async def counterexamples(self) -> list[str]:
        return await self._keys(COUNTEREXAMPLES)

    async def add_links(self, keys: Sequence[str]) -> None:
        await self._add_keys(LINKS, keys, MAX_LINKS, ChangeKind.LINKS)

    async def add_turns(self, keys: Sequence[str]) -> None:
        await self._add_keys(TURNS, keys, MAX_TURNS, ChangeKind.LINKS)

    async def links(self) -> list[str]:
        return await self._keys(LINKS) + await self._keys(TURNS)

    async def remove_relations(self, counterexamples: Sequence[str], links: Sequence[str]) -> None:
        """Remove counterexamples, and links or turns, by their keys. Raise `StoreUnavailable`."""

        async def remove(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                for name, keys in ((COUNTEREXAMPLES, counterexamples), (LINKS, links), (TURNS, links)):
                    for at in range(0, len(keys), SCAN_BATCH):
                        pipe.zrem(name, *keys[at : at + SCAN_BATCH])
                await pipe.execute()

        if counterexamples or links:
            await self.execute(remove, read=replies.nothing)

    async def _add_keys(self, name: str, keys: Sequence[str], limit: int, kind: ChangeKind) -> None:
        """Add keys to a set that is sorted by time, and tell the other gateways. Beyond `limit` the oldest go."""

        async def write(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                pipe.zadd(name, dict.fromkeys(keys, self._clock.wall()))
                pipe.zremrangebyrank(name, 0, -limit - 1)
                if self.journal is not None:
                    self.journal.append(pipe, kind, *keys)
                await pipe.execute()

        await self.execute(write, read=replies.nothing)

    async def _keys(self, name: str) -> list[str]:
        keys = await self.execute(lambda client: client.zrange(name, 0, -1), read=replies.list_of(replies.data))
        return [key.decode() for key in keys if key.isascii()]

    async def put_learning(self, route: str, snapshot: bytes) -> None:
        async def write(client: Any) -> None:
            async with client.pipeline(transaction=True) as pipe:
                pipe.hset(LEARNING, route, snapshot)
                pipe.hkeys(LEARNING)
                _, routes = await pipe.execute()
            # Only a policy knows which routes still exist, and each gateway has its own policy. Beyond the bound any
            # other route is dropped; a route in use is saved again.
            surplus = [name for name in routes if name != route.encode()][: max(0, len(routes) - MAX_ROUTES)]
            if surplus:
                await client.hdel(LEARNING, *surplus)

        await self.execute(write, read=replies.nothing)

    async def learning(self, route: str) -> bytes | None:
        return await self.execute(lambda client: client.hget(LEARNING, route), read=OPTIONAL)

    async def stats(self) -> StoreStats:
        async def read(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for key in self.names.list_keys:
                    pipe.zremrangebyscore(key, "-inf", self._clock.wall())
                    pipe.zcard(key)
                for names in self.names.former:  # their entries expire, and nobody else may be left to trim the lists
                    for key in names.list_keys:
                        pipe.zremrangebyscore(key, "-inf", self._clock.wall())
                counts = await pipe.execute()
            return counts[1 : 2 * len(self.names.list_keys) : 2], await used_memory(client)

        return await self.execute(read, read=_stats)

    async def close(self) -> None:
        await self._store_client.close()


def _ignore() -> None:
    """Do nothing: the default of `on_unreadable`."""


def _kind(vector: Vector | None) -> ChangeKind:
    """Return the kind of change of a put."""
    return ChangeKind.RECORDS if vector is None else ChangeKind.VECTORS


def _stats(reply: tuple[Sequence[Any], int]) -> StoreStats:
    counts, memory = reply
    return StoreStats(sum(map(replies.count, counts)), memory)


async def _scan(key: str, cursor: int, page_size: int, client: Any) -> Any:
    return await client.zscan(key, cursor, count=page_size)


def _members(reply: Any) -> tuple[int, list[tuple[str, float]]]:
    """Return the next cursor, and the members of a sorted set with their scores, without names that are no text."""
    cursor, members = reply
    return replies.count(cursor), [(name.decode(), float(score)) for name, score in members if name.isascii()]


def stored_vector(name: str, row: Sequence[bytes | None], current: bytes) -> StoredVector | None:
    """Return the vector in the `VECTOR_FIELDS` of an entry.

    Return None if there is none of the `current` embedder. Return None also if it is unreadable: one bad vector must
    not keep the others out of the index.
    """
    scope, expires, *pairs = row
    vector = next((data for by, data in zip(pairs[::2], pairs[1::2], strict=True) if by == current), None)
    if not vector or scope is None or expires is None:
        return None
    try:
        values = np.frombuffer(vector, dtype="<f4").astype(np.float32)
        if not abs(float(values @ values) - 1.0) < MAX_NORM_ERROR:  # NaN included
            raise ValueError("not of unit length")
        return StoredVector(name, scope.decode(), values, float(expires))
    except ValueError:  # UnicodeDecodeError included
        LOG.warning("a stored vector is unreadable", extra={"fields": {"fingerprint": name}})
        return None
