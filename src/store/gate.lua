#!lua flags=allow-oom
-- gate: sets the state and the window of a bucket that is loaded and not closed.
--
-- KEYS[1] hb:{<tag>}:gate  HASH
-- ARGV[1] chunks           how many a loaded bucket has at least: chunks of a top-up may be there already, or still on their way
-- ARGV[2] state            ready or paused
-- ARGV[3] opens_at_ms      ms since 1970, or empty: an operator will open it
-- ARGV[4] closes_at_ms     ms since 1970, or empty
-- ARGV[5] version          of the rain's record; what an older version says changes nothing
-- ARGV[6] fingerprint      of the rain's seed
-- ARGV[7] run_id           of the process that is asked
--
-- A gate that says all of this already is not written: it is told again every second, and each write is one more line of the node's file.
--
-- Returns ok, stale, closed, loading, suspect (the bucket was another process's: it stays suspect until it is repaired) or foreign; all
-- but ok and suspect have changed nothing.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local gate = redis.call('HMGET', KEYS[1], 'state', 'chunks', 'version', 'fingerprint', 'run_id', 'opens_at_ms', 'closes_at_ms')
if gate[4] and gate[4] ~= ARGV[6] then
  return 'foreign'
end
if gate[1] == 'closed' then
  return 'closed'
end
if tonumber(gate[2] or '0') < tonumber(ARGV[1]) then
  return 'loading'
end
local suspect = gate[5] ~= ARGV[7]
if not suspect and tonumber(gate[3] or '0') > tonumber(ARGV[5]) then
  return 'stale'
end
if not suspect and gate[1] == ARGV[2] and gate[3] == ARGV[5] and gate[6] == ARGV[3] and gate[7] == ARGV[4] then
  return 'ok'
end

-- From here on it must succeed.
if suspect then
  redis.call('HDEL', KEYS[1], 'run_id')
  return 'suspect'
end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'opens_at_ms', ARGV[3], 'closes_at_ms', ARGV[4],
  'version', ARGV[5], 'run_id', ARGV[7])
return 'ok'
