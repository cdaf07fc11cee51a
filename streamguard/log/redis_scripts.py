"""What Redis does in one step: a script for each call that must not be divided.

A stream is three keys of one hash slot, `<prefix>{<sid>}:` and

    meta      a hash: info, epoch, tail, first, held (until when its lease does; 0: it was released), created, expires,
              signals, cancelled, crashes (none: 0), and the last checkpoint: state, at
    frames    a stream of Redis: entry `<seq>-1` is frame `seq`, and the first entry is the position before the others,
              so that each position that can be read from is an entry that can be looked at
    signals   a stream of Redis: entry `<number>-1`

A position is written as a cursor without its sid: `7.120.9ae0daaf`; the tail of a sealed stream with its status.

Redis itself would let a log go wrong in three ways: behind a tail that was lost XADD leaves a hole, after a restart it
makes the stream anew, after DEL it takes lower numbers. So each script first looks whether the stream is there as a
whole: as many entries as lie between `first` and `tail`. A stream of which a part is gone is gone.

All times are milliseconds on the server's clock, which stands still within a script. Keys expire by themselves: of a
sealed stream exactly, of a running one somewhat later than they might (`_LATER`), so that not each append has to move
three expiries.
"""

from __future__ import annotations

import hashlib
from typing import Final

__all__ = ["ALL", "APPEND", "CLAIM", "CREATE", "DROP", "ENLIST", "PURGE", "READ", "RELEASE", "RENEW", "SIGNAL",
           "STATE", "TAKE_OVER", "FRAME_COST", "Script"]  # fmt: skip

FRAME_COST: Final = 32  # bytes that an entry counts beside its data, about what Redis needs for it
_KEPT: Final = 0.875  # of `Retention.max_bytes`, after trimming: so that not every further append has to trim
_PAGE_BYTES: Final = 1024 * 1024  # of one page: a server that copies much answers nobody else meanwhile
_PAGE_STEP: Final = 64  # frames between two looks at how many bytes there are
_LATER: Final = 60_000  # ms: at most, and at most a quarter of what it is to be kept


class Script:
    """A script: its text, and the name by which Redis knows it once it was loaded."""

    __slots__ = ("sha", "text")

    def __init__(self, text: str) -> None:
        self.text = text.encode()
        # The name that Redis gives it, not a secret.
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


_STREAM: Final = f"""\
local meta, frames, signals = KEYS[1], KEYS[2], KEYS[3]

local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function id(seq)
  return string.format('%.0f-1', seq)
end

local function place(position)
  local seq, offset = string.match(position, '^(%d+)%.(%d+)')
  return tonumber(seq), tonumber(offset)
end

local function status(tail)
  return string.match(tail, '^%d+%.%d+%.%x+%.(.+)$')
end

local function look()
  local found = redis.call('HMGET', meta, 'epoch', 'tail', 'first', 'expires', 'held')
  if found[1] then
    local count = place(found[2]) - place(found[3]) + 1
    if redis.call('XLEN', frames) == count then return found end
  end
end

local function expire(at)
  redis.call('HSET', meta, 'expires', at)
  redis.call('PEXPIREAT', meta, at)
  redis.call('PEXPIREAT', frames, at)
  redis.call('PEXPIREAT', signals, at)
end

local function keep(time, held, unsealed, expires)
  local least = math.max(held, time + unsealed)
  if least > tonumber(expires) then
    expire(math.floor(least + math.min({_LATER}, (least - time) / 4)))
  end
end
"""


def _script(body: str) -> Script:
    return Script(_STREAM + body)


