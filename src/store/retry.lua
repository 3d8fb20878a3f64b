#!lua flags=allow-oom
-- retry: puts leased claims into the delay queue, if the lease is still the caller's.
--
-- KEYS[1] hb:{<tag>}:leased    ZSET  claim -> deadline ms
-- KEYS[2] hb:{<tag>}:retry     ZSET  claim -> due ms
-- KEYS[3] hb:{<tag>}:attempts  HASH  packet_id -> attempts:deaths:last error
-- ARGV[1] token                the lease's deadline, as lease returned it
-- ARGV[2] attempt              1 if this was an attempt, 0 if the claims were never tried (the balance system is away)
-- ARGV[3] now                  ms since 1970, or empty for the node's own clock
-- ARGV[4..] claim, wait, error three values a claim: wait in ms, error a short text; 1 to 300 claims
--
-- Returns the number of claims moved. A claim under another lease, or none, is left alone.
-- Cost    O(claims * log n). Writes only below the marked line; an error above it changes nothing.

local token, attempt, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('ZCARD', KEYS[2])
redis.call('HLEN', KEYS[3])
local moves = {}
for i = 4, #ARGV, 3 do
  local claim = ARGV[i]
  if tonumber(redis.call('ZSCORE', KEYS[1], claim) or -1) == token then
    local packet = string.match(claim, '^%d+')
    local attempts, deaths = string.match(redis.call('HGET', KEYS[3], packet) or '0:0:', '^(%d+):(%d+):')
    moves[#moves + 1] = { claim, now + tonumber(ARGV[i + 1]), packet, (attempts + attempt) .. ':' .. deaths .. ':' .. ARGV[i + 2] }
  end
end

-- From here on it must succeed.
for _, move in ipairs(moves) do
  redis.call('ZREM', KEYS[1], move[1])
  redis.call('ZADD', KEYS[2], move[2], move[1])
  redis.call('HSET', KEYS[3], move[3], move[4])
end
return #moves
