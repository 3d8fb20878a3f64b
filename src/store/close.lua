#!lua flags=allow-oom
-- close: shuts a bucket's gate for ever and tells what is left in its pool.
--
-- KEYS[1] hb:{<tag>}:gate     HASH  a gate that is missing is made, closed, so that a late load finds it shut. With winners it remembers
--                                   how many there were
-- KEYS[2] hb:{<tag>}:pool     LIST
-- KEYS[3] hb:{<tag>}:winners  HASH
-- ARGV[1] fingerprint         of the rain's seed
-- ARGV[2] run_id              of the process that is asked
-- ARGV[3] chunks              how many a loaded bucket has at least; empty: the rain was called off before its gates could open, so nobody
--                             has won and nothing can be lost, whatever process has the bucket
--
-- A suspect bucket is shut without a run_id: until it is repaired grab.lua tells nobody who has no packet there that the rain is over. Its
-- winners may be gone, and the ledger may have paid them. A bucket of a rain that was never loaded is repaired by nobody: it gets its
-- run_id here, or its users would be told to come again for ever.
-- Returns the packets left in the pool, the winners, the chunks loaded, and 1 if the bucket is suspect (it was another process's, is not
-- there, or was being filled anew); or nothing, changing nothing, when the bucket is another rain's.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local left = redis.call('LLEN', KEYS[2])
local winners = redis.call('HLEN', KEYS[3])
local gate = redis.call('HMGET', KEYS[1], 'chunks', 'fingerprint', 'run_id', 'state')
if gate[2] and gate[2] ~= ARGV[1] then
  return {}
end
local suspect
if ARGV[3] == '' then
  suspect = winners > 0
else
  local has_fewer = tonumber(gate[1] or '0') < tonumber(ARGV[3])
  suspect = gate[3] ~= ARGV[2] or (gate[4] == 'loading' and has_fewer)
end

-- From here on it must succeed.
redis.call('HSET', KEYS[1], 'state', 'closed', 'fingerprint', ARGV[1])
if suspect then
  redis.call('HDEL', KEYS[1], 'run_id') -- until it is repaired, even if the other process comes back
else
  redis.call('HSET', KEYS[1], 'run_id', ARGV[2], 'winners', winners)
end
return { left, winners, tonumber(gate[1] or '0'), suspect and 1 or 0 }
