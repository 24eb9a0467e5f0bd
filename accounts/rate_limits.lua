-- Rate limits in Redis. One call is a batch of operations of one process; each takes effect as a whole or not
-- at all. rate_limits.py is the only caller.
--
--   <prefix>limit:…:requests:…, …:tokens:…   leaky buckets (GCRA), as MessagePack
--   <prefix>limit:…:running:…                sorted sets: running generations by the end of their lease
--
-- ARGV[1]: the operations, as MessagePack; they name keys in full. Times are this server's, in microseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Below this a scale would lose its precision.
local LEAST_SCALE = 1e-200

-- A bucket as it is now:
--   debt       what was taken and time has not paid for; it falls by `limit` in each `window`
--   reserved   the part of the debt that running requests can still give back
--   scale      what is left of each token reserved when the scale was 1
--   since      when the bucket was last new or empty; requests that reserved before give nothing back. After
--              this server's clock was set back, `since` is now at most: some of them then do, from what
--              others have reserved
-- Time pays first for what is not reserved. Then it pays for all reservations in proportion. `reserved` never
-- exceeds the debt, so requests that ran long can't give back together, in one moment, more than the limit
-- allows to be used in it.
local function pay(bucket, amount)
  bucket.debt = math.max(0, bucket.debt - amount)
  if bucket.reserved > bucket.debt then
    bucket.reserved, bucket.scale = bucket.debt, bucket.scale * bucket.debt / bucket.reserved
  end
  if bucket.scale < LEAST_SCALE then bucket.reserved, bucket.scale, bucket.since = 0, 1, now end
end

local function open(key, limit, window)
  local bucket = {key = key, window = window, limit = limit, debt = 0, reserved = 0, scale = 1, since = now}
  local packed = redis.call('GET', key)
  if packed then
    local at
    bucket.limit, at, bucket.debt, bucket.reserved, bucket.scale, bucket.since =
      unpack(cmsgpack.unpack(packed))
    bucket.is_outdated = at > now -- this server's clock was ahead
    bucket.since = math.min(bucket.since, now)
    pay(bucket, math.max(0, now - at) * bucket.limit / window)
  end
  return bucket
end

-- The bucket under the limit that holds now. A debt to a much higher one would else take days to pay.
local function open_under(limit, key, window)
  local bucket = open(key, limit, window)
  if bucket.limit ~= limit then
    bucket.limit, bucket.is_outdated = limit, true
    pay(bucket, math.max(0, bucket.debt - limit))
  end
  return bucket
end

-- How long until `amount` has passed through the bucket.
local function duration(bucket, amount)
  return math.max(0, amount * bucket.window / bucket.limit)
end

-- How long until there is room, 0 when there is. A request larger than the limit gets into an empty bucket,
-- and owes all of it.
local function wait(bucket, amount)
  return duration(bucket, bucket.debt + math.min(amount, bucket.limit) - bucket.limit)
end

-- A bucket that is paid off is not kept. Beyond 2^53 a number would have an exponent, which SET refuses.
local function save(bucket)
  local packed = cmsgpack.pack({bucket.limit, now, bucket.debt, bucket.reserved, bucket.scale, bucket.since})
  local paid_in_ms = math.ceil(duration(bucket, bucket.debt) / 1000)
  redis.call('SET', bucket.key, packed, 'PX', math.min(math.max(1, paid_in_ms), 2 ^ 53))
end

local function charge(bucket, amount, is_reserved)
  bucket.debt = bucket.debt + amount
  if is_reserved then bucket.reserved = bucket.reserved + amount end
  save(bucket)
end

-- A lease granted while this server's clock was ahead ends a lease from now at the latest; its holder may
-- live and renew it.
local function is_full(key, most, lease_ms)
  if redis.call('ZCARD', key) < most then return false end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local latest = now + lease_ms * 1000
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, latest + 1, '+inf')) do
    redis.call('ZADD', key, latest, id)
  end
  return redis.call('ZCARD', key) >= most
end

local function grant_lease(key, id, lease_ms)
  redis.call('ZADD', key, now + lease_ms * 1000, id)
  redis.call('PEXPIRE', key, lease_ms)
