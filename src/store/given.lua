#!lua flags=allow-oom
-- given: the last step of a transfer: forgets packets that the other bucket has.
--
-- KEYS[1] hb:{<tag>}:outbox  HASH  transfer id -> target bucket and packets
-- ARGV[1] transfer id
--
-- Returns 1 if it was there, 0 if not.
-- Cost    O(1). Writes only below the marked line; an error above it changes nothing.

redis.call('HLEN', KEYS[1])

-- From here on it must succeed.
return redis.call('HDEL', KEYS[1], ARGV[1])
