#!lua flags=allow-oom
-- restore: puts wins that the ledger has paid back among the winners of a bucket that may have lost them.
--
-- KEYS[1] hb:{<tag>}:gate     HASH
-- KEYS[2] hb:{<tag>}:winners  HASH  user -> packet_id:cents
-- ARGV[1] fingerprint         of the rain's seed
-- ARGV[2..] wins              user and packet_id:cents, 1 to 400 pairs
--
-- Returns how many were missing, -2 when the bucket is another rain's. A user who has a packet keeps it.
-- Cost    O(wins). Writes only below the marked line; an error above it changes nothing.

local fingerprint = redis.call('HGET', KEYS[1], 'fingerprint')
redis.call('HLEN', KEYS[2])
if fingerprint and fingerprint ~= ARGV[1] then
  return -2
end

-- From here on it must succeed.
local restored = 0
for i = 2, #ARGV, 2 do
  restored = restored + redis.call('HSETNX', KEYS[2], ARGV[i], ARGV[i + 1])
end
return restored