end

-- Take from all limits or from none. Answers
--   1. which limit refuses: the one to wait longest for, rates before leases; 0 for none
--   2. how many ms to wait
--   3. of each rate: how much remains, the ms until it is all there again, and the mark that `release` needs
local function take(id, lease_ms, wanted, leases, is_dry_run)
  local buckets, refusing, longest = {}, 0, 0
  for i, want in ipairs(wanted) do
    buckets[i] = open_under(want.limit, want.key, want.window)
    local us = wait(buckets[i], want.amount)
    if us > longest then refusing, longest = i, us end
  end
  for i, lease in ipairs(leases) do
    if refusing == 0 and is_full(lease[1], lease[2], lease_ms) then refusing = #wanted + i end
  end
  if refusing == 0 and not is_dry_run then
    for i, want in ipairs(wanted) do charge(buckets[i], want.amount, want.is_reserved) end
    for _, lease in ipairs(leases) do grant_lease(lease[1], id, lease_ms) end
  end
  -- A request that tokens or leases refuse takes one from its key's own requests, if they have room; the wait
  -- covers that.
  if refusing > #wanted or (refusing > 0 and wanted[refusing].is_reserved) then
    for i, want in ipairs(wanted) do
      if want.counts_refused and wait(buckets[i], want.amount) == 0 then
        charge(buckets[i], want.amount)
        longest = math.max(longest, wait(buckets[i], want.amount))
      end
    end
  end
  local statuses = {}
  for i, bucket in ipairs(buckets) do
    local remaining = math.max(0, math.floor(bucket.limit - bucket.debt))
    local reset_ms = math.ceil(duration(bucket, bucket.debt) / 1000)
    statuses[i] = {remaining, reset_ms, string.format('%.17g %d', bucket.scale, now)}
    -- From now on time pays at the new limit's rate and by this clock, or the wait would be too short.
    if refusing > 0 and bucket.is_outdated then save(bucket) end
  end
  return {refusing, math.ceil(longest / 1000), statuses}
end

-- End a request: its leases, and what time has not paid for of the amounts that it did not use. An amount
-- beyond what it took is charged.
local function release(id, leases, charges)
  for _, key in ipairs(leases) do redis.call('ZREM', key, id) end
  for _, charged in ipairs(charges) do
    local key, limit, window, mark, took, used = unpack(charged)
    local bucket, share = open(key, limit, window), 0
    local scale, taken_at = string.match(mark, '(%S+) (%S+)')
    if tonumber(taken_at) >= bucket.since then
      share = math.min(bucket.reserved, took * bucket.scale / tonumber(scale))
    end
    bucket.reserved = bucket.reserved - share
    bucket.debt = math.max(0, bucket.debt - math.min(took - used, share))
    -- A Redis that is full refuses SET, except to a script that has written already.
    redis.call('DEL', key)
    save(bucket)
  end
  return 0
end

local function renew(lease_ms, leases)
  for key, ids in pairs(leases) do
    for _, id in ipairs(ids) do grant_lease(key, id, lease_ms) end
  end
  return 0
end

-- What is used of each rate, and how many leases each key has. Changes nothing.
local function use(rates, leases)
  local used, running = {}, {}
  for i, rate in ipairs(rates) do
    used[i] = math.min(rate.limit, math.ceil(open_under(rate.limit, rate.key, rate.window).debt))
  end
  for i, key in ipairs(leases) do running[i] = redis.call('ZCOUNT', key, now, '+inf') end
  return {used, running}
end

-- Takes come last: they find the room that is released in the same moment, and one that a full Redis refuses,
-- which ends the script, keeps nobody from releasing.
local operations, replies = {take = take, release = release, renew = renew, use = use}, {}
local asked = cmsgpack.unpack(ARGV[1])
for _, is_take in ipairs({false, true}) do
  for i, operation in ipairs(asked) do
    if (operation[1] == 'take') == is_take then
      replies[i] = operations[operation[1]](unpack(operation, 2))
    end
  end
end
return replies
