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
# Needs about 12 KiB of memory a session, both ends and the kernel's part together. Everything ends with the script.
set -euo pipefail

sessions=${SESSIONS:-100000} hold=${HOLD:-30s} pushes=${PUSHES:-0}
root=$(cd "$(dirname "$0")/.." && pwd)
hongbao=$root/target/release/hongbao load=$root/target/release/hongbao-load

fail() { echo "crowd.sh: $*" >&2; exit 2; }
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

dir=$(mktemp -d)
pids=()
finish() {
  for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$dir"
}
trap finish EXIT

# field FILE NAME: a value of running.json, which a server writes when it is ready.
field() { sed -nE "s/.*\"$2\": *\"?([^\",}]+).*/\1/p" "$1" | head -1; }
await() {
  for _ in $(seq 300); do
    [ -s "$1" ] && return
    sleep 0.1
  done
  fail "$1 does not come: $(cat "$2")"
}

mkdir "$dir/redis" "$dir/hub"
redis-server --port 0 --unixsocket "$dir/redis/sock" --appendonly yes --maxmemory-policy noeviction --save "" --dir "$dir/redis" >"$dir/redis.log" &
pids+=($!)
common=(--set store.topology=nodes --set "store.nodes=[\"redis+unix://$dir/redis/sock\"]" --set "ledger.url=sqlite:$dir/ledger.sqlite"
  --set admin.listen=127.0.0.1:0 --set log.level=warn)
await_socket() { for _ in $(seq 100); do [ -S "$dir/redis/sock" ] && return; sleep 0.1; done; fail "redis-server does not start"; }
await_socket
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
  END {printf "held: %d × '"$each"' authenticated sessions; %.2f KiB of a gateway a session, at most %.2f; %d connects a second\n", n, sum / n, max, rate}' "$dir"/idle-*.txt
if [ "$pushes" -gt 0 ]; then
  crowd push --times "$pushes" --room crowd --admin "http://$(field "$dir/hub/running.json" admin)" --api-key-file "$dir/hub/api-key" --patience 120s
  "$load" merge "$dir"/push-*.hdr
fi