# info, position zero, ttl, unsealed: 1, or the info of the stream that is there
CREATE: Final = _script("""
local there = redis.call('HGET', meta, 'info')
if there then return there end
-- What is left of one that was evicted. No write else comes before XADD: a full server refuses a script at its first.
if redis.call('EXISTS', frames, signals) > 0 then redis.call('DEL', frames, signals) end
redis.call('XADD', frames, '0-1', 'f', ARGV[2] .. ' ')
local time = now()
local held = time + ARGV[3]
redis.call('HSET', meta, 'info', ARGV[1], 'epoch', '1', 'tail', ARGV[2], 'first', ARGV[2], 'held', held,
           'created', time, 'expires', '0', 'signals', '0')
keep(time, held, ARGV[4], '0')
return 1
""")

# epoch, after, tail, ttl, unsealed, after_end, max_bytes, checkpoint ('' or '+' and state), frames: 1, or a refusal
APPEND: Final = _script(f"""
local found = look()
if not found then return {{'gone'}} end
if found[1] ~= ARGV[1] then return {{'lost', found[1]}} end
local time = now()
local held = time + ARGV[4]

if found[2] ~= ARGV[2] then
  local ended = status(found[2])
  if found[2] == ARGV[3] and #ARGV > 8 and ARGV[2] ~= '' then
    local seq = place(ARGV[2])
    local there = redis.call('XRANGE', frames, id(seq), id(seq))[1]
    -- One that is not there was trimmed by this very append; the tail's checksum is over what stood before, too.
    if not there and seq < place(found[3]) or there and string.sub(there[2][2], 1, #ARGV[2]) == ARGV[2] then
      redis.call('HSET', meta, 'held', held)
      if not ended then keep(time, held, ARGV[5], found[4]) end
      return 1
    end
  end
  if ended then return {{'sealed', found[2]}} end
  return {{'misfit', found[2]}}
end

local seq = place(ARGV[2])
for index = 9, #ARGV do
  seq = seq + 1
  redis.call('XADD', frames, 'NOMKSTREAM', id(seq), 'f', ARGV[index])
end
redis.call('HSET', meta, 'tail', ARGV[3], 'held', held)
if ARGV[8] ~= '' then redis.call('HSET', meta, 'at', ARGV[3], 'state', string.sub(ARGV[8], 2)) end
if status(ARGV[3]) then
  expire(time + ARGV[6])
else
  keep(time, held, ARGV[5], found[4])
end

local offset
seq, offset = place(ARGV[3])
local low, before = place(found[3])
if offset - before + {FRAME_COST} * (seq - low) > tonumber(ARGV[7]) then
  local least = offset + {FRAME_COST} * seq - ARGV[7] * {_KEPT}
  local high = seq - 1  -- the last frame stays
  while low < high do
    local middle = math.floor((low + high) / 2)
    local there = redis.call('XRANGE', frames, id(middle), id(middle))[1][2][2]
    local _, at = place(there)
    if at + {FRAME_COST} * middle >= least then high = middle else low = middle + 1 end
  end
  local first = redis.call('XRANGE', frames, id(low), id(low))[1][2][2]
  redis.call('XTRIM', frames, 'MINID', '=', id(low))
  redis.call('HSET', meta, 'first', string.match(first, '^%d+%.%d+%.%x+'))
end
if #ARGV > 8 then redis.call('PUBLISH', frames, ARGV[3]) end
return 1
""")

# epoch, ttl, unsealed: 1, or a refusal
RENEW: Final = _script("""
local found = look()
if not found then return {'gone'} end
if found[1] ~= ARGV[1] then return {'lost', found[1]} end
if status(found[2]) then return {'sealed', found[2]} end
local time = now()
local held = time + ARGV[2]
redis.call('HSET', meta, 'held', held)
keep(time, held, ARGV[3], found[4])
return 1
""")

# epoch: 1
RELEASE: Final = _script("""
if redis.call('HGET', meta, 'epoch') == ARGV[1] then redis.call('HSET', meta, 'held', '0') end
return 1
""")

