#!lua
-- classic: one user takes one packet, as it is usually done. Only here to be compared with.
--
-- KEYS[1] pool     LIST  packets as JSON
-- KEYS[2] winners  HASH  user -> packet as JSON
-- KEYS[3] claims   LIST  packets as JSON, with their user
-- ARGV[1] user
--
-- Returns the packet as JSON, or nothing.

if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 1 then
  return nil
end
local packet = redis.call('RPOP', KEYS[1])
if not packet then
  return nil
end
local fields = cjson.decode(packet)
fields.user = ARGV[1]
local claim = cjson.encode(fields)
redis.call('HSET', KEYS[2], ARGV[1], claim)
redis.call('LPUSH', KEYS[3], claim)
return claim
