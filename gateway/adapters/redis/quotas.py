"""Limits on the server that stores the answers: one key per limit, `nearhit:1:quota:ROUTE:...`, which expires.

One script meets or refuses all demands of a request, on the server's clock, so gateways with different clocks count
alike. The arithmetic and the units are those of `gateway.limits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.adapters.redis.connection import Word
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.store_client import Script
from gateway.limits import (
    HALF_LIFE_US,
    SLACK_US,
    Cost,
    Demand,
    LimitPart,
    LimitState,
    PacedLimit,
    Return,
    Slot,
    TakeResult,
)

# Seconds for which a place, and a gateway, counts after its last heartbeat.
LEASE_S = 30.0

HEAD = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function number(value) return string.format('%.17g', value) end
-- The month of a day since 1970-01-01: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
local function window_of(window)
  local days = math.floor(now / 86400000000)
  if window == 'day' then return string.format('d%.0f', days) end
  local z = days + 719468
  local era = math.floor(z / 146097)
  local doe = z - era * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local mp = math.floor((5 * doy + 2) / 153)
  local m = mp + (mp < 10 and 3 or -9)
  return string.format('m%.0f', (yoe + era * 400 + (m <= 2 and 1 or 0)) * 12 + m - 1)
end
local function spent_of(key, window)
  local kept = redis.call('GET', key)
  local at, spent = string.match(kept or '', '^(%a%d+) (%d+)$')
  return at == window and tonumber(spent) or 0
end
local function spend(key, window, spent)
  redis.call('SET', key, window .. ' ' .. string.format('%.0f', math.max(0, spent)), 'PX', 32 * 86400000)
end
local function pace(key, until_us)
  if until_us <= now then redis.call('DEL', key)
  else redis.call('SET', key, number(until_us), 'PX', math.ceil((until_us - now) / 1000)) end
end
local function parts_of(key)
  local large, total, at = string.match(redis.call('GET', key) or '', '^(%S+) (%S+) (%S+)$')
  if not large then return 0, 0 end
  local faded = 2 ^ (-math.max(0, now - tonumber(at)) / tonumber(HALF_LIFE))
  return tonumber(large) * faded, tonumber(total) * faded
end
local function part(key, large, total)
  redis.call('SET', key, number(large) .. ' ' .. number(total) .. ' ' .. number(now), 'PX', 86400000)
end
""".replace("HALF_LIFE", repr(HALF_LIFE_US))
# KEYS: one per demand. ARGV: five per demand: its kind, and its arguments.
TAKE = (
    HEAD
    + """
local found, granted = {}, 1
local reply = {0, string.format('%.0f', now)}
for i, key in ipairs(KEYS) do
  local kind, a, b, c, d = unpack(ARGV, 5 * i - 4, 5 * i)
  local ok, level, hard = true, 0, true
  if kind == 'pace' then
    level = math.max(0, tonumber(redis.call('GET', key) or '0') - now)
    ok = level + tonumber(a) <= tonumber(b) + SLACK
  elseif kind == 'place' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    level = redis.call('ZCARD', key)
    ok = level < tonumber(a)
  elseif kind == 'spend' then
    level = spent_of(key, window_of(c))
    ok = level + tonumber(b) <= tonumber(a)
    hard = d ~= 'soft'
  else
    local large, total = parts_of(key)
    found[i] = {large, total}
    level = total > 0 and 1000000 * large / total or 0
    ok = large + 1 <= tonumber(a) * (total + 1) + 1e-9
    hard = false
  end
  if hard and not ok then granted = 0 end
  reply[2 * i + 1] = ok and 1 or 0
  reply[2 * i + 2] = math.floor(level)
end
reply[1] = granted
if granted == 0 then return reply end
for i, key in ipairs(KEYS) do
  local kind, a, b, c, d = unpack(ARGV, 5 * i - 4, 5 * i)
  if kind == 'pace' then
    pace(key, math.max(now, tonumber(redis.call('GET', key) or '0')) + tonumber(a))
  elseif kind == 'place' then
    redis.call('ZADD', key, now + tonumber(b) * 1000, c)
    redis.call('PEXPIRE', key, b)
  elseif kind == 'spend' then
    spend(key, window_of(c), spent_of(key, window_of(c)) + tonumber(b))
  else
    part(key, found[i][1] + reply[2 * i + 1], found[i][2] + 1)
  end
end
return reply
"""
).replace("SLACK", repr(SLACK_US))
# KEYS: one per return. ARGV: three per return: its kind, its amount, and its window or member.
SETTLE = (
    HEAD
    + """
for i, key in ipairs(KEYS) do
  local kind, amount, of = unpack(ARGV, 3 * i - 2, 3 * i)
  if kind == 'pace' then
    local kept = tonumber(redis.call('GET', key) or '0')
    if tonumber(amount) > 0 then kept = math.max(kept, now) end
    if kept > 0 then pace(key, kept + tonumber(amount)) end
  elseif kind == 'place' then
    redis.call('ZREM', key, of)
  elseif kind == 'spend' then
    if of == window_of('day') or of == window_of('month') then
      spend(key, of, spent_of(key, of) + tonumber(amount))
    end
  else
    local large, total = parts_of(key)
    if total > 0 then part(key, math.max(0, large - 1), total) end
  end
end
"""
)
# KEYS: the gateways, then one per place. ARGV: the gateway, its lease in ms; then the member of each place.
BEAT = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local ends = now + ARGV[2] * 1000
redis.call('ZADD', KEYS[1], ends, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
for i = 2, #KEYS do
  redis.call('ZADD', KEYS[i], 'XX', ends, ARGV[i + 1])
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return redis.call('ZCARD', KEYS[1])
"""


class RedisQuotas:
    """`RedisQuotas` implements `QuotaStore`, with `timeout_s` per operation, behind the breaker of `store`."""

    def __init__(self, store: RedisStore, *, timeout_s: float, lease_s: float = LEASE_S) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._quotas, self._gateways = store.names.key("quota:"), store.names.key("gateways")
        self._lease_ms = round(1000 * lease_s)
        self._take, self._settle, self._beat = map(Script, (TAKE, SETTLE, BEAT))

    async def take(self, demands: Sequence[Demand]) -> TakeResult:
        keys = [self._quotas + demand.key for demand in demands]
        arguments = take_arguments(demands, self._lease_ms)
        granted, now, *told = await self._store.run(self._take, keys, arguments, self._timeout_s)
        pairs = zip(told[::2], told[1::2], strict=True)
        return TakeResult(bool(granted), tuple(LimitState(bool(ok), int(level)) for ok, level in pairs), int(now))

    async def settle(self, returns: Sequence[Return]) -> None:
        keys = [self._quotas + item.key for item in returns]
        arguments: list[Word] = [part for item in returns for part in (item.kind, repr(item.amount), item.of)]
        await self._store.run(self._settle, keys, arguments, self._timeout_s)

    async def beat(self, gateway: str, places: Sequence[tuple[str, str]]) -> int:
        keys = [self._gateways, *(self._quotas + key for key, _ in places)]
        arguments: list[Word] = [gateway, self._lease_ms, *(member for _, member in places)]
        return int(await self._store.run(self._beat, keys, arguments, self._timeout_s))


def take_arguments(demands: Sequence[Demand], lease_ms: int) -> list[Any]:
    """Return the arguments of `TAKE`: five per demand."""
    arguments: list[Any] = []
    for demand in demands:
        if isinstance(demand, PacedLimit):
            arguments += ["pace", repr(demand.cost_us), repr(demand.burst_us), "", ""]
        elif isinstance(demand, Slot):
            arguments += ["place", demand.places, lease_ms, demand.member, ""]
        elif isinstance(demand, Cost):
            soft = "soft" if demand.soft else ""
            arguments += ["spend", demand.cap, demand.amount, demand.window, soft]
        else:
            assert isinstance(demand, LimitPart)
            arguments += ["part", repr(demand.share), "", "", ""]
    return arguments
