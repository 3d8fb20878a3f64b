#!lua
-- inbox: writes a message into a user's inbox, once, and trims the inbox.
--
-- KEYS[1] hb:{u:<user>}:inbox  ZSET  message -> message id
-- ARGV[1] now                  ms since 1970, or empty for the node's own clock
-- ARGV[2] keep_ms              what is older goes; so does the whole inbox when nothing was written for so long
-- ARGV[3] messages_max         the oldest beyond this many go, 1 to 500
-- ARGV[4] message              text that says what it is about and nothing that changes when it is written again
--
-- The message id is now, or one more than the newest message's id if that is not earlier: ids of one inbox rise in the order of writing,
-- whatever clocks do, so a reader who asks for what came after an id misses nothing and gets nothing twice.
-- Returns the message id and the id of the message before it (0 if there is none), or nothing if the message was there already.
-- Cost    O(log messages_max), plus what is trimmed. Writes only below the marked line; an error above it changes nothing. Not on a full
--         node: a message can wait, and the claim behind it waits with it.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local keep_ms, messages_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local count = redis.call('ZCARD', KEYS[1])
local newest, old = 0, {}
if count > 0 then
  if redis.call('ZSCORE', KEYS[1], ARGV[4]) then
    return {}
  end
  newest = tonumber(redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
  old = redis.call('ZRANGE', KEYS[1], '-inf', now - keep_ms, 'BYSCORE', 'LIMIT', 0, 1000)
  if count - #old >= messages_max then
    old = redis.call('ZRANGE', KEYS[1], 0, math.min(count - messages_max, 999))
  end
end
local id = math.max(now, newest + 1)

-- From here on it must succeed.
if #old > 0 then
  redis.call('ZREM', KEYS[1], unpack(old))
end
redis.call('ZADD', KEYS[1], string.format('%.0f', id), ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { id, newest }
