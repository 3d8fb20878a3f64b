#!lua
-- load: appends one chunk of the allocation to a bucket's pool, if and only if all chunks before it are there.
--
-- KEYS[1] hb:{<tag>}:gate  HASH  made here in state loading, with the fingerprint, the run id, chunks = 0 and epoch = 1. Later, when a
--                                top-up comes into a gate that has left that state, its epoch changes: what was empty may be empty no more
-- KEYS[2] hb:{<tag>}:pool  LIST  packet_id:cents, appended on the left
-- ARGV[1] chunk            number of this chunk, from 0
-- ARGV[2] fingerprint      of the rain's seed: a bucket that another ledger's rain of this number has left behind is not ours
-- ARGV[3] run_id           of the process that is asked; a bucket that is open and was another's is suspect
-- ARGV[4] load             load, or top-up: the bucket has been loaded, so that one that is not there, or was another's, is suspect
-- ARGV[5..] packets        packet_id:cents, 0 to 1000 of them (a chunk may hold none of this bucket's packets)
--
-- Returns the number of chunks loaded after the call, -1 when the gate is closed, -2 when the bucket is another rain's, -3 when it
-- is suspect. A chunk that is
-- there already changes nothing, and neither does one that comes too early.
-- Cost    O(packets). Writes only below the marked line; an error above it changes nothing.

local gate = redis.call('HMGET', KEYS[1], 'state', 'chunks', 'fingerprint', 'run_id')
redis.call('LLEN', KEYS[2])
if gate[3] and gate[3] ~= ARGV[2] then
  return -2
end
if gate[1] == 'closed' then
  return -1
end
local may_be_new = ARGV[4] == 'load' and (not gate[1] or gate[1] == 'loading')
if not may_be_new and gate[4] ~= ARGV[3] then
  return -3
end
local loaded = tonumber(gate[2] or '0')
if loaded ~= tonumber(ARGV[1]) then
  return loaded
end
local packets = {}
for i = 5, #ARGV do
  packets[i - 4] = ARGV[i]
end

-- From here on it must succeed.
if not gate[1] then
  redis.call('HSET', KEYS[1], 'state', 'loading', 'epoch', 1, 'fingerprint', ARGV[2], 'incarnation', ARGV[3] .. '.1')
end
redis.call('HSET', KEYS[1], 'chunks', loaded + 1, 'run_id', ARGV[3])
if #packets > 0 then
  redis.call('LPUSH', KEYS[2], unpack(packets))
  if gate[1] and gate[1] ~= 'loading' then
    redis.call('HINCRBY', KEYS[1], 'epoch', 1)
    redis.call('HDEL', KEYS[1], 'hungry')
  end
end
return loaded + 1
