#!lua flags=allow-oom
-- release: ends a named lease if it is still this holder's, and tells those who wait for it.
--
-- KEYS[1] hb:lease:{<name>}  STRING  fencing number and holder
-- ARGV[1] holder             as acquire was told
-- ARGV[2] channel            where it is made known that the lease is free
-- ARGV[3] name               what is told there
--
-- Returns 1 if it was released, 0 if the lease had run out or is somebody else's.
-- Cost    O(1), and O(subscribers) for the channel. Writes only below the marked line; an error above it changes nothing.

local held = redis.call('GET', KEYS[1])
if string.match(held or '', '^%d+ (%S+)$') ~= ARGV[1] then
  return 0
end

-- From here on it must succeed.
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1
