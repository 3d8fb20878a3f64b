#!/usr/bin/env bash
# hostile.sh: what slow lorises, slow readers and garbage do to honest sessions, against one gateway with its default limits.
#
#   CROWD   of each kind of hostile client, and honest sessions, 1 to 20,000   (1000)
#   ROUNDS  alone and among the others in turns                                (9)
#
# In each round the honest are measured alone, while the hostile clients are at another gateway, and among them: playing three thousand clients costs
# this machine something, too. Exit code 1 when the p99 rises by more than half from the second to the third. Everything ends with the script.
set -euo pipefail
me=hostile.sh
. "$(dirname "$0")/servers.sh"

crowd=${CROWD:-1000} rounds=${ROUNDS:-9}
start_node
# The second is there to be attacked while the first is measured.
for name in first second; do
  mkdir "$dir/$name"
  if [ $name = second ]; then cp "$dir"/first/*-secret "$dir/second/"; fi
  "$hongbao" serve --roles gateway --data-dir "$dir/$name" "${common[@]}" --set gateway.listen=127.0.0.1:0 >"$dir/$name.log" 2>&1 &
  pids+=($!)
  await "$dir/$name/running.json" "$dir/$name.log"
done
"$load" hostile --gateway "$(field "$dir/first/running.json" gateway)" --decoy "$(field "$dir/second/running.json" gateway)" \
  --token-secret-file "$dir/first/token-secret" --rounds "$rounds" \
  --sessions "$crowd" --slow-loris "$crowd" --slow-readers "$crowd" --garbage "$crowd"
