#!lua flags=allow-oom
-- ack: removes claims whose credit has committed, wherever they are by now.
--
-- KEYS[1] hb:{<tag>}:leased    ZSET
-- KEYS[2] hb:{<tag>}:retry     ZSET
-- KEYS[3] hb:{<tag>}:attempts  HASH
-- KEYS[4] hb:{<tag>}:dead      HASH
-- ARGV    claims               packet_id:cents:user, 1 to 500 of them
--
-- A late settler may ack: its credit has committed, so the claim is settled whoever holds it now.
-- Returns the number of claims removed.
-- Cost    O(claims * log n). Writes only below the marked line; an error above it changes nothing.

redis.call('ZCARD', KEYS[1])
local retrying = redis.call('ZCARD', KEYS[2]) > 0
local tried = redis.call('HLEN', KEYS[3]) > 0
local buried = redis.call('HLEN', KEYS[4]) > 0
local packets, letters = {}, {}
if tried or buried then
  for i, claim in ipairs(ARGV) do
    packets[i] = string.match(claim, '^%d+')
    -- Only its own letter: another claim of the same packet still waits for a person.
    local letter = buried and redis.call('HGET', KEYS[4], packets[i])
    if letter and string.match(letter, '^%d+\t%d+\t([^\t]+)\t') == claim then
      letters[#letters + 1] = packets[i]
    end
    if buried and redis.call('HEXISTS', KEYS[4], claim) == 1 then
      letters[#letters + 1] = claim
    end
  end
end

-- From here on it must succeed.
local removed = redis.call('ZREM', KEYS[1], unpack(ARGV))
if retrying then
  removed = removed + redis.call('ZREM', KEYS[2], unpack(ARGV))
end
if tried then
  redis.call('HDEL', KEYS[3], unpack(packets))
end
if #letters > 0 then
  removed = removed + redis.call('HDEL', KEYS[4], unpack(letters))
end
return removed
