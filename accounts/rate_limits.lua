-- Rate limits in Redis: several operations of one process, each of them all or nothing. rate_limits.py is the only caller.
--
--   <prefix>…:requests:… and :tokens:…   buckets that leak: what has been charged and not yet been paid by time is debt
--   <prefix>…:running:…                  sorted sets of the generations that run, by the end of their leases
--
-- ARGV: the operations, as MessagePack; they name keys in full. Every time is this server's, in microseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- A bucket as it is now. One that nobody owes anything to is not kept; `born` tells a later one of that name from it.
local function open(key, limit, window)
  local packed = redis.call('GET', key)
  if not packed then
    return {key = key, window = window, limit = limit, born = now, charged = 0, debt = 0}
  end
  local known_limit, born, charged, debt, at = struct.unpack('<ddddd', packed)
  debt = math.max(0, debt - math.max(0, now - at) * known_limit / window)
  return {key = key, window = window, limit = known_limit, born = born, charged = charged, debt = debt}
end

-- The bucket under the limit that holds now. What was owed to a much higher one would else be paid off for days.
local function open_under(limit, key, window)
  local bucket = open(key, limit, window)
  if bucket.limit ~= limit then
    bucket.limit, bucket.debt = limit, math.min(bucket.debt, limit)
  end
  return bucket
end

local function keep(bucket)
  local packed = struct.pack('<ddddd', bucket.limit, bucket.born, bucket.charged, bucket.debt, now)
  local paid_in_ms = bucket.debt * bucket.window / bucket.limit / 1000
  redis.call('SET', bucket.key, packed, 'PX', math.max(1, math.ceil(paid_in_ms)))
end

local function charge(bucket, amount)
  bucket.charged, bucket.debt = bucket.charged + amount, bucket.debt + amount
end

-- Time pays for the oldest charge first. What it has paid for is not given back: or else requests that ran long could give back
-- together, in one moment, far more than the limit allows to be used in it.
local function give_back_unused(bucket, unused, born, charged)
  if bucket.born == born then
    local unpaid = bucket.debt - (bucket.charged - charged)
    bucket.debt = bucket.debt - math.max(0, math.min(unused, unpaid))
  end
end

-- How long until there is room, 0 when there is. What is larger than the whole limit finds room when nothing is owed, and owes it all.
local function wait(bucket, amount)
  local over = bucket.debt + math.min(amount, bucket.limit) - bucket.limit
  return math.max(0, over * bucket.window / bucket.limit)
end

-- Leases that have ended are looked for only where they would matter.
local function is_full(key, most)
  if redis.call('ZCARD', key) < most then return false end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  return redis.call('ZCARD', key) >= most
end

local function standing(bucket)
  local remaining = math.max(0, math.floor(bucket.limit - bucket.debt))
  return {remaining, math.ceil(bucket.debt * bucket.window / bucket.limit / 1000), bucket.born, bucket.charged}
end

-- Answers which limit refuses (the one to wait longest for; 0 for none), how many ms to wait, and how each bucket stands.
local function take(member, lease_ms, wanted, running)
  local buckets, refusing, longest = {}, 0, 0
  for i, want in ipairs(wanted) do
    buckets[i] = open_under(want[2], want[1], want[3])
    local us = wait(buckets[i], want[4])
    if us > longest then refusing, longest = i, us end
  end
  for i, slot in ipairs(running) do
    if refusing == 0 and is_full(slot[1], slot[2]) then refusing = #wanted + i end
  end
  if refusing == 0 then
    for i, want in ipairs(wanted) do
      charge(buckets[i], want[4])
      keep(buckets[i])
    end
    for _, slot in ipairs(running) do
      redis.call('ZADD', slot[1], now + lease_ms * 1000, member)
      redis.call('PEXPIRE', slot[1], lease_ms)
    end
  end
  local standings = {}
  for i, bucket in ipairs(buckets) do standings[i] = standing(bucket) end
  return {refusing, math.ceil(longest / 1000), standings}
end

local function give_back(member, unused, marks, running)
  for _, mark in ipairs(marks) do
    local key, limit, window, born, charged = unpack(mark)
    local bucket = open(key, limit, window)
    if unused > 0 then give_back_unused(bucket, unused, born, charged) else charge(bucket, -unused) end
    keep(bucket)
  end
  for _, key in ipairs(running) do redis.call('ZREM', key, member) end
  return 0
end

-- Only what is still there: a slot that was given back a moment ago must not come to life again.
local function renew(lease_ms, running)
  for key, members in pairs(running) do
    for _, member in ipairs(members) do redis.call('ZADD', key, 'XX', now + lease_ms * 1000, member) end
    redis.call('PEXPIRE', key, lease_ms)
  end
  return 0
end

local operations, replies = {take = take, give_back = give_back, renew = renew}, {}
for i, operation in ipairs(cmsgpack.unpack(ARGV[1])) do
  replies[i] = operations[operation[1]](unpack(operation, 2))
end
return replies
