#!lua
-- inbox: writes a message into a user's inbox, once for its business id, and trims the inbox.
--
-- KEYS[1] hb:{u:<user>}:inbox     ZSET  business id -> message id
-- KEYS[2] hb:{u:<user>}:messages  HASH  business id -> contents
-- ARGV[1] now                     ms since 1970, or empty for the node's own clock
-- ARGV[2] keep_ms                 what is older goes; so does the whole inbox when nothing was written for so long
-- ARGV[3] messages_max            the oldest beyond this many go, 1 to 500
-- ARGV[4] business id             what the message is about, like credit:<packet_id>
-- ARGV[5] contents                text
--
-- The message id is now, or one more than the newest message's id if that is not earlier: ids of one inbox rise in the order of writing,
-- whatever clocks do, so a reader who asks for what came after an id misses nothing and gets nothing twice.
-- Returns the message id and the id of the message before it (0 if there is none), or nothing if the business id was there already.
-- Cost    O(log messages_max), eight commands or fewer unless something is trimmed. Writes only below the marked line; an error above it
--         changes nothing. Not on a full node: a message can wait, and the claim behind it waits with it.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local keep_ms, messages_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local count = redis.call('ZCARD', KEYS[1])
if redis.call('HEXISTS', KEYS[2], ARGV[4]) == 1 then
  return {}
end
local newest, old = 0, {}
if count > 0 then
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
  redis.call('HDEL', KEYS[2], unpack(old))
end
redis.call('ZADD', KEYS[1], string.format('%.0f', id), ARGV[4])
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return { id, newest }
