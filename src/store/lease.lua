#!lua flags=allow-oom
-- lease: hands claims to a settler for a limited time: those whose lease has run out, those due again, then new ones.
--
-- KEYS[1] hb:{<tag>}:claims    LIST  claims, taken from the right
-- KEYS[2] hb:{<tag>}:leased    ZSET  claim -> deadline ms; the deadline is the lease's token
-- KEYS[3] hb:{<tag>}:retry     ZSET  claim -> due ms
-- KEYS[4] hb:{<tag>}:attempts  HASH  packet_id -> attempts:deaths:last error
-- KEYS[5] hb:{<tag>}:dead      HASH  packet_id -> at_ms, attempts, claim and reason, separated by tabs
-- ARGV[1] now                  ms since 1970, or empty for the node's own clock
-- ARGV[2] lease_ms             how long the lease lasts
-- ARGV[3] most                 claims to lease, 1 to 500
-- ARGV[4] deaths_max           a claim whose holders died this often is buried
--
-- Returns the deadline, the number buried, whether claims were under way here at all (0 or 1), then claim and attempts so far for each
-- claim leased. Where none was under way the deadline says nothing.
-- A claim that nobody can read is buried when its lease has run out.
-- A claim whose holder died twice is leased alone from then on, so that one that kills its settler is buried without its neighbours.
-- Cost    O(most * log n), one command where no claim is under way. Writes only below the marked line; an error above it changes nothing.

-- Most looks are at buckets in which nothing happens.
if redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3]) == 0 then
  return { '0', 0, 0 }
end
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local deadline = now + tonumber(ARGV[2])
local most, deaths_max = tonumber(ARGV[3]), tonumber(ARGV[4])
local expired = redis.call('ZRANGE', KEYS[2], '-inf', now, 'BYSCORE', 'LIMIT', 0, most)
local due = redis.call('ZRANGE', KEYS[3], '-inf', now, 'BYSCORE', 'LIMIT', 0, most - #expired)
local waiting = redis.call('LLEN', KEYS[1])
local history = redis.call('EXISTS', KEYS[4]) == 1
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])

local function past(claim)
  local packet = string.match(claim, '^(%d+):%d+:.')
  if not packet then
    return nil
  end
  local text = history and redis.call('HGET', KEYS[4], packet)
  local attempts, deaths, reason = string.match(text or '0:0:', '^(%d+):(%d+):(.*)$')
  return packet, tonumber(attempts or 0), tonumber(deaths or 0), reason or ''
end

local reply = { string.format('%.0f', deadline), 0, 1 }
local leases, removals, notes, letters = {}, {}, {}, {}
local taken, alone = 0, false
local function take(claim, attempts)
  taken = taken + 1
  leases[2 * taken - 1] = reply[1]
  leases[2 * taken] = claim
  reply[#reply + 1] = claim
  reply[#reply + 1] = attempts
end

for _, claim in ipairs(expired) do
  if alone then
    break
  end
  local packet, attempts, deaths, reason = past(claim)
  deaths = (deaths or 0) + 1
  if not packet then
    reply[2] = reply[2] + 1
    letters[#letters + 1] = claim
    notes[#notes + 1] = { claim, deaths, claim, 'unreadable: it is no packet_id:cents:user' }
  elseif deaths >= deaths_max then
    reply[2] = reply[2] + 1
    letters[#letters + 1] = claim
    local other = redis.call('HGET', KEYS[5], packet)
    if other and string.match(other, '^%d+\t%d+\t([^\t]+)\t') ~= claim then
      packet = claim -- another claim of the packet has a letter already
    end
    notes[#notes + 1] = { packet, attempts + deaths, claim, 'settlers_died: its settlers died ' .. deaths .. ' times; last error: ' .. reason }
  elseif deaths < 2 or taken == 0 then
    alone = deaths >= 2
    take(claim, attempts + deaths)
    removals[#removals + 1] = { packet, attempts .. ':' .. deaths .. ':' .. reason }
  end
end
local promoted = {}
for _, claim in ipairs(due) do
  if alone then
    break
  end
  local _, attempts, deaths = past(claim)
  attempts, deaths = attempts or 0, deaths or 0
  if deaths < 2 or taken == 0 then
    alone = deaths >= 2
    take(claim, attempts + deaths)
    promoted[#promoted + 1] = claim
  end
end
local fresh = 0
if not alone and waiting > 0 and taken < most then
  fresh = math.min(waiting, most - taken)
end

-- From here on it must succeed.
for n, claim in ipairs(letters) do
  local note = notes[n]
  redis.call('HSET', KEYS[5], note[1], table.concat({ string.format('%.0f', now), note[2], note[3], note[4] }, '\t'))
  redis.call('HDEL', KEYS[4], note[1])
  redis.call('ZREM', KEYS[2], claim)
end
for _, note in ipairs(removals) do
  redis.call('HSET', KEYS[4], note[1], note[2])
end
if #promoted > 0 then
  redis.call('ZREM', KEYS[3], unpack(promoted))
end
if fresh > 0 then
  for _, claim in ipairs(redis.call('RPOP', KEYS[1], fresh)) do
    take(claim, 0)
  end
end
if taken > 0 then
  redis.call('ZADD', KEYS[2], unpack(leases))
end
return reply
