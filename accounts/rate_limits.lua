-- Rate limits in Redis: several operations of one process, each of them all or nothing. rate_limits.py is the only caller.
--
--   <prefix>…:requests:… and :tokens:…   buckets that leak: what has been charged and not yet been paid by time is debt; as MessagePack
--   <prefix>…:running:…                  sorted sets of the generations that run, by the end of their leases
--   <prefix>taken:…                      receipts: what a request has taken and can give back, once; as MessagePack. Empty: it may take nothing
--
-- ARGV: the operations, as MessagePack; they name keys in full. Every time is this server's, in microseconds.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- A bucket is a line of charges, the oldest first, and time pays along it. `ended` are the places in it of requests that have ended and
-- are not paid for: {first, last, unused}. What is unused, at the end of a place, nobody owes, and time skips it.

local function debt(bucket)
  local owed = bucket.charged - bucket.paid
  for _, place in ipairs(bucket.ended) do owed = owed - place[3] end
  return math.max(0, owed)
end

local function pay(bucket, amount)
  local place = bucket.ended[1]
  while place and bucket.paid + amount >= place[2] - place[3] do
    amount = amount - (place[2] - place[3] - bucket.paid)
    bucket.paid = place[2]
    table.remove(bucket.ended, 1)
    place = bucket.ended[1]
  end
  bucket.paid = math.min(bucket.charged, bucket.paid + amount)
end

-- A bucket as it is now. One that nobody owes anything to is not kept; `born` tells a later one of that name from it.
local function open(key, limit, window)
  local packed = redis.call('GET', key)
  if not packed then
    return {key = key, window = window, limit = limit, born = now, charged = 0, paid = 0, ended = {}}
  end
  local known_limit, born, charged, paid, at, ended = unpack(cmsgpack.unpack(packed))
  local bucket = {key = key, window = window, limit = known_limit, born = born, charged = charged, paid = paid, ended = ended}
  bucket.is_ahead = at > now
  pay(bucket, math.max(0, now - at) * known_limit / window)
  return bucket
end

-- The bucket under the limit that holds now. What was owed to a much higher one would else be paid off for days.
local function open_under(limit, key, window)
  local bucket = open(key, limit, window)
  if bucket.limit ~= limit then
    bucket.limit, bucket.has_changed = limit, true
    pay(bucket, math.max(0, debt(bucket) - limit))
  end
  return bucket
end

-- Beyond this a number would be written with an exponent, which SET refuses.
local MOST_MS = 2 ^ 53

local function keep(bucket)
  local packed = cmsgpack.pack({bucket.limit, bucket.born, bucket.charged, bucket.paid, now, bucket.ended})
  local paid_in_ms = debt(bucket) * bucket.window / bucket.limit / 1000
  redis.call('SET', bucket.key, packed, 'PX', math.min(math.max(1, math.ceil(paid_in_ms)), MOST_MS))
end

local function charge(bucket, amount)
  bucket.charged = bucket.charged + amount
end

-- Neighbours that have ended are one place, so there are about as many as requests run. The order in which time pays for them is all the
-- same, as none of them can give anything back any more.
local function add_ended(bucket, first, last, unused)
  local ended, at = bucket.ended, 1
  while ended[at] and ended[at][1] < last do at = at + 1 end
  if ended[at] and ended[at][1] == last then
    last, unused = ended[at][2], unused + ended[at][3]
    table.remove(ended, at)
  end
  if at > 1 and ended[at - 1][2] == first then
    at = at - 1
    first, unused = ended[at][1], unused + ended[at][3]
    table.remove(ended, at)
  end
  table.insert(ended, at, {first, last, unused})
  pay(bucket, 0)
end

-- The request that took so much, and was the last charge when so much had been charged, has ended. What time has paid for of it is not
-- given back: or else requests that ran long could give back together, in one moment, far more than the limit allows to be used in it.
local function finish(bucket, took, unused, born, charged)
  if bucket.born == born and charged > bucket.paid then
    add_ended(bucket, charged - took, charged, math.max(0, math.min(unused, charged - bucket.paid)))
  end
  if unused < 0 then
    charge(bucket, -unused)
    add_ended(bucket, bucket.charged + unused, bucket.charged, 0)
  end
end

-- How long until there is room, 0 when there is. What is larger than the whole limit finds room when nothing is owed, and owes it all.
local function wait(bucket, amount)
  local over = debt(bucket) + math.min(amount, bucket.limit) - bucket.limit
  return math.max(0, over * bucket.window / bucket.limit)
end

-- Leases that have ended are looked for only where they would matter. One that was taken while this server's clock was ahead ends a lease
-- from now at the latest; it is not dropped, because whose it is may live and renew it.
local function is_full(key, most, lease_ms)
  if redis.call('ZCARD', key) < most then return false end
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  local latest = now + lease_ms * 1000
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, latest + 1, '+inf')) do redis.call('ZADD', key, latest, member) end
  return redis.call('ZCARD', key) >= most
end

local function standing(bucket)
  local owed = debt(bucket)
  local remaining = math.max(0, math.floor(bucket.limit - owed))
  return {remaining, math.ceil(owed * bucket.window / bucket.limit / 1000)}
end

