#!lua flags=allow-oom
-- acquire: gives a named lease to a holder if nobody has it, with a fencing number above all that were given before.
--
-- KEYS[1] hb:lease:{<name>}        STRING  fencing number and holder; expires with the lease
-- KEYS[2] hb:lease:{<name>}:fence  STRING  the fencing number given last; outlives the lease
-- ARGV[1] holder                   another text for each try, without blanks
-- ARGV[2] length_ms                how long the lease lasts unless it is renewed
-- ARGV[3] keep_ms                  how long the last number is kept
-- ARGV[4] now                      ms since 1970, or empty for the node's own clock
--
-- A holder that asks again, because the answer was lost, gets the same lease again.
-- The number is the time, or one more than the last if that is higher: it rises on a node that has lost the last one, and when the clock
-- goes back.
-- Returns 1 and the fencing number; or 0, the ms left to the present holder (-1: it never expires) and who that is.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

local held = redis.call('GET', KEYS[1])
local last = tonumber(redis.call('GET', KEYS[2]) or '0') or 0
local fence, holder = string.match(held or '', '^(%d+) (%S+)$')
if held and holder ~= ARGV[1] then
  return { 0, redis.call('PTTL', KEYS[1]), holder or held }
end
if not held then
  local now = tonumber(ARGV[4])
  if not now then
    local time = redis.call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  fence = string.format('%.0f', math.max(last + 1, now))
end

-- From here on it must succeed.
redis.call('SET', KEYS[1], fence .. ' ' .. ARGV[1], 'PX', ARGV[2])
if not held then
  redis.call('SET', KEYS[2], fence, 'PX', ARGV[3])
end
return { 1, fence }
