// The numbers of a rain, as they come.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { line, meter, stack } from "./charts.js";
import { count, money, rate, seconds, words } from "./format.js";
import { card, notice, poll, table } from "./parts.js";

const KEPT = 240;
const TONES = { WON: "good", ALREADY_WON: "good2", MISSED: "quiet", SOLD_OUT: "info", CLOSED: "quiet", NOT_OPEN: "warn", PAUSED: "warn", BUSY: "warn", RETRY: "bad", COOLING_DOWN: "warn" };

/** p50 and p99 from two looks at the buckets of a histogram. */
function latency(text, before) {
  const now = new Map();
  for (const [, le, value] of text.matchAll(/^hongbao_grab_seconds_bucket\{le="([^"]+)"\} (\d+)/gm)) now.set(le === "+Inf" ? Infinity : Number(le), Number(value));
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const more = bounds.map((bound) => now.get(bound) - (before?.get(bound) ?? 0));
  const total = more.at(-1) ?? 0;
  const at = (part) => {
    if (!total) return null;
    const n = more.findIndex((value) => value >= part * total);
    const [low, high] = [n ? bounds[n - 1] : 0, bounds[n]];
    const [under, upTo] = [n ? more[n - 1] : 0, more[n]];
    return high === Infinity ? low : low + ((part * total - under) / Math.max(upTo - under, 1)) * (high - low);
  };
  return { now, p50: at(0.5), p99: at(0.99) };
}

function tile(name, value, hint, id) {
  return h("div", { class: "tile" }, h("span", {}, name), h("strong", { id }, value), h("small", {}, hint));
}

function tiles(look, slow) {
  const moving = look.claims_waiting + look.leased + look.retrying;
  return h("div", { class: "tiles" },
    tile("Packets left", count(look.pool), `of ${count(look.packets)}`, "packets-left"),
    tile("Wins a second", rate(look.wins_per_second), `${count(look.winners)} won`),
    tile("Grabs a second", rate(look.here.grabs_per_second), "on this process"),
    tile("Latency", seconds(slow?.p99 ?? null), slow?.p50 ? `p99; half within ${seconds(slow.p50)}` : "p99 of grabs here"),
    tile("Settle lag", moving ? seconds(look.settle_lag_seconds) : "none", `${count(moving)} claims on their way`),
    tile("Credited", money(look.credited_cents), `${count(look.credited_count)} of ${count(look.winners)} wins`, "credited"));
}

function charts(history) {
  return h("div", { class: "grid2" },
    card(null, line(history.map((look) => [look.at_ms, look.pool]), { label: "Packets left" })),
    card(null, line(history.map((look) => [look.at_ms, look.wins_per_second]), { label: "Wins a second", show: rate, tone: "good" })));
}

function outcomes(look) {
  const all = Object.entries(look.here.outcomes).sort((a, b) => b[1] - a[1]);
  const flow = stack([["In the pool", look.pool, "quiet"], ["Waiting", look.claims_waiting, "info"], ["Leased", look.leased, "info2"], ["Retrying", look.retrying, "warn"], ["Dead", look.dead, "bad"], ["Credited", look.credited_count, "good"]]);
  const told = all.length ? stack(all.map(([name, number]) => [words(name), number, TONES[name] ?? "quiet"])) : h("p", { class: "hint" }, "No grab has reached this process yet.");
  return h("div", { class: "grid2" }, card("Where the packets are", flow), card("What people were told", told));
}

const PLACE = [
  ["Left", (row) => count(row.pool), "number"],
  ["Won", (row) => count(row.winners), "number"],
  ["On their way", (row) => count(row.claims_waiting + row.leased + row.retrying), "number"],
  ["Dead", (row) => count(row.dead), "number"],
  ["Given", (row) => meter(row.winners / Math.max(row.pool + row.winners, 1), `${row.winners} of ${row.pool + row.winners}`), "metercell"],
];

function places(look) {
  const nodes = Object.entries(look.nodes).map(([name, node]) => ({ name, ...node }));
  const state = (up) => h("span", { class: `dot ${up ? "good" : "bad"}` }, up ? "" : " no answer");
  const node = [["Node", (row) => [state(row.up), " ", row.name.replace("redis://", "")], "lead"], ["Buckets", (row) => count(row.buckets), "number"], ...PLACE];
  const bucket = [["Bucket", (row) => [state(row.counted), ` ${row.bucket}`], "lead"], ["Node", (row) => row.node.replace("redis://", "")], ...PLACE];
  return h("div", {}, card("Nodes", table(node, nodes)), card(`Buckets (${look.buckets.length})`, table(bucket, look.buckets)));
}

/** Shows a rain until the page is left; `changed(look)` at every look, `ended()` when there is nothing more to see. */
export function live(id, page, changed, ended) {
  const shown = { tiles: h("div", { id: "live" }), charts: h("div", {}), outcomes: h("div", {}), places: h("div", {}), notice: h("div", {}) };
  const history = [];
  let [slow, before] = [null, null];
  const draw = (look) => {
    history.push(look);
    if (history.length > KEPT) history.shift();
    replace(shown.tiles, tiles(look, slow));
    replace(shown.charts, charts(history));
    replace(shown.outcomes, outcomes(look));
    replace(shown.places, places(look));
    replace(shown.notice, look.problems.length ? notice("bad", h("strong", {}, "Not everything could be counted"), look.problems.map((text) => h("p", {}, text))) : null);
    changed(look);
  };
  const lost = (text) => replace(shown.notice, notice("warn", h("p", {}, text)));
  const read = (text) => JSON.parse(text, (name, value, context) => (typeof value === "number" && name.endsWith("_cents") ? BigInt(context?.source ?? value) : value));
  const source = new EventSource(`/v1/rains/${id}/live`);
  source.addEventListener("numbers", (event) => draw(read(event.data)));
  source.addEventListener("problem", (event) => lost(JSON.parse(event.data).detail));
  source.addEventListener("end", (event) => {
    if (JSON.parse(event.data).reason === "draining") return;
    source.close();
    ended();
  });
  // A lost connection comes back by itself; a refusal (an ended session, too many streams) does not, and an ordinary request tells why.
  source.onerror = () => {
    if (source.readyState !== EventSource.CLOSED) return lost("The connection is lost; it comes back by itself.");
    return api.get("/console/session", { background: true }).then(() => lost("The server has no stream free: these numbers stand still. Load the page again in a while."), () => {});
  };
  page.leave.push(() => source.close());
  poll(page, 1000, async () => {
    if (source.readyState === EventSource.CLOSED) return;
    const found = latency(await api.text("/metrics").catch(() => ""), before);
    if (found.p50 !== null && before) slow = found;
    before = found.now;
  });
  return h("div", {}, shown.notice, shown.tiles, shown.charts, shown.outcomes, shown.places);
}
