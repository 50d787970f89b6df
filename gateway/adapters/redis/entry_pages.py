"""Read fields of all entries, in pages that are bounded in number and bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

from gateway.adapters.redis import replies
from gateway.adapters.redis.store import RedisStore

PAGE = 1_000  # entries read at once: one round trip for the names, and one for the records
PAGE_BYTES = 4 * 2**20  # record bytes read at once; a larger record is read alone
# KEYS: entries. ARGV: the bytes that may be returned, and the fields. Returns the number of keys that were read, and
# for each entry its place among the keys and its fields. The first record is returned whatever its size.
READ = """
local rows, total = {}, 0
for i, key in ipairs(KEYS) do
  local size = redis.pcall('HSTRLEN', key, 'record')  -- an error if the key is damaged: it has no record then
  if type(size) == 'number' and size > 0 then
    if #rows > 0 and total + size > tonumber(ARGV[1]) then return {i - 1, rows} end
    total = total + size
    rows[#rows + 1] = {i, redis.call('HMGET', key, unpack(ARGV, 2))}
  end
end
return {#KEYS, rows}
"""

Row = tuple[str, Sequence[bytes | None]]
"""The fingerprint of an entry, and its fields in the store."""


async def read_entries(store: RedisStore, fields: Sequence[str], timeout_s: float) -> AsyncIterator[list[Row]]:
    """Yield the fields of all entries with a record, in no order. Raise `StoreUnavailable`.

    `timeout_s` bounds each round trip.
    """
    async for members in store.listed(PAGE, timeout_s):
        remaining = store.names.group_by_list(name for name, _ in members)
        while remaining:
            pages = await store.execute(
                partial(_read, store, remaining, fields), timeout_s, read=partial(_pages, remaining, len(fields))
            )
            for rows in pages:
                yield rows


async def _read(store: RedisStore, remaining: dict[str, list[str]], fields: Sequence[str], client: Any) -> Any:
    """Read entries of each list in one round trip."""
    budget = PAGE_BYTES // len(remaining)
    async with client.pipeline(transaction=False) as pipe:
        for names in remaining.values():
            pipe.eval(READ, len(names), *map(store.names.entry, names), budget, *fields)
        return await pipe.execute()


def _pages(remaining: dict[str, list[str]], width: int, reply: Any) -> list[list[Row]]:
    """Return the entries in the reply to `_read`, and remove their names from `remaining`."""
    read_row = replies.list_of(replies.optional(replies.data), width)
    pages = list[list[Row]]()
    for (listed, names), (number, rows) in zip([*remaining.items()], reply, strict=True):
        count = replies.count(number)
        if not 1 <= count <= len(names):
            raise ValueError("no progress")
        by_place = dict(enumerate(names[:count], 1))
        pages.append([(by_place[at], read_row(row)) for at, row in rows])
        if count == len(names):
            del remaining[listed]
        else:
            remaining[listed] = names[count:]
    return pages
