#!lua flags=allow-oom
-- take: the second step of a transfer: puts packets from another bucket's outbox into this pool, once.
--
-- KEYS[1] hb:{<tag>}:gate     HASH  its epoch changes: what was empty may be empty no more
-- KEYS[2] hb:{<tag>}:pool     LIST  packet_id:cents
-- KEYS[3] hb:{<tag>}:applied  HASH  transfer id -> SHA-1 of the packets received
-- ARGV[1] transfer id
-- ARGV[2] run_id              of the process that is asked
-- ARGV[3] incarnation         of this bucket that the packets were meant for
-- ARGV[4..] packets           packet_id:cents, 1 to 500 of them
--
-- A closed gate takes them too: a transfer that had begun is finished before what is left is counted.
-- Returns 1 if they are taken now, 0 if they were before, -1 if there is no gate, -2 if the id was used for other
-- packets, -3 if the bucket is suspect, -4 if they were meant for an earlier incarnation.
-- Cost    O(packets). Writes only below the marked line; an error above it changes nothing.

redis.call('LLEN', KEYS[2])
local packets = {}
for i = 4, #ARGV do
  packets[i - 3] = ARGV[i]
end
local digest = redis.sha1hex(table.concat(packets, ' '))
local before = redis.call('HGET', KEYS[3], ARGV[1])
if before then
  return before == digest and 0 or -2
end
local gate = redis.call('HMGET', KEYS[1], 'state', 'run_id', 'incarnation')
if not gate[1] then
  return -1
end
if gate[2] ~= ARGV[2] then
  return -3
end
if gate[3] ~= ARGV[3] then
  return -4
end

-- From here on it must succeed.
redis.call('LPUSH', KEYS[2], unpack(packets))
redis.call('HSET', KEYS[3], ARGV[1], digest)
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HDEL', KEYS[1], 'hungry')
return 1
