#!lua flags=allow-oom
-- requeue: takes dead letters back into the delay queue, due at once and with no attempts behind them.
--
-- KEYS[1] hb:{<tag>}:dead   HASH  packet_id -> at_ms, attempts, claim and reason, separated by tabs
-- KEYS[2] hb:{<tag>}:retry  ZSET  claim -> due ms
-- ARGV[1] now               ms since 1970, or empty for the node's own clock
-- ARGV[2..] fields          under which the letters lie, 1 to 500 of them
--
-- Returns the number of claims taken back. A packet without a dead letter is passed over, and so is a letter that nobody can read.
-- Cost    O(fields * log n). Writes only below the marked line; an error above it changes nothing.

local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
redis.call('ZCARD', KEYS[2])
local moves = {}
for i = 2, #ARGV do
  local letter = redis.call('HGET', KEYS[1], ARGV[i])
  local claim = letter and string.match(letter, '^%d+\t%d+\t(%d+:%d+:[^\t]+)\t')
  if claim then
    moves[#moves + 1] = { ARGV[i], claim }
  end
end

-- From here on it must succeed.
for _, move in ipairs(moves) do
  redis.call('ZADD', KEYS[2], now, move[2])
  redis.call('HDEL', KEYS[1], move[1])
end
return #moves
