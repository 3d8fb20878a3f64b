# Sourced by crowd.sh and hostile.sh: servers of the release build, on loopback, which end with the script.
#
# The script sets `me`, the name under which it complains.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
hongbao=$root/target/release/hongbao load=$root/target/release/hongbao-load

fail() { echo "$me: $*" >&2; exit 2; }

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

# await FILE LOG: until a server has written the file.
await() {
  for _ in $(seq 300); do
    if [ -s "$1" ] || [ -S "$1" ]; then return; fi
    sleep 0.1
  done
  fail "$1 does not come: $(cat "$2")"
}

# A node in $dir/redis, and what every server has to know of it, in `common`.
start_node() {
  mkdir "$dir/redis"
  redis-server --port 0 --unixsocket "$dir/redis/sock" --appendonly yes --maxmemory-policy noeviction --save "" --dir "$dir/redis" >"$dir/redis.log" &
  pids+=($!)
  common=(--set store.topology=nodes --set "store.nodes=[\"redis+unix://$dir/redis/sock\"]" --set "ledger.url=sqlite:$dir/ledger.sqlite"
    --set admin.listen=127.0.0.1:0 --set log.level=warn)
  await "$dir/redis/sock" "$dir/redis.log"
}
