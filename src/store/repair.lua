#!lua flags=allow-oom
-- repair: the last step of a repair: the pool that has been put together anew takes the place of the old one, and the bucket belongs to the
-- process that is asked from now on.
--
-- KEYS[1] hb:{<tag>}:gate     HASH  made here, in state loading, if it is not there; its epoch grows. Of a rain that is over it is shut, even
--                                   if it had forgotten that: with a run_id again it would give packets that are refunded
-- KEYS[2] hb:{<tag>}:pool     LIST  packet_id:cents
-- KEYS[3] hb:{<tag>}:rebuilt:<number of the repair>  LIST  packet_id:cents, the new pool
-- KEYS[4] hb:{<tag>}:applied  HASH  transfer id -> SHA-1 of the packets received
-- KEYS[5] hb:{<tag>}:outbox   HASH  transfer id -> target bucket, its incarnation and packets
-- KEYS[6] hb:{<tag>}:winners  HASH  user -> packet_id:cents, those that the ledger has paid among them by now
-- ARGV[1] fingerprint         of the rain's seed
-- ARGV[2] run_id              of the process that is asked
-- ARGV[3] looked_at           run id of the process whose bucket was compared with the ledger
-- ARGV[4] epoch               that the gate had then, or empty: every repair changes it
-- ARGV[5] packets             how many the new pool has
-- ARGV[6] chunks              how many the rain has, top-ups that are still being loaded included: the new pool has their packets
-- ARGV[7] over                over if the rain is closed, else going
-- ARGV[8] arrived             how many transfers' packets are in the new pool, 0 to 200
-- ARGV[9..]                   their ids and packets (separated by blanks); then the ids of transfers from here that are void, 0 to 200
--
-- Returns ok; changed, changing nothing, when anything is not as it was when it was looked at: then somebody else has repaired it, or the
-- process was another one again; foreign when the bucket is another rain's.
-- Cost    O(transfers). Writes only below the marked line; an error above it changes nothing.

local gate = redis.call('HMGET', KEYS[1], 'state', 'fingerprint', 'run_id', 'epoch', 'chunks')
redis.call('LLEN', KEYS[2])
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])
local winners = redis.call('HLEN', KEYS[6])
if gate[2] and gate[2] ~= ARGV[1] then
  return 'foreign'
end
local packets = tonumber(ARGV[5])
local repaired = gate[1] and gate[1] ~= 'loading' and gate[3] == ARGV[2]
-- Chunks of a top-up that the one who looked has not heard of would be loaded again.
local newer = tonumber(gate[5] or '0') > tonumber(ARGV[6])
if repaired or newer or ARGV[2] ~= ARGV[3] or (gate[4] or '') ~= ARGV[4] or redis.call('LLEN', KEYS[3]) ~= packets then
  return 'changed'
end
-- What gateways remember of the bucket is older than this, even if the bucket has lost its epoch.
local epoch = math.max(tonumber(gate[4] or '0') + 1, tonumber(redis.call('TIME')[1]))

-- From here on it must succeed.
redis.call('DEL', KEYS[2])
if packets > 0 then
  redis.call('RENAME', KEYS[3], KEYS[2])
  redis.call('PERSIST', KEYS[2])
end
local void = 9 + 2 * tonumber(ARGV[8])
for i = 9, void - 1, 2 do
  redis.call('HSET', KEYS[4], ARGV[i], redis.sha1hex(ARGV[i + 1]))
end
for i = void, #ARGV do
  redis.call('HDEL', KEYS[5], ARGV[i])
end
if not gate[1] then
  redis.call('HSET', KEYS[1], 'state', 'loading', 'fingerprint', ARGV[1])
end
local now = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'run_id', ARGV[2], 'chunks', ARGV[6], 'epoch', now, 'incarnation', ARGV[2] .. '.' .. now)
redis.call('HDEL', KEYS[1], 'hungry')
if ARGV[7] == 'over' or gate[1] == 'closed' then
  redis.call('HSET', KEYS[1], 'state', 'closed', 'winners', winners)
end
return 'ok'
