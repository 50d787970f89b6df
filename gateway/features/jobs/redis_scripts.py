"""The steps of the job queue, each as one script, so that a killed process never leaves half a step.

KEYS[1] is the prefix of all keys.

- `job:ID` is the hash of a job.
- `line:PRIORITY:TENANT` is the list of a tenant's waiting jobs. `ring:PRIORITY` is the list of tenants with waiting
  jobs. A claim takes the first tenant of the ring and the first job of that line. It puts the tenant at the ring's end
  if its line is not empty.
- `stream:PRIORITY` has one message per running job, pending in the group `workers`. The stream records the job's worker
  and its last heartbeat.
- `delayed` has the jobs that wait for their next attempt, by due time.
- `active` has all unfinished jobs, by arrival. `finished` and `dead` have the others, by expiry.

In a cluster the prefix has a hash tag, so all keys are in its slot.
"""

HEAD = """
local P = KEYS[1]
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local function ms(value) return string.format('%.0f', value) end
local function job(id) return P .. 'job:' .. id end
local function stream(prio) return P .. 'stream:' .. prio end
local function queue(id, prio, tenant)
  if redis.call('RPUSH', P .. 'line:' .. prio .. ':' .. tenant, id) == 1 then
    redis.call('RPUSH', P .. 'ring:' .. prio, tenant)
  end
end
local function unclaim(prio, entry)
  redis.call('XACK', stream(prio), 'workers', entry)
  redis.call('XDEL', stream(prio), entry)
end
local function enter(id, tenant, size, created)
  redis.call('ZADD', P .. 'active', created, id)
  redis.call('HINCRBY', P .. 'tenants', tenant, 1)
  redis.call('INCRBY', P .. 'bytes', size)
end
local function over(id, status, keep, dead)
  local f = redis.call('HMGET', job(id), 'tenant', 'size', 'webhook')
  redis.call('ZREM', P .. 'active', id)
  if redis.call('HINCRBY', P .. 'tenants', f[1], -1) <= 0 then redis.call('HDEL', P .. 'tenants', f[1]) end
  redis.call('DECRBY', P .. 'bytes', f[2])
  redis.call('HSET', job(id), 'status', status, 'finished', ms(now), 'token', '0', 'dead', dead and '1' or '0')
  if not dead then redis.call('HDEL', job(id), 'record') end
  redis.call('PEXPIRE', job(id), keep)
  redis.call('ZADD', P .. (dead and 'dead' or 'finished'), ms(now + keep), id)
  if f[3] ~= '' then redis.call('ZADD', P .. 'webhooks', ms(now), id) end
end
"""
# ARGV: id, record, tenant, priority, size, webhook, idempotency key, digest, ms to keep the key, max queued, max queued
# per tenant, max bytes, digests of its subjects.
ACCEPT = (
    HEAD
    + """
local id, record, tenant, prio, size, webhook, key, digest = unpack(ARGV, 1, 8)
if key ~= '' then
  local known = redis.call('HMGET', P .. 'key:' .. key, 'id', 'digest')
  if known[1] and redis.call('EXISTS', job(known[1])) == 1 then
    return {known[2] == digest and 'known' or 'conflict', known[1]}
  end
end
if redis.call('ZCARD', P .. 'active') >= tonumber(ARGV[10]) then return {'full', ''} end
if tonumber(redis.call('HGET', P .. 'tenants', tenant) or '0') >= tonumber(ARGV[11]) then return {'tenant-full', ''} end
if tonumber(redis.call('GET', P .. 'bytes') or '0') + tonumber(size) > tonumber(ARGV[12]) then return {'full', ''} end
redis.call('HSET', job(id), 'record', record, 'tenant', tenant, 'priority', prio, 'size', size, 'webhook', webhook,
  'status', 'queued', 'created', ms(now), 'attempts', '0', 'token', '0')
if ARGV[13] ~= '' then redis.call('HSET', job(id), 'subjects', ARGV[13]) end
enter(id, tenant, size, ms(now))
queue(id, prio, tenant)
if key ~= '' then
  redis.call('HSET', P .. 'key:' .. key, 'id', id, 'digest', digest)
  redis.call('PEXPIRE', P .. 'key:' .. key, ARGV[9])
end
return {'accepted', id}
"""
)
# ARGV: worker, number of jobs, visibility ms, attempts, ms to keep a dead job, whether to look for lost ones. Returns
# five values per job: record, token, attempt, age in ms, whether its worker was lost. Every eighth turn the lowest
# priority goes first, so that it does not starve.
CLAIM = (
    HEAD
    + """
local worker, most, visibility, attempts, keep, lost = unpack(ARGV)
most = tonumber(most)
local out = {}
local function begin(id, prio, entry)
  local f = redis.call('HMGET', job(id), 'record', 'created', 'attempts', 'status')
  if not f[1] or (f[4] ~= 'queued' and f[4] ~= 'running') then return unclaim(prio, entry) end
  if tonumber(f[3]) >= tonumber(attempts) then
    redis.call('HSET', job(id), 'error', 'its workers went away: ' .. f[3] .. ' attempts, no answer')
    unclaim(prio, entry)
    return over(id, 'failed', keep, true)
  end
  local token = redis.call('INCR', P .. 'token')
  local attempt = redis.call('HINCRBY', job(id), 'attempts', 1)
  redis.call('HSET', job(id), 'status', 'running', 'token', ms(token), 'entry', entry, 'started', ms(now))
  local age, was_lost = ms(now - tonumber(f[2])), f[4] == 'running' and 1 or 0
  for _, value in ipairs({f[1], token, attempt, age, was_lost}) do out[#out + 1] = value end
end
for prio = 0, 2 do
  if lost == '1' and #out < 5 * most and redis.call('EXISTS', stream(prio)) == 1 then
    local cursor = redis.call('GET', P .. 'cursor:' .. prio) or '0-0'
    local found = redis.call('XAUTOCLAIM', stream(prio), 'workers', worker, visibility, cursor, 'COUNT',
      most - #out / 5)
    if found[1] ~= cursor then redis.call('SET', P .. 'cursor:' .. prio, found[1]) end
    for _, entry in ipairs(found[2]) do begin(entry[2][2], prio, entry[1]) end
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'delayed', '-inf', ms(now), 'LIMIT', 0, 100)) do
  redis.call('ZREM', P .. 'delayed', id)
  local f = redis.call('HMGET', job(id), 'priority', 'tenant')
  if f[1] then queue(id, f[1], f[2]) end
end
while #out < 5 * most and redis.call('EXISTS', P .. 'ring:0', P .. 'ring:1', P .. 'ring:2') > 0 do
  local turn = redis.call('INCR', P .. 'turn')
  for step = 0, 2 do
    local prio = turn % 8 == 0 and 2 - step or step
    local tenant = redis.call('LPOP', P .. 'ring:' .. prio)
    if tenant then
      local line = P .. 'line:' .. prio .. ':' .. tenant
      local id = redis.call('LPOP', line)
      if redis.call('LLEN', line) > 0 then redis.call('RPUSH', P .. 'ring:' .. prio, tenant) end
      if id then
        if redis.call('EXISTS', stream(prio)) == 0 then
          redis.call('XGROUP', 'CREATE', stream(prio), 'workers', '0', 'MKSTREAM')
        end
        redis.call('XADD', stream(prio), '*', 'id', id)
        local read = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', 1, 'STREAMS', stream(prio), '>')
        begin(id, prio, read[1][2][1][1])
      end
      break
    end
  end
end
return out
"""
)
# ARGV: worker, then id and token of each. Returns 1 for each claim still held.
BEAT = (
    HEAD
    + """
local held = {}
for i = 2, #ARGV, 2 do
  local f = redis.call('HMGET', job(ARGV[i]), 'token', 'priority', 'entry')
  held[#held + 1] = f[1] == ARGV[i + 1] and 1 or 0
  if f[1] == ARGV[i + 1] then redis.call('XCLAIM', stream(f[2]), 'workers', ARGV[1], 0, f[3], 'JUSTID') end
end
return held
"""
)
# ARGV: id, token, status, result, error, ms to keep, dead.
CONCLUDE = (
    HEAD
    + """
local f = redis.call('HMGET', job(ARGV[1]), 'token', 'priority', 'entry')
if f[1] ~= ARGV[2] then return 0 end
unclaim(f[2], f[3])
if ARGV[4] ~= '' then redis.call('HSET', job(ARGV[1]), 'result', ARGV[4]) end
if ARGV[5] ~= '' then redis.call('HSET', job(ARGV[1]), 'error', ARGV[5]) end
over(ARGV[1], ARGV[3], tonumber(ARGV[6]), ARGV[7] == '1')
return 1
"""
)
# ARGV: id, token, delay in ms, whether it counts as an attempt, error.
PUT_BACK = (
    HEAD
    + """
local f = redis.call('HMGET', job(ARGV[1]), 'token', 'priority', 'entry', 'tenant')
if f[1] ~= ARGV[2] then return 0 end
unclaim(f[2], f[3])
redis.call('HSET', job(ARGV[1]), 'status', 'queued', 'token', '0', 'error', ARGV[5])
if ARGV[4] == '0' then redis.call('HINCRBY', job(ARGV[1]), 'attempts', -1) end
if tonumber(ARGV[3]) > 0 then redis.call('ZADD', P .. 'delayed', ms(now + ARGV[3]), ARGV[1])
else queue(ARGV[1], f[2], f[4]) end
return 1
"""
)
# ARGV: ids. Removes the jobs in whatever state they are; the worker of a running one loses its claim.
ERASE = (
    HEAD
    + """
local erased = 0
for _, id in ipairs(ARGV) do
  local f = redis.call('HMGET', job(id), 'tenant', 'status', 'priority', 'entry')
  if f[1] then
    if f[2] == 'queued' then
      redis.call('ZREM', P .. 'delayed', id)
      local line = P .. 'line:' .. f[3] .. ':' .. f[1]
      if redis.call('LREM', line, 1, id) == 1 and redis.call('EXISTS', line) == 0 then
        redis.call('LREM', P .. 'ring:' .. f[3], 1, f[1])
      end
    elseif f[2] == 'running' then unclaim(f[3], f[4]) end
    if f[2] == 'queued' or f[2] == 'running' then over(id, 'cancelled', 1000, false) end
    for _, name in ipairs({'finished', 'dead', 'webhooks'}) do redis.call('ZREM', P .. name, id) end
    redis.call('DEL', job(id))
    erased = erased + 1
  end
end
return erased
"""
)
# ARGV: id, tenant, ms to keep.
CANCEL = (
    HEAD
    + """
local f = redis.call('HMGET', job(ARGV[1]), 'tenant', 'status', 'priority', 'entry')
if f[1] ~= ARGV[2] then return 0 end
if f[2] == 'queued' then
  redis.call('ZREM', P .. 'delayed', ARGV[1])
  local line = P .. 'line:' .. f[3] .. ':' .. f[1]
  if redis.call('LREM', line, 1, ARGV[1]) == 1 and redis.call('EXISTS', line) == 0 then
    redis.call('LREM', P .. 'ring:' .. f[3], 1, f[1])
  end
elseif f[2] == 'running' then unclaim(f[3], f[4])
else return 1 end
over(ARGV[1], 'cancelled', tonumber(ARGV[3]), false)
return 1
"""
)
# ARGV: number of webhooks, ms to hold them, number per tenant, ms until those beyond it are due again, number to read;
# then tenants, each with the number that it has already. Returns two values per webhook: id, attempt.
DUE_WEBHOOKS = (
    HEAD
    + """
local out, running = {}, {}
for i = 6, #ARGV, 2 do running[ARGV[i]] = tonumber(ARGV[i + 1]) end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'webhooks', '-inf', ms(now), 'LIMIT', 0, ARGV[5])) do
  if #out == 2 * ARGV[1] then break end
  local tenant = redis.call('HGET', job(id), 'tenant')
  local many = tenant and running[tenant] or 0
  if not tenant then redis.call('ZREM', P .. 'webhooks', id)
  elseif many >= tonumber(ARGV[3]) then redis.call('ZADD', P .. 'webhooks', ms(now + ARGV[4]), id)
  else
    running[tenant] = many + 1
    redis.call('ZADD', P .. 'webhooks', ms(now + ARGV[2]), id)
    out[#out + 1] = id
    out[#out + 1] = redis.call('HINCRBY', job(id), 'told', 1)
  end
end
return out
"""
)
# ARGV: id, outcome, ms until the next attempt, or empty for none.
WEBHOOK_TOLD = (
    HEAD
    + """
if redis.call('EXISTS', job(ARGV[1])) == 1 then redis.call('HSET', job(ARGV[1]), 'webhook_outcome', ARGV[2]) end
if ARGV[3] == '' then redis.call('ZREM', P .. 'webhooks', ARGV[1])
else redis.call('ZADD', P .. 'webhooks', 'XX', ms(now + ARGV[3]), ARGV[1]) end
return 1
"""
)
# ARGV: id, whether to retry it (otherwise it is deleted).
RAISE = (
    HEAD
    + """
local id = ARGV[1]
if redis.call('ZREM', P .. 'dead', id) == 0 then return 0 end
local f = redis.call('HMGET', job(id), 'tenant', 'size', 'priority', 'record')
redis.call('ZREM', P .. 'webhooks', id)
if ARGV[2] == '0' or not f[4] then
  redis.call('DEL', job(id))
  return ARGV[2] == '0' and 1 or 0
end
redis.call('PERSIST', job(id))
redis.call('HSET', job(id), 'status', 'queued', 'attempts', '0', 'token', '0', 'dead', '0', 'told', '0',
  'created', ms(now))
redis.call('HDEL', job(id), 'error', 'result', 'finished', 'started')
enter(id, f[1], f[2], ms(now))
queue(id, f[3], f[1])
return 1
"""
)
# ARGV: worker, ms after which a consumer without jobs is deleted.
SWEEP = (
    HEAD
    + """
for _, name in ipairs({'finished', 'dead'}) do
  local gone = redis.call('ZRANGEBYSCORE', P .. name, '-inf', ms(now), 'LIMIT', 0, 500)
  if #gone > 0 then redis.call('ZREM', P .. name, unpack(gone)) end
end
for prio = 0, 2 do
  if redis.call('EXISTS', stream(prio)) == 1 then
    for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream(prio), 'workers')) do
      local f = {}
      for i = 1, #consumer, 2 do f[consumer[i]] = consumer[i + 1] end
      if f['pending'] == 0 and f['name'] ~= ARGV[1] and f['idle'] > tonumber(ARGV[2]) then
        redis.call('XGROUP', 'DELCONSUMER', stream(prio), 'workers', f['name'])
      end
    end
  end
end
"""
)
# Returns queued, running, dead, bytes, webhooks, age of the oldest in ms.
COUNTS = (
    HEAD
    + """
local running = 0
for prio = 0, 2 do running = running + redis.call('XLEN', stream(prio)) end
local oldest = redis.call('ZRANGE', P .. 'active', 0, 0, 'WITHSCORES')
return {redis.call('ZCARD', P .. 'active') - running, running, redis.call('ZCARD', P .. 'dead'),
  tonumber(redis.call('GET', P .. 'bytes') or '0'), redis.call('ZCARD', P .. 'webhooks'),
  oldest[2] and now - tonumber(oldest[2]) or 0}
"""
)
