"""The Lua scripts of the streams: Redis runs each as a whole, with no other command in between."""

import hashlib

from chatapi.delta_stream import RUN_TTL_MS
from chatapi.transports.redis_stream.presence import INBOX_TTL_MS

# Writes each frame (`Entry.frame`) as an entry of its generation's log, and the frames that the logs accept
# as one entry of the inbox. Returns the ids of the generations whose log has a newer fence.
# ARGV: the prefix of all keys; how many ms a log outlives its end; then pairs of an inbox ('' for none) and
# the frames of its clients.
PUBLISH = """
local prefix, refused = ARGV[1], {}
local function record(id, fence, seq, is_last, batch)
  local key, name = prefix .. 'log:' .. id, string.format('%d-%d', fence, seq)
  local reply = redis.pcall('XADD', key, 'NOMKSTREAM', name, 'd', batch)
  if not reply then
    -- A new log: the generation is new, Redis has lost its log, or the holder does not know that another one
    -- has ended it long ago. Each log must expire.
    reply = redis.pcall('XADD', key, name, 'd', batch)
    redis.call('PEXPIRE', key, RUN_TTL_MS)
  end
  if type(reply) == 'table' and reply.err then
    local top = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
    local held, last = string.match(top[1] and top[1][1] or '0-0', '^(%d+)-(%d+)$')
    held, last = tonumber(held), tonumber(last)
    if held > fence then
      refused[#refused + 1] = id
      return false
    end
    -- A repeated write is not passed on again. Anything else, such as a full Redis, is an error: otherwise
    -- deltas would be lost and nobody would know.
    return not (held == fence and last >= seq) and reply
  end
  if is_last == 1 then
    -- If the job is already deleted, only shorten the expiry of the log, never extend it.
    local is_kept = redis.call('UNLINK', prefix .. 'job:' .. id) == 1
    for _, kept in ipairs({key, prefix .. 'state:' .. id}) do
      redis.call('PEXPIRE', kept, ARGV[2], unpack(is_kept and {} or {'LT'}))
    end
  end
  return true
end
for i = 3, #ARGV, 2 do
  local frames, passed, at = ARGV[i + 1], {}, 1
  while at <= #frames do
    local id, fence, seq, is_last, length, start = struct.unpack('>c32I8I4I1I4', frames, at)
    local recorded = record(id, fence, seq, is_last, string.sub(frames, start, start + length - 1))
    if type(recorded) == 'table' then return recorded end
    if recorded then passed[#passed + 1] = string.sub(frames, at, start + length - 1) end
    at = start + length
  end
  if ARGV[i] ~= '' and #passed > 0 then
    local inbox = prefix .. 'inbox:' .. ARGV[i]
    redis.call('XADD', inbox, 'MAXLEN', '~', 1024, '*', 'b', table.concat(passed))
    redis.call('PEXPIRE', inbox, INBOX_TTL_MS, 'NX')
  end
end
return refused
""".replace("RUN_TTL_MS", str(RUN_TTL_MS)).replace("INBOX_TTL_MS", str(INBOX_TTL_MS))
PUBLISH_SHA1 = hashlib.sha1(PUBLISH.encode(), usedforsecurity=False).hexdigest()

# Returns the next cursor, and the ids of the generations whose terminal delta was not published yet: they
# have a job, or a log with more time left than it gets with the terminal delta.
# ARGV: the cursor; the prefix of all keys; how many ms a log outlives its end.
LASTING = """
local page, prefix, found = redis.call('SCAN', ARGV[1], 'COUNT', 100), ARGV[2], {}
for _, key in ipairs(page[2]) do
  local kind, id = string.match(string.sub(key, #prefix + 1), '^(%l+):(%x+)$')
  local is_ours = string.sub(key, 1, #prefix) == prefix and id and #id == 32
  if is_ours and (kind == 'job' or kind == 'log' and redis.call('PTTL', key) > tonumber(ARGV[3])) then
    found[#found + 1] = id
  end
end
return {page[1], found}
"""

# Returns the due members of a sorted set, and makes them due again later.
# KEYS: the set. ARGV: the most members; the ms until they are due again.
TO_STORE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(due) do redis.call('ZADD', KEYS[1], now + ARGV[2], id) end
return due
"""

# Deletes a generation's state, and its log if it has ended; puts it on the list of responses to store. It
# frees more than it writes, so a full Redis executes it, too.
# KEYS: the state; the list; the log if it has ended. ARGV: how many ms the deletion is remembered; the id.
DELETE = """#!lua flags=allow-oom
-- Not unlinked: a process that is storing the response in this moment must see the deletion.
redis.call('SET', KEYS[1], '', 'PX', ARGV[1])
redis.call('ZADD', KEYS[2], 0, ARGV[2])
if KEYS[3] then redis.call('UNLINK', KEYS[3]) end
"""
