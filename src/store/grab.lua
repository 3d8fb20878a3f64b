#!lua
-- grab: gives each user of one bucket a packet, or tells which packet the user already has.
--
-- KEYS[1] hb:{<tag>}:gate     HASH  state, opens_at_ms, closes_at_ms, epoch, run_id, winners; hungry is set here when somebody taps an empty
--                                   pool
-- KEYS[2] hb:{<tag>}:pool     LIST  packet_id:cents, taken from the right
-- KEYS[3] hb:{<tag>}:winners  HASH  user -> packet_id:cents
-- KEYS[4] hb:{<tag>}:claims   LIST  packet_id:cents:user, pushed on the left
-- KEYS[5] hb:{<tag>}:dead     HASH  packet_id -> at_ms, attempts, claim and reason, separated by tabs
-- ARGV[1] run_id              of the process that is asked
-- ARGV[2] waits, suspects     1 if WAIT follows, else 0: then a win that was found is written again. Since Redis 7.2, WAIT waits only for what
--                             its own connection has written, and the win may have come over another one.
--                             Behind it, each after a blank, users who are under suspicion by their places from 1: h<place> may win, the
--                             claim is held for a person to decide; what stands at d<place> wins nothing, however it fares at another place
-- ARGV[3..] users             text, 1 to 256 of them; a user who stands twice still gets one packet
--
-- Returns one string: the gate and its epoch, then one entry per user in ARGV's order, separated by blanks.
--   gate   U not loaded, L loading, S suspect (some of it may be lost), N not open yet, O open, P paused, C closed, and every winner
--          is known to be there
--   entry  W<packet_id:cents> won now, A<packet_id:cents> won before, - nothing
-- A user who won before is answered so whatever the gate says: the repeat of a lost reply must find its packet.
--
-- C is the last that a user without a packet hears of the rain, so it is said only where no winner can be missing:
--   closed, run_id this process's          nothing has been lost since it was shut or repaired                                    C
--   closed, run_id another's, as many      the process changed, and what it still has are all winners there were: nobody wins
--     winners as the gate says               behind a shut gate, and a winner is never removed                                    C
--   closed, run_id another's, fewer        winners are gone; a slot that moved has its gate and its winners one after the other,
--                                            so the gate alone, though it is newer than every win, proves nothing                 S
--   closed, no run_id                      it was suspect when it was shut: see close.lua                                         S
-- Cost    O(users). Writes only below the marked line; an error above it changes nothing.

local gate = redis.call('HMGET', KEYS[1], 'state', 'opens_at_ms', 'closes_at_ms', 'epoch', 'hungry', 'run_id')
local run_id = table.remove(ARGV, 1)
local waits, suspects = string.match(table.remove(ARGV, 1), '^(%d)(.*)$')
waits = waits == '1'
local held, denied = {}, {}
for what, at in string.gmatch(suspects, '(%a)(%d+)') do
  if what == 'h' then
    held[ARGV[tonumber(at)]] = true
  else
    denied[tonumber(at)] = true
  end
end
if next(held) then
  redis.call('HLEN', KEYS[5])
end
local before = redis.call('HMGET', KEYS[3], unpack(ARGV))
redis.call('LLEN', KEYS[4]) -- an error here, not between two writes, if it is no list

local letter, now = 'U', 0
if gate[1] == 'ready' and gate[6] ~= run_id then
  letter = 'S'
elseif gate[1] == 'ready' then
  -- Plain numbers are enough: ms since 1970 stay below 2^53.
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
  if not tonumber(gate[2]) or now < tonumber(gate[2]) then
    letter = 'N'
  elseif now >= tonumber(gate[3]) then
    letter = 'C'
  else
    letter = 'O'
  end
elseif gate[1] == 'loading' then
  letter = 'L'
elseif gate[1] == 'paused' then
  letter = 'P'
elseif gate[1] == 'closed' then
  local complete = gate[6] == run_id
  if not complete and (gate[6] or '') ~= '' then
    complete = redis.call('HGET', KEYS[1], 'winners') == tostring(redis.call('HLEN', KEYS[3]))
  end
  letter = complete and 'C' or 'S'
end

local reply = { letter .. (gate[4] or '0') }
local fresh, place, found = {}, {}, nil
for i, user in ipairs(ARGV) do
  if before[i] then
    reply[i + 1] = 'A' .. before[i]
    found = waits and i
  else
    reply[i + 1] = '-'
    if letter == 'O' and not place[user] and not denied[i] then
      fresh[#fresh + 1] = user
      place[user] = i
    end
  end
end
local left = redis.call('LLEN', KEYS[2])

-- From here on it must succeed.
if found then
  redis.call('HSET', KEYS[3], ARGV[found], before[found])
end
if letter == 'S' and gate[6] then
  redis.call('HDEL', KEYS[1], 'run_id') -- suspect until it is repaired, even if the other process comes back
end
if #fresh == 0 or (left == 0 and gate[5]) then
  return table.concat(reply, ' ')
end
if left < #fresh and not gate[5] then
  redis.call('HSET', KEYS[1], 'hungry', 1)
end
if left == 0 then
  return table.concat(reply, ' ')
end
local packets = redis.call('RPOP', KEYS[2], #fresh)
local winners, claims, letters = {}, {}, {}
for n, packet in ipairs(packets) do
  local user = fresh[n]
  winners[2 * n - 1] = user
  winners[2 * n] = packet
  local claim = packet .. ':' .. user
  if held[user] then
    letters[#letters + 1] = string.match(packet, '^%d+')
    letters[#letters + 1] = string.format('%.0f\t0\t%s\theld: the risk service has doubts about the user', now, claim)
  else
    claims[#claims + 1] = claim
  end
  reply[place[user] + 1] = 'W' .. packet
end
redis.call('HSET', KEYS[3], unpack(winners))
if claims[1] then
  redis.call('LPUSH', KEYS[4], unpack(claims))
end
if letters[1] then
  redis.call('HSET', KEYS[5], unpack(letters))
end
if #fresh < #ARGV then
  -- The second entry of a user who stands twice tells the same packet.
  for i, user in ipairs(ARGV) do
    local first = place[user]
    if first and first ~= i then
      reply[i + 1] = string.gsub(reply[first + 1], '^W', 'A')
    end
  end
end
return table.concat(reply, ' ')