# epoch, ttl, unsealed: 1, or a refusal
TAKE_OVER: Final = _script("""
local found = look()
if not found then return {'gone'} end
if status(found[2]) then return {'sealed', found[2]} end
local time = now()
if found[1] ~= ARGV[1] or time < tonumber(found[5]) then return {'held', found[1]} end
local held = time + ARGV[2]
redis.call('HSET', meta, 'epoch', string.format('%.0f', found[1] + 1), 'held', held)
if found[5] ~= '0' then redis.call('HINCRBY', meta, 'crashes', 1) end  -- it ran out
keep(time, held, ARGV[3], found[4])
return 1
""")

# kind, payload, the most that are kept: 1, or a refusal
SIGNAL: Final = _script("""
local found = look()
if not found then return {'gone'} end
if ARGV[1] == 'cancel' and status(found[2]) then return {'sealed', found[2]} end
local number = redis.call('HINCRBY', meta, 'signals', 1)
redis.call('XADD', signals, id(number), 'k', ARGV[1], 'p', ARGV[2])
if ARGV[1] == 'cancel' then redis.call('HSETNX', meta, 'cancelled', number) end
if redis.call('XLEN', signals) > tonumber(ARGV[3]) then
  -- The first cancel stays: a producer that looks late must find it.
  local cancel = id(tonumber(redis.call('HGET', meta, 'cancelled') or 0))
  local oldest = redis.call('XRANGE', signals, '-', '+', 'COUNT', 2)
  redis.call('XDEL', signals, oldest[1][1] == cancel and oldest[2][1] or oldest[1][1])
end
redis.call('PEXPIREAT', signals, found[4])
redis.call('PUBLISH', signals, number)
return 1
""")

# none: the time and the hash, or nothing
STATE: Final = _script("""
if not look() then return {} end
return {now(), redis.call('HGETALL', meta)}
""")

# a position, how many frames at most: those behind it, or a megabyte of them, each after its length in four bytes; or,
# where the position is none, tail and first
READ: Final = _script(f"""
local seq, left = place(ARGV[1]), tonumber(ARGV[2])
local there = redis.call('XRANGE', frames, id(seq), id(seq))[1]
if not there or string.sub(there[2][2], 1, #ARGV[1]) ~= ARGV[1] then
  local found = look()
  if not found then return {{'gone'}} end
  return {{'elsewhere', found[2], found[3]}}
end
local page, size = {{}}, 0
while left > 0 and size < {_PAGE_BYTES} do
  local asked = math.min(left, {_PAGE_STEP})
  local entries = redis.call('XRANGE', frames, id(seq + 1), '+', 'COUNT', asked)
  for index = 1, #entries do
    local frame = entries[index][2][2]
    size = size + #frame
    page[#page + 1] = struct.pack('>I4', #frame)
    page[#page + 1] = frame
  end
  if #entries < asked then break end
  seq, left = seq + asked, left - asked
end
return table.concat(page)
""")

# none: whether it was there
PURGE: Final = _script("""
local count = redis.call('DEL', meta)
redis.call('DEL', frames, signals)
redis.call('PUBLISH', frames, 'gone')
redis.call('PUBLISH', signals, 'gone')
return count
""")

# An idempotency key's holder. The one that is to be replaced, or '', and the new one: 1, or the one that is there.
CLAIM: Final = Script("""
local there = redis.call('GET', KEYS[1]) or ''
if there ~= ARGV[1] then return there end
redis.call('SET', KEYS[1], ARGV[2])
return 1
""")

# sid: forget that it holds the key
DROP: Final = Script("""
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
""")

# sid: add it to the streams of a name, or of a principal, in the order of their creation
ENLIST: Final = Script("""
local time = redis.call('TIME')
return redis.call('ZADD', KEYS[1], 'NX', time[1] * 1000000 + time[2], ARGV[1])
""")

ALL: Final = (
    CREATE, APPEND, RENEW, RELEASE, TAKE_OVER, SIGNAL, STATE, READ, PURGE, CLAIM, DROP, ENLIST,
)  # fmt: skip
