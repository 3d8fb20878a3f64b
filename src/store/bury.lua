#!lua flags=allow-oom
-- bury: moves leased claims to the dead letters, if the lease is still the caller's.
--
-- KEYS[1] hb:{<tag>}:leased    ZSET  claim -> deadline ms
-- KEYS[2] hb:{<tag>}:attempts  HASH  packet_id -> attempts:deaths:last error
-- KEYS[3] hb:{<tag>}:dead      HASH  packet_id -> at_ms, attempts, claim and reason, separated by tabs; under the whole claim if another
--                                    claim of the packet has a letter already
-- ARGV[1] token                the lease's deadline, as lease returned it
-- ARGV[2] now                  ms since 1970, or empty for the node's own clock
-- ARGV[3..] claim, reason      two values a claim, 1 to 500 claims
--
-- Returns the number of claims buried. A claim under another lease, or none, is left alone.
-- Cost    O(claims * log n). Writes only below the marked line; an error above it changes nothing.

local token, now = tonumber(ARGV[1]), tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('HLEN', KEYS[3])
local letters = {}
for i = 3, #ARGV, 2 do
  local claim = ARGV[i]
  if tonumber(redis.call('ZSCORE', KEYS[1], claim) or -1) == token then
    local packet = string.match(claim, '^%d+')
    local attempts, deaths = string.match(redis.call('HGET', KEYS[2], packet) or '0:0:', '^(%d+):(%d+):')
    local letter = { string.format('%.0f', now), attempts + deaths + 1, claim, ARGV[i + 1] }
    local other = redis.call('HGET', KEYS[3], packet)
    local field = packet
    if other and string.match(other, '^%d+\t%d+\t([^\t]+)\t') ~= claim then
      field = claim
    end
    letters[#letters + 1] = { claim, packet, table.concat(letter, '\t'), field }
  end
end

-- From here on it must succeed.
for _, letter in ipairs(letters) do
  redis.call('HSET', KEYS[3], letter[4], letter[3])
  redis.call('ZREM', KEYS[1], letter[1])
  redis.call('HDEL', KEYS[2], letter[2])
end
return #letters