local function write_receipt(key, receipt_ms, tokens, wanted, buckets, running)
  local marks, places = {}, {}
  for i, bucket in ipairs(buckets) do
    if wanted[i][5] then table.insert(marks, {bucket.key, bucket.limit, bucket.window, bucket.born, bucket.charged}) end
  end
  for i, slot in ipairs(running) do places[i] = slot[1] end
  redis.call('SET', key, cmsgpack.pack({tokens, marks, places}), 'PX', receipt_ms)
end

-- Answers which limit refuses (the one to wait longest for; 0 for none), how many ms to wait, and how each bucket stands. One that was
-- undone before it came takes nothing, and nobody hears its answer.
local function take(member, lease_ms, tokens, wanted, running, receipt, receipt_ms)
  local buckets, refusing, longest = {}, 0, 0
  for i, want in ipairs(wanted) do
    buckets[i] = open_under(want[2], want[1], want[3])
    local us = wait(buckets[i], want[4])
    if us > longest then refusing, longest = i, us end
  end
  for i, slot in ipairs(running) do
    if refusing == 0 and is_full(slot[1], slot[2], lease_ms) then refusing = #wanted + i end
  end
  if refusing == 0 and not (receipt ~= '' and redis.call('EXISTS', receipt) == 1) then
    for i, want in ipairs(wanted) do
      charge(buckets[i], want[4])
      keep(buckets[i])
    end
    if receipt ~= '' then write_receipt(receipt, receipt_ms, tokens, wanted, buckets, running) end
    for _, slot in ipairs(running) do
      redis.call('ZADD', slot[1], now + lease_ms * 1000, member)
      redis.call('PEXPIRE', slot[1], lease_ms)
    end
  end
  -- A request that tokens or places refuse takes one from its key's own requests, where they have room; the wait that it is told covers that.
  if refusing > #wanted or (refusing > 0 and wanted[refusing][5]) then
    for i, want in ipairs(wanted) do
      if want[6] and wait(buckets[i], want[4]) == 0 then
        charge(buckets[i], want[4])
        keep(buckets[i])
        longest = math.max(longest, wait(buckets[i], want[4]))
      end
    end
  end
  local standings = {}
  for i, bucket in ipairs(buckets) do
    standings[i] = standing(bucket)
    -- From now on time pays for it, at this rate: not only once it is as late as this server's clock was when it was kept, and not at
    -- the rate of the limit that was.
    if refusing > 0 and (bucket.is_ahead or bucket.has_changed) then keep(bucket) end
  end
  return {refusing, math.ceil(longest / 1000), standings}
end

-- Answers as `take` does whether these limits have room, and takes nothing.
local function look(wanted)
  local refusing, longest, standings = 0, 0, {}
  for i, want in ipairs(wanted) do
    local bucket = open_under(want[2], want[1], want[3])
    local us = wait(bucket, want[4])
    if us > longest then refusing, longest = i, us end
    standings[i] = standing(bucket)
    if us > 0 and (bucket.is_ahead or bucket.has_changed) then keep(bucket) end
  end
  return {refusing, math.ceil(longest / 1000), standings}
end

-- Who has given back in this call: what was asked beside it in the same moment does not bring its place to life again.
local has_given_back = {}

-- Who gives back for a process that only seems to be dead, or asks again when an answer was lost, does no harm: without its receipt
-- nothing is given back or charged. First what a Redis that is full does not refuse: to a script that has written something it refuses nothing.
local function give_back(member, used, running, receipt)
  has_given_back[member] = true
  local packed = redis.call('GET', receipt)
  for _, key in ipairs(running) do redis.call('ZREM', key, member) end
  if not packed or packed == '' then return 0 end
  redis.call('DEL', receipt)
  local took, marks, places = unpack(cmsgpack.unpack(packed))
  for _, key in ipairs(places) do redis.call('ZREM', key, member) end
  for _, mark in ipairs(marks) do
    local key, limit, window, born, charged = unpack(mark)
    local bucket = open(key, limit, window)
    finish(bucket, took, used < 0 and 0 or took - used, born, charged)
    keep(bucket)
  end
  return 0
end

-- Of a request whose answer did not come: it may have taken, may still come, or may never.
local function undo(member, running, receipt, undone_ms)
  if redis.call('EXISTS', receipt) == 1 then return give_back(member, 0, running, receipt) end
  redis.call('SET', receipt, '', 'PX', undone_ms)
  return 0
end

-- What has a receipt runs, or else a place that was given back a moment ago would come to life again. A Redis that has lost its data has
-- no receipts, so that of those who certainly run it is not asked.
local function renew(lease_ms, running, receipts, is_certain)
  for key, members in pairs(running) do
    for _, member in ipairs(members) do
      local is_running = is_certain or redis.call('EXISTS', receipts .. member) == 1
      if is_running and not has_given_back[member] then redis.call('ZADD', key, now + lease_ms * 1000, member) end
    end
    redis.call('PEXPIRE', key, lease_ms)
  end
  return 0
end

-- Those who give back come first: there is room then, and a take that a full Redis refuses, which ends the script, does not end them.
local operations, replies = {take = take, look = look, give_back = give_back, undo = undo, renew = renew}, {}
local asked = cmsgpack.unpack(ARGV[1])
for _, is_first in ipairs({true, false}) do
  for i, operation in ipairs(asked) do
    if (operation[1] == 'give_back') == is_first then replies[i] = operations[operation[1]](unpack(operation, 2)) end
  end
end
return replies
