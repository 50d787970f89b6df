"""The books in the store: for each hour a hash with a row for each payer, and one with the figures of each route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from gateway.adapters.redis import replies
from gateway.adapters.redis.connection import Word
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.store_client import Script
from gateway.features.spend.figures import Figures
from gateway.features.spend.rows import HOUR_S, MAX_NAME, OTHERS, Counts, Payer

T = TypeVar("T")
KEPT_S = 400 * 86_400  # 13 months
MAX_ROWS = 200  # of an hour, some 150 bytes each; later payers of the hour are one row
SEEN_S = 86_400  # how long the number of a gateway's last batch stays
TIMEOUT_S = 5.0
BATCH = 200  # hours that are read at once
OTHER_ROUTES = b"others"

# KEYS: the hour, the number of the gateway's last batch. ARGV: the number of this batch, the maximum of rows, the row
# of others, when the hour expires, then rows with their counts. A batch that was written before changes nothing: a
# gateway may send it again after a lost reply. A row that an older version wrote may have fewer numbers, or more.
ADD = Script(f"""
if tonumber(redis.call('GET', KEYS[2]) or '0') >= tonumber(ARGV[1]) then return 0 end
local rows = redis.call('HLEN', KEYS[1])
for i = 5, #ARGV, 2 do
  local row = ARGV[i]
  local old = redis.call('HGET', KEYS[1], row)
  if not old and rows >= tonumber(ARGV[2]) then
    row = ARGV[3]
    old = redis.call('HGET', KEYS[1], row)
  end
  local sums, was, add = {{}}, string.gmatch(old or '', '%S+'), string.gmatch(ARGV[i + 1], '%S+')
  local a, b = was(), add()
  while a or b do
    table.insert(sums, string.format('%.0f', tonumber(a or '0') + tonumber(b or '0')))
    a, b = a and was(), b and add()
  end
  if not old then rows = rows + 1 end
  redis.call('HSET', KEYS[1], row, table.concat(sums, ' '))
end
redis.call('EXPIREAT', KEYS[1], ARGV[4])
redis.call('SET', KEYS[2], ARGV[1], 'EX', {SEEN_S})
return 1
""")

# KEYS: the hour. ARGV: a row, the row that gets its counts.
MOVE = Script("""
local from = redis.call('HGET', KEYS[1], ARGV[1])
if not from then return 0 end
local sums, to = {}, redis.call('HGET', KEYS[1], ARGV[2])
local add = string.gmatch(to or '', '%S+')
for number in string.gmatch(from, '%S+') do
  table.insert(sums, string.format('%.0f', tonumber(number) + tonumber(add() or '0')))
end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[2], table.concat(sums, ' '))
return 1
""")


class SpendStore:
    """`SpendStore` reads and writes the books. Every failure is `StoreUnavailable`."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    async def add(self, gateway: str, number: int, hour: int, rows: Mapping[Payer, Counts]) -> None:
        """Add a batch of a gateway. A batch with the number of an earlier one changes nothing."""
        sums: dict[bytes, Counts] = {}
        for payer, counts in rows.items():  # long names may be equal once they are cut
            sums.setdefault(payer.packed(), Counts()).add(counts)
        packed = {name: counts.packed() for name, counts in sums.items()}
        await self._add(gateway, number, self._key(hour), OTHERS.packed(), hour, packed)

    async def add_figures(self, gateway: str, number: int, hour: int, figures: Mapping[str, Figures]) -> None:
        """Add the figures of a batch, by route, in the same way."""
        sums: dict[bytes, Figures] = {}
        for route, each in figures.items():
            sums.setdefault(route[:MAX_NAME].encode(), Figures()).add(each)
        packed = {name: each.packed() for name, each in sums.items()}
        await self._add(f"{gateway}:figures", number, self._figures_key(hour), OTHER_ROUTES, hour, packed)

    async def _add(
        self, gateway: str, number: int, key: str, others: bytes, hour: int, rows: Mapping[bytes, str]
    ) -> None:
        arguments: list[Word] = [number, MAX_ROWS, others, hour * HOUR_S + KEPT_S]
        for row in rows.items():
            arguments += row
        await self._store.run(ADD, [key, self._store.names.key(f"spend:seen:{gateway}")], arguments, TIMEOUT_S)

    async def move(self, hour: int, old: Payer, new: Payer) -> None:
        """Give the counts of one row to another one."""
        await self._store.run(MOVE, [self._key(hour)], [old.packed(), new.packed()], TIMEOUT_S)

    async def claim(self, alert: str, seconds: int) -> bool:
        """Claim an alert, and return whether no gateway has it."""
        key = self._alert_key(alert)
        read = replies.optional(replies.truth)
        return bool(
            await self._store.execute(lambda client: client.set(key, b"1", nx=True, ex=seconds), TIMEOUT_S, read=read)
        )

    async def keep_claim(self, alert: str, seconds: int) -> None:
        """Keep the claim on an alert that was sent."""
        key = self._alert_key(alert)
        await self._store.execute(lambda client: client.set(key, b"1", ex=seconds), TIMEOUT_S, read=replies.nothing)

    async def read(self, first: int, end: int) -> AsyncIterator[tuple[int, list[tuple[Payer, Counts]]]]:
        """Yield the hours from `first` to before `end` that have rows."""
        async for hour, rows in self._hours(first, end, self._key, _rows_of):
            yield hour, rows

    async def read_figures(self, first: int, end: int) -> AsyncIterator[tuple[int, list[tuple[str, Figures]]]]:
        """Yield the hours from `first` to before `end` that have figures."""
        async for hour, figures in self._hours(first, end, self._figures_key, _figures_of):
            yield hour, figures

    async def _hours(
        self, first: int, end: int, key: Callable[[int], str], read: Callable[[Any], list[T]]
    ) -> AsyncIterator[tuple[int, list[T]]]:
        for at in range(first, end, BATCH):
            hours = range(at, min(at + BATCH, end))
            for hour, rows in zip(hours, await self._read([*map(key, hours)], read), strict=True):
                if rows:
                    yield hour, rows

    async def _read(self, keys: Sequence[str], read: Callable[[Any], list[T]]) -> list[list[T]]:
        async def fetch(client: Any) -> Any:
            async with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hgetall(key)
                return await pipe.execute()

        return await self._store.execute(fetch, TIMEOUT_S, read=replies.list_of(read, len(keys)))

    def _key(self, hour: int) -> str:
        return self._store.names.key(f"spend:{hour}")

    def _alert_key(self, alert: str) -> str:
        return self._store.names.key(f"spend:alert:{alert}")

    def _figures_key(self, hour: int) -> str:
        return self._store.names.key(f"spend:figures:{hour}")


def _rows_of(reply: Any) -> list[tuple[Payer, Counts]]:
    values = replies.map_of(replies.data, replies.data)(reply)
    rows = ((Payer.of(packed), counts) for packed, counts in values.items())
    return [(payer, Counts.of(counts)) for payer, counts in rows if payer is not None]


def _figures_of(reply: Any) -> list[tuple[str, Figures]]:
    values = replies.map_of(replies.data, replies.data)(reply)
    return [(route.decode("utf-8", "replace"), Figures.of(packed)) for route, packed in values.items()]
