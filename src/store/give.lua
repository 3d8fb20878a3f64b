#!lua flags=allow-oom
-- give: the first step of a transfer: takes packets out of a pool and keeps them in the outbox until the other bucket has them.
--
-- KEYS[1] hb:{<tag>}:gate    HASH
-- KEYS[2] hb:{<tag>}:pool    LIST  packet_id:cents, taken from the right
-- KEYS[3] hb:{<tag>}:outbox  HASH  transfer id -> target bucket, its incarnation and packets, separated by blanks
-- ARGV[1] transfer id
-- ARGV[2] target             number of the bucket that gets them
-- ARGV[3] most               packets to give, 1 to 500
-- ARGV[4] run_id             of the process that is asked; a suspect bucket gives nothing
-- ARGV[5] incarnation        of the target: another one after every repair
--
-- Returns what stands in the outbox under this id, or nothing when the gate is closed, the pool empty or the bucket
-- suspect. Asked again it gives no more.
-- Cost    O(most). Writes only below the marked line; an error above it changes nothing.

local there = redis.call('HGET', KEYS[3], ARGV[1])
if there then
  return there
end
local gate = redis.call('HMGET', KEYS[1], 'state', 'run_id')
if gate[1] ~= 'ready' or gate[2] ~= ARGV[4] or redis.call('LLEN', KEYS[2]) == 0 then
  return false
end

-- From here on it must succeed.
local packets = redis.call('RPOP', KEYS[2], tonumber(ARGV[3]))
local entry = ARGV[2] .. ' ' .. ARGV[5] .. ' ' .. table.concat(packets, ' ')
redis.call('HSET', KEYS[3], ARGV[1], entry)
return entry
