#!/usr/bin/env bash
# hostile.sh: what slow lorises, slow readers and garbage do to honest sessions, against one gateway with its default limits.
#
#   CROWD   of each kind of hostile client, and honest sessions, 1 to 20,000   (1000)
#   ROUNDS  alone and among the others in turns                                (9)
#
# Exit code 1 when the p99 of the honest rises by more than half. Everything ends with the script.
set -euo pipefail
me=hostile.sh
. "$(dirname "$0")/servers.sh"

crowd=${CROWD:-1000} rounds=${ROUNDS:-9}
start_node
"$hongbao" serve --roles gateway --data-dir "$dir/hub" "${common[@]}" --set gateway.listen=127.0.0.1:0 >"$dir/hub.log" 2>&1 &
pids+=($!)
await "$dir/hub/running.json" "$dir/hub.log"
"$load" hostile --gateway "$(field "$dir/hub/running.json" gateway)" --token-secret-file "$dir/hub/token-secret" --rounds "$rounds" \
  --sessions "$crowd" --slow-loris "$crowd" --slow-readers "$crowd" --garbage "$crowd"
