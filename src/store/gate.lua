#!lua
-- gate: sets the state and the window of a bucket that is fully loaded and not closed.
--
-- KEYS[1] hb:{<tag>}:gate  HASH
-- ARGV[1] chunks           how many chunks a fully loaded bucket has
-- ARGV[2] state            ready or paused
-- ARGV[3] opens_at_ms      ms since 1970, or empty: an operator will open it
-- ARGV[4] closes_at_ms     ms since 1970, or empty
--
-- Returns ok, closed (nothing changed) or loading (nothing changed).
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local gate = redis.call('HMGET', KEYS[1], 'state', 'chunks')
if gate[1] == 'closed' then
  return 'closed'
end
if gate[2] ~= ARGV[1] then
  return 'loading'
end

-- From here on it must succeed.
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'opens_at_ms', ARGV[3], 'closes_at_ms', ARGV[4])
return 'ok'
