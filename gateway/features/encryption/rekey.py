"""Rewrite all records with the first key of `store.encryption`.

A record names its key, so a run that was cut off is repeated, and does only what is left. An answer that was stored
again in the meantime stays as it is. A record that cannot be opened stays, too: its key may come back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.append_only_file import AppendOnlyFile
from gateway.adapters.redis.entry_pages import read_entries
from gateway.adapters.redis.records import RecordCodec, RecordInvalid, SealingKeys
from gateway.adapters.redis.store import RedisStore
from gateway.errors import BadRequest, GatewayError, Overloaded, StoreUnavailable

TIMEOUT_S = 5.0  # per round trip; an operator waits
STEP = 50  # records encrypted at once, each in some 20 us, before the event loop continues
# KEYS: the entry. ARGV: the SHA-1 of the record that was read, and the new record. HSET keeps the expiry.
REWRITE = """
local record = redis.call('HGET', KEYS[1], 'record')
if not record or redis.sha1hex(record) ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'record', ARGV[2])
return 1
"""


@dataclass(slots=True)
class RekeySummary:
    """The counts of a run so far."""

    key: str  # the id of the first key, in hex
    rewritten: int = 0
    current: int = 0  # the first key had written them already
    replaced: int = 0  # stored again or removed in the meantime
    unreadable: int = 0  # damaged, or of a key that is not configured
    notes: list[str] = field(default_factory=list)  # where former records were not reached

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class RekeyIncomplete(GatewayError):
    """The store failed during a run. `summary` has the counts so far."""

    status = 503
    kind = "store_unavailable"

    def __init__(self, summary: RekeySummary, error: str) -> None:
        super().__init__(f"{error}; what was rewritten stays: repeat the command", retry_after_s=1)
        self.summary = summary


class Rekey:
    """`Rekey` rewrites the records of a store, and then its file. One run at a time."""

    def __init__(self, store: RedisStore, file: AppendOnlyFile) -> None:
        self._store = store
        self._file = file
        self._running = False

    async def run(self) -> RekeySummary:
        """Rewrite all records. Raise `BadRequest`, `Overloaded` or `RekeyIncomplete`."""
        keys = self._store.codec.keys
        if keys is None:
            raise BadRequest("there is no key to encrypt with: expected store.encryption.keys in config.yaml")
        if self._running:
            raise Overloaded("the records are being rewritten already, nothing was done: try again", retry_after_s=1)
        self._running, summary = True, RekeySummary(keys.id)
        try:
            async for rows in read_entries(self._store, ("record",), TIMEOUT_S):
                records = {name: record for name, (record,) in rows if record is not None}
                await self._rewrite(records, keys, summary)
            if former := await self._count_former():
                summary.notes.append(
                    f"not reached: {former} records with the names of a former version, whose gateways may read them: "
                    "they expire, and nearhit cache purge removes them"
                )
            summary.notes += await self._file.drop_deleted()
        except StoreUnavailable as error:
            raise RekeyIncomplete(summary, str(error)) from None
        finally:
            self._running = False
        return summary

    async def _count_former(self) -> int:
        """Return the number of entries of former versions. Raise `StoreUnavailable`."""

        async def read(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for names in self._store.names.former:
                    for key in names.list_keys:
                        pipe.zcard(key)
                return await pipe.execute()

        return sum(await self._store.execute(read, TIMEOUT_S, read=replies.list_of(replies.count)))

    async def _rewrite(self, records: Mapping[str, bytes], keys: SealingKeys, summary: RekeySummary) -> None:
        readable = RecordCodec(keys)  # also plain records, which `read_plain: off` keeps from requests
        changes: dict[str, tuple[str, bytes]] = {}  # fingerprint -> digest of the former record, new record
        for at, (name, record) in enumerate(records.items()):
            if keys.is_current(record):
                summary.current += 1
                continue
            try:
                entry = readable.decode(record, name)
            except RecordInvalid:
                summary.unreadable += 1
                continue
            if entry.fingerprint != name:  # a plain record in a wrong place must not become a valid one
                summary.unreadable += 1
                continue
            digest = hashlib.sha1(record, usedforsecurity=False).hexdigest()
            changes[name] = digest, self._store.codec.encode(entry)
            if at % STEP == STEP - 1:
                await asyncio.sleep(0)
        if changes:
            replaced = replies.list_of(replies.truth, len(changes))
            done = sum(await self._store.execute(partial(self._write, changes), TIMEOUT_S, read=replaced))
            summary.rewritten += done
            summary.replaced += len(changes) - done

    async def _write(self, changes: Mapping[str, tuple[str, bytes]], client: Any) -> Any:
        async with client.pipeline(transaction=False) as pipe:
            for name, (digest, record) in changes.items():
                pipe.eval(REWRITE, 1, self._store.names.entry(name), digest, record)
            return await pipe.execute()
