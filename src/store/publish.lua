#!lua
-- publish: replaces the published snapshot of a rain by a newer one and tells the gateways.
--
-- KEYS[1] hb:rain:<id>  HASH  version, snapshot
-- ARGV[1] version       a higher one than what is there, or nothing changes
-- ARGV[2] snapshot      JSON
-- ARGV[3] channel       where the change is made known
-- ARGV[4] rain id       what is told there
--
-- Returns 1 if it is now the published one, 0 if a newer one or the same was there.
-- Cost    O(1), and O(subscribers) for the channel. Writes only below the marked line; an error above it changes nothing.

local version = tonumber(redis.call('HGET', KEYS[1], 'version') or -1)
if version >= tonumber(ARGV[1]) then
  return 0
end

-- From here on it must succeed.
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'snapshot', ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
