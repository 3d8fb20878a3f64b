#!lua
-- close: shuts a bucket's gate for ever and tells what is left in its pool.
--
-- KEYS[1] hb:{<tag>}:gate  HASH  a gate that is missing is made, closed, so that a late load finds it shut
-- KEYS[2] hb:{<tag>}:pool  LIST
--
-- Returns the number of packets left in the pool.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local left = redis.call('LLEN', KEYS[2])
redis.call('HLEN', KEYS[1])

-- From here on it must succeed.
redis.call('HSET', KEYS[1], 'state', 'closed')
return left
