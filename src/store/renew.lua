#!lua flags=allow-oom
-- renew: lets a named lease last longer if it is still this holder's.
--
-- KEYS[1] hb:lease:{<name>}  STRING  fencing number and holder
-- ARGV[1] holder             as acquire was told
-- ARGV[2] length_ms          how long it lasts from now on
--
-- Returns 1 if it was renewed, 0 if the lease has run out or is somebody else's.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local held = redis.call('GET', KEYS[1])
if string.match(held or '', '^%d+ (%S+)$') ~= ARGV[1] then
  return 0
end

-- From here on it must succeed.
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
