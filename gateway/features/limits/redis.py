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
from gateway.features.limits.demands import (
    HALF_LIFE_US,
    HELD,
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

# Seconds for which a place, a reservation and a gateway count after the last heartbeat.
LEASE_S = 30.0
MAX_GATEWAYS = 10_000  # on one store; a larger number is no count of them

MAX_SUM = 2_000  # reservations that are added up for a request that is refused

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
-- Give back what calls have reserved whose gateway has not been heard of for a lease, and return what is still held.
-- Of a rate, some of it has refilled since then.
local function swept(key, held, refilled)
  local gone = 0
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', held, '-inf', now)) do
    gone = gone + math.max(0, tonumber(string.match(name, '(%S+)$')) - refilled)
  end
  if redis.call('ZREMRANGEBYSCORE', held, '-inf', now) == 0 then gone = 0 end
  return gone, redis.call('ZCARD', held)
end
local function sum_of(held)
  local sum = 0
  for _, name in ipairs(redis.call('ZRANGE', held, 0, MAX_SUM - 1)) do
    sum = sum + tonumber(string.match(name, '(%S+)$'))
  end
  return sum
end
local function hold(held, name, lease)
  if name == '' then return end
  redis.call('ZADD', held, now + tonumber(lease) * 1000, name)
  redis.call('PEXPIRE', held, lease)
end
-- Return the change that settles a call. What was given back for want of a sign of life is taken again.
local function settled(held, name, amount)
  if name == '' or redis.call('ZREM', held, name) == 0 then return amount end
  return amount - tonumber(string.match(name, '(%S+)$'))
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
""".replace("HALF_LIFE", repr(HALF_LIFE_US)).replace("MAX_SUM", str(MAX_SUM))
# KEYS: one per demand; reservations are in the key with `HELD` after it. ARGV: eight per demand: its kind, and its
# arguments.
TAKE = (
    (
        HEAD
        + """
local found, granted = {}, 1
local reply = {0, string.format('%.0f', now)}
for i, key in ipairs(KEYS) do
  local kind, a, b, c, d, floor, name, lease = unpack(ARGV, 8 * i - 7, 8 * i)
  local ok, level, hard, others = true, 0, true, 0
  if kind == 'pace' then
    if name ~= '' then
      local gone
      gone, others = swept(key, key .. 'HELD', LEASE_US)
      if gone > 0 then pace(key, tonumber(redis.call('GET', key) or '0') - gone) end
    end
    level = math.max(0, tonumber(redis.call('GET', key) or '0') - now)
    ok = level + tonumber(others > 0 and a or floor) <= tonumber(b) + SLACK
  elseif kind == 'place' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    level = redis.call('ZCARD', key)
    ok = level < tonumber(a)
  elseif kind == 'spend' then
    if name ~= '' then
      local gone
      gone, others = swept(key, key .. 'HELD', 0)
      if redis.call('EXISTS', key) == 1 and not string.find(redis.call('GET', key), window_of(c) .. ' ', 1, true) then
        redis.call('DEL', key .. 'HELD')  -- of the window before
        gone, others = 0, 0
      end
      if gone > 0 then spend(key, window_of(c), spent_of(key, window_of(c)) - gone) end
    end
    level = spent_of(key, window_of(c))
    ok = level + tonumber(others > 0 and b or floor) <= tonumber(a)
    hard = d ~= 'soft'
  else
    local large, total = parts_of(key)
    found[i] = {large, total}
    level = total > 0 and 1000000 * large / total or 0
    ok = large + 1 <= tonumber(a) * (total + 1) + 1e-9
    hard = false
  end
  if hard and not ok then granted = 0 end
  reply[3 * i] = ok and 1 or 0
  reply[3 * i + 1] = math.floor(level)
  reply[3 * i + 2] = (others > 0 and not ok) and math.floor(sum_of(key .. 'HELD')) or 0
end
reply[1] = granted
if granted == 0 then return reply end
for i, key in ipairs(KEYS) do
  local kind, a, b, c, d, floor, name, lease = unpack(ARGV, 8 * i - 7, 8 * i)
  if kind == 'pace' then
    pace(key, math.max(now, tonumber(redis.call('GET', key) or '0')) + tonumber(a))
    hold(key .. 'HELD', name, lease)
  elseif kind == 'place' then
    redis.call('ZADD', key, now + tonumber(b) * 1000, c)
    redis.call('PEXPIRE', key, b)
  elseif kind == 'spend' then
    spend(key, window_of(c), spent_of(key, window_of(c)) + tonumber(b))
    hold(key .. 'HELD', name, lease)
  else
    part(key, found[i][1] + reply[3 * i], found[i][2] + 1)
  end
end
return reply
"""
    )
    .replace("SLACK", repr(SLACK_US))
    .replace("LEASE_US", repr(1_000_000 * LEASE_S))
    .replace("HELD", HELD)
)
# KEYS: one per return. ARGV: four per return: its kind, its amount, its window or member, and its reservation.
SETTLE = (
    HEAD
    + """
for i, key in ipairs(KEYS) do
  local kind, amount, of, name = unpack(ARGV, 4 * i - 3, 4 * i)
  amount = settled(key .. 'HELD', name, tonumber(amount))
  if kind == 'pace' then
    local kept = tonumber(redis.call('GET', key) or '0')
    if amount > 0 then kept = math.max(kept, now) end
    if kept > 0 then pace(key, kept + amount) end
  elseif kind == 'place' then
    redis.call('ZREM', key, of)
  elseif kind == 'spend' then
    if of == window_of('day') or of == window_of('month') then
      spend(key, of, spent_of(key, of) + amount)
    end
  else
    local large, total = parts_of(key)
    if total > 0 then part(key, math.max(0, large - 1), total) end
  end
end
"""
).replace("HELD", HELD)
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
        reply = await self._store.run(self._take, keys, arguments, self._timeout_s)
        with self._store.reading():
            granted, now, *values = reply
            states = limit_states(values)
            if len(states) != len(demands) or (not int(granted) and all(state.ok for state in states)):
                raise ValueError
            return TakeResult(bool(int(granted)), states, int(now))

    async def settle(self, returns: Sequence[Return]) -> None:
        keys = [self._quotas + item.key for item in returns]
        await self._store.run(self._settle, keys, settle_arguments(returns), self._timeout_s)

    async def beat(self, gateway: str, places: Sequence[tuple[str, str]]) -> int:
        keys = [self._gateways, *(self._quotas + key for key, _ in places)]
        arguments: list[Word] = [gateway, self._lease_ms, *(member for _, member in places)]
        reply = await self._store.run(self._beat, keys, arguments, self._timeout_s)
        with self._store.reading():
            if not 0 < int(reply) <= MAX_GATEWAYS:
                raise ValueError
            return int(reply)


def take_arguments(demands: Sequence[Demand], lease_ms: int) -> list[Any]:
    """Return the arguments of `TAKE`, eight per demand."""
    arguments: list[Any] = []
    for demand in demands:
        if isinstance(demand, PacedLimit):
            arguments += ["pace", repr(demand.cost_us), repr(demand.burst_us), "", "", repr(demand.floor_us)]
            arguments += [demand.reservation, lease_ms]
        elif isinstance(demand, Slot):
            arguments += ["place", demand.places, lease_ms, demand.member, "", "", "", ""]
        elif isinstance(demand, Cost):
            soft = "soft" if demand.soft else ""
            arguments += ["spend", demand.cap, demand.amount, demand.window, soft, demand.floor_amount]
            arguments += [demand.reservation, lease_ms]
        else:
            assert isinstance(demand, LimitPart)
            arguments += ["part", repr(demand.share), "", "", "", "", "", ""]
    return arguments


def limit_states(values: Sequence[Any]) -> tuple[LimitState, ...]:
    """Return the outcomes in the reply of `TAKE`, three values per demand."""
    triples = zip(values[::3], values[1::3], values[2::3], strict=True)
    return tuple(LimitState(bool(ok), int(level), int(reserved)) for ok, level, reserved in triples)


def settle_arguments(returns: Sequence[Return]) -> list[Word]:
    """Return the arguments of `SETTLE`, four per return."""
    return [word for item in returns for word in (item.kind, repr(item.amount), item.of, item.reservation)]
