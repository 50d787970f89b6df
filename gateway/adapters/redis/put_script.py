"""How an answer is put into the store: the script, and a call of it as it goes over the wire.

hiredis takes 4 us to pack such a call, of which most is the same each time; putting the rest into its place takes 1
(docs/decisions/0054).
"""

from __future__ import annotations

from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.store_client import Script

# KEYS: the entry, its lease, the list of all. ARGV: the token of the lease, 0 for none; the expiry in ms, and as it is
# listed; the fingerprint; the record, the scope, what it is worth; the vector and its embedder, both empty for none;
# and a command: what others are told. The names of the fields are here, and not sent each time.
#
# Fencing: a lease that is in force may always write. One that was lost may not, where what lies there may be newer: an
# entry of a later lease, or of none. HSET is the first step that writes: a server without room refuses it, and nothing
# else has been done then. Where it finds no field of the entry there is nothing of an older answer to take away.
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


def _word(said: str | bytes) -> bytes:
    data = said.encode() if isinstance(said, str) else said
    return b"$%d\r\n%b\r\n" % (len(data), data)


_ANY = b"$%d\r\n%b\r\n"  # a word that is put in, behind its length
_ENTRY, _LEASE, _LIST = ONE_SERVER.of_put("")
_CALL = b"".join(
    [
        b"*15\r\n", _word("EVALSHA"), _word(PUT.digest), _word("3"),
        b"$%d\r\n", _ENTRY.encode(), b"%b\r\n", b"$%d\r\n", _LEASE.encode(), b"%b\r\n", _word(_LIST),
        _word("0"), *[_ANY] * 8,
    ]
)  # fmt: skip


def packed_put(
    fingerprint: str,
    scope: str,
    expires_ms: int,
    listed: bytes,
    record: bytes,
    worth: bytes,
    vector: bytes,
    embedder: bytes,
) -> bytes:
    """A call of `PUT` without a lease, on one server, where nobody else is told."""
    name, within, expires = fingerprint.encode(), scope.encode(), b"%d" % expires_ms
    size = len(name)
    return _CALL % (
        len(_ENTRY) + size, name, len(_LEASE) + size, name, len(expires), expires, len(listed), listed, size, name,
        len(record), record, len(within), within, len(worth), worth, len(vector), vector, len(embedder), embedder,
    )  # fmt: skip
