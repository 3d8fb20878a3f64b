#!lua flags=allow-oom
-- close: shuts a bucket's gate for ever and tells what is left in its pool.
--
-- KEYS[1] hb:{<tag>}:gate     HASH  a gate that is missing is made, closed, so that a late load finds it shut
-- KEYS[2] hb:{<tag>}:pool     LIST
-- KEYS[3] hb:{<tag>}:winners  HASH
-- ARGV[1] fingerprint         of the rain's seed
-- ARGV[2] run_id              of the process that is asked
--
-- Returns the packets left in the pool, the winners, the chunks loaded, and 1 if the bucket is suspect (it was another process's,
-- or is not there); or nothing, changing nothing, when the bucket is another
-- rain's.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local left = redis.call('LLEN', KEYS[2])
local winners = redis.call('HLEN', KEYS[3])
local gate = redis.call('HMGET', KEYS[1], 'chunks', 'fingerprint', 'run_id')
if gate[2] and gate[2] ~= ARGV[1] then
  return {}
end

-- From here on it must succeed.
redis.call('HSET', KEYS[1], 'state', 'closed', 'fingerprint', ARGV[1])
local suspect = gate[3] ~= ARGV[2]
if suspect then
  redis.call('HDEL', KEYS[1], 'run_id') -- until it is repaired, even if the other process comes back
end
return { left, winners, tonumber(gate[1] or '0'), suspect and 1 or 0 }
