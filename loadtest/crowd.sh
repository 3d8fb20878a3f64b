#!/usr/bin/env bash
# crowd.sh: as many sessions as this machine holds, over as many gateways as they need.
#
# One process may have only so many descriptors (ulimit -Hn), so the sessions are spread over gateways, each with a generator of its own, on
# loopback. First the sessions are held and their memory is told; then, with PUSHES=N, a rain opens N times in a room that all of them watch.
#
#   SESSIONS   in all, 1,000 to 1,000,000                       (100000)
#   HOLD       how long they are held, like 60s                 (30s)
#   PUSHES     rains that open one after the other; 0 for none  (0)
#
# Exit code 1 when a session costs its gateway more than 4 KiB. Needs about 12 KiB of memory a session, both ends and the kernel's part together. Everything ends with the script.
set -euo pipefail
me=crowd.sh
. "$(dirname "$0")/servers.sh"

sessions=${SESSIONS:-100000} hold=${HOLD:-30s} pushes=${PUSHES:-0}
case $sessions in '' | *[!0-9]*) fail "SESSIONS=$sessions is no number from 1000 to 1000000" ;; esac
[ "$sessions" -ge 1000 ] && [ "$sessions" -le 1000000 ] || fail "SESSIONS=$sessions is not from 1000 to 1000000"
ulimit -n "$(ulimit -Hn)"
each=$(($(ulimit -n) - 1500))
[ $each -ge 500 ] || fail "a process may have only $(ulimit -n) descriptors; 2000 are the least (ulimit -Hn)"
gateways=$(((sessions + each - 1) / each))
each=$(((sessions + gateways - 1) / gateways))
free_kib=$(awk '/MemAvailable/ {print $2}' /proc/meminfo)
[ "$free_kib" -ge $((sessions * 12 + 500000)) ] || fail "$sessions sessions need $((sessions * 12 / 1024)) MiB, $((free_kib / 1024)) MiB are free"
open_max=$(cat /proc/sys/fs/file-max)
[ "$open_max" -ge $((sessions * 2 + 50000)) ] || fail "fs.file-max is $open_max; $sessions sessions have $((sessions * 2)) ends"

start_node
"$hongbao" serve --roles admin,steward,settle --data-dir "$dir/hub" "${common[@]}" >"$dir/hub.log" 2>&1 &
pids+=($!)
await "$dir/hub/running.json" "$dir/hub.log"

# Limits against abuse, which a crowd from one machine looks like.
limits=(--set gateway.listen=127.0.0.1:0 --set gateway.accepts_per_second=1000000 --set gateway.connects_per_address_per_second=1000000
  --set gateway.connections_per_address_max=1000000 --set gateway.heartbeat_interval_ms=300000 --set gateway.idle_timeout_ms=600000)
gateway_pids=()
for i in $(seq "$gateways"); do
  mkdir "$dir/g$i"
  cp "$dir"/hub/*-secret "$dir/g$i/"
  "$hongbao" serve --roles gateway --data-dir "$dir/g$i" "${common[@]}" "${limits[@]}" >"$dir/g$i.log" 2>&1 &
  pids+=($!) gateway_pids+=($!)
done
for i in $(seq "$gateways"); do await "$dir/g$i/running.json" "$dir/g$i.log"; done
echo "$gateways gateways with $each sessions each"

# crowd COMMAND ARGUMENTS..: one generator a gateway; the first is started last, so that the others follow it.
crowd() {
  local generators=() i
  for i in $(seq "$gateways" -1 1); do
    local extra=()
    [ "$1" = idle ] && extra=(--pid "${gateway_pids[$((i - 1))]}")
    [ "$1" = push ] && [ "$i" -gt 1 ] && extra=(--follow)
    [ "$1" = push ] && [ "$i" -eq 1 ] && sleep $((2 + sessions / 5000))
    "$load" "$@" "${extra[@]}" -q --gateway "$(field "$dir/g$i/running.json" gateway)" --token-secret-file "$dir/hub/token-secret" \
      --sessions "$each" --within 300s --hdr "$dir/$1-$i.hdr" --json "$dir/$1-$i.json" >"$dir/$1-$i.txt" 2>&1 &
    pids+=($!) generators+=($!)
  done
  for i in "${generators[@]}"; do wait "$i" || fail "a generator failed: $(grep -h hongbao-load: "$dir/$1"-*.txt | head -1)"; done
}

crowd idle --length "$hold" --heartbeat 100s
awk '/KiB a session/ {n++; sum += $NF; if ($NF > max) max = $NF} /connects a second/ {gsub(",", "", $NF); rate += $NF}
  END {printf "held: %d × '"$each"' authenticated sessions; %.2f KiB of a gateway a session, at most %.2f (goal 4.00); %d connects a second\n", n, sum / n, max, rate
    exit max > 4}' "$dir"/idle-*.txt || missed=1
if [ "$pushes" -gt 0 ]; then
  crowd push --times "$pushes" --room crowd --admin "http://$(field "$dir/hub/running.json" admin)" --api-key-file "$dir/hub/api-key" --patience 120s
  "$load" merge "$dir"/push-*.hdr
fi
exit "${missed:-0}"
