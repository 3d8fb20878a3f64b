// The numbers of a rain, as they come.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { line, meter, stack } from "./charts.js";
import { count, duration, money, place, rate, seconds, words } from "./format.js";
import { badge, card, notice, table, tile } from "./parts.js";

const KEPT = 240;
const TONES = { WON: "good", ALREADY_WON: "good2", MISSED: "quiet", SOLD_OUT: "info", CLOSED: "quiet", NOT_OPEN: "warn", PAUSED: "warn", BUSY: "warn", RETRY: "bad", COOLING_DOWN: "warn" };

/** How long until it opens, or closes. */
export function clock(look) {
  const [name, at] = look.state === "open" || look.state === "paused" ? ["closes in", look.closes_at_ms] : look.state === "created" || look.state === "ready" ? ["opens in", look.opens_at_ms] : [];
  if (!at) return "";
  const left = Math.max(Math.ceil((at - look.at_ms) / 1000), 0);
  const two = (number) => String(number).padStart(2, "0");
  const text = left >= 86_400 ? duration(left * 1000) : [left >= 3600 && Math.floor(left / 3600), two(Math.floor(left / 60) % 60), two(left % 60)].filter((part) => part !== false).join(":");
  return `${name} ${text}`;
}

function tiles(look, slow) {
  const moving = look.claims_waiting + look.leased + look.retrying;
  // Where a bucket did not answer these are too low, and it is said above.
  const part = look.problems.length > 0;
  return h("div", { class: part ? "tiles part" : "tiles" },
    tile("Packets left", count(look.pool), part ? "where nodes answer" : `of ${count(look.packets)}`, { id: "packets-left" }),
    tile("Wins a second", rate(look.wins_per_second), part ? "where nodes answer" : `${count(look.winners)} won`),
    tile("Grabs a second", rate(look.here.grabs_per_second), "answered here"),
    tile("Latency, p99", slow ? seconds(slow.latency_p99_seconds) : "–", slow ? `half within ${seconds(slow.latency_p50_seconds)}` : "no grab yet", { id: "latency" }),
    tile("Settle lag", moving ? seconds(look.settle_lag_seconds) : "none", `${count(moving)} on their way`, { id: "settle-lag", tone: look.settle_lag_seconds > 5 ? "warn" : "" }),
    tile("Credited", money(look.credited_cents), part ? `${count(look.credited_count)} wins` : `${count(look.credited_count)} of ${count(look.winners)} wins`, { id: "credited" }),
    look.dead > 0 && tile("Dead letters", h("a", { href: `#/dead/${look.rain_id}` }, count(look.dead)), "wait for a person", { tone: "warn" }));
}

/** Nothing to draw before it opens, nor for somebody who comes when all is over. */
function charts(history) {
  const { state } = history.at(-1);
  const moved = history.some((look) => look.wins_per_second || look.here.grabs_per_second);
  if (!moved && state !== "open" && state !== "paused") return null;
  return h("div", { class: "grid2" },
    card(null, line(history.map((look) => [look.at_ms, look.pool]), { label: "Packets left" })),
    card(null, line(history.map((look) => [look.at_ms, look.wins_per_second]), { label: "Wins a second", show: rate, tone: "good" })),
    card(null, line(history.map((look) => [look.at_ms, look.here.grabs_per_second]), { label: "Grabs a second", show: rate, tone: "info" })),
    card(null, line(history.filter((look) => look.here.latency_p99_seconds !== null).map((look) => [look.at_ms, look.here.latency_p99_seconds]), { label: "Latency of grabs, p99", show: seconds, tone: "info", least: 0.001 })));
}

function outcomes(look) {
  const all = Object.entries(look.here.outcomes).sort((a, b) => b[1] - a[1]);
  const flow = stack([["In the pool", look.pool, "quiet"], ["Waiting", look.claims_waiting, "info"], ["Leased", look.leased, "info2"], ["Retrying", look.retrying, "warn"], ["Dead", look.dead, "bad"], ["Credited", look.credited_count, "good"]]);
  const told = all.length ? stack(all.map(([name, number]) => [words(name), number, TONES[name] ?? "quiet"])) : h("p", { class: "hint" }, "No grab has reached this process. Every gateway counts its own: those of all stand on the dashboards.");
  return h("div", { class: "grid2" }, card("Where the packets are", flow), card("What people were told", told));
}

const share = (part, all) => [all ? `${Math.floor((100 * part) / all)} %` : "–", meter(part / Math.max(all, 1), `${part} of ${all}`)];

const known = (read) => (row) => (row.up ?? row.counted ? read(row) : "–");

const PLACE = [
  ["Left", known((row) => count(row.pool)), "number"],
  ["Won", known((row) => count(row.winners)), "number"],
  ["On their way", known((row) => count(row.claims_waiting + row.leased + row.retrying)), "number"],
  ["Dead", known((row) => count(row.dead)), "number"],
  ["Won of all", known((row) => share(row.winners, row.pool + row.winners)), "metercell"],
];

function places(look) {
  const nodes = Object.entries(look.nodes).map(([name, node]) => ({ name, ...node }));
  const suspects = (name) => look.buckets.filter((bucket) => bucket.node === name && bucket.suspect).length;
  const state = (up, suspect, name) => h("span", { class: `dot ${!up ? "bad" : suspect ? "warn" : "good"}` }, ` ${name}`, !up ? badge("no answer", "bad") : suspect > 0 && badge(suspect === true ? "suspect" : `${suspect} suspect`, "warn"));
  const node = [["Node", (row) => state(row.up, suspects(row.name), place(row.name)), "lead"], ["Buckets", (row) => count(row.buckets), "number"], ...PLACE];
  const bucket = [["Bucket", (row) => state(row.counted, row.suspect, count(row.bucket)), "lead"], ["Node", (row) => place(row.node)], ...PLACE];
  const flush = (title, ...children) => h("section", { class: "card flush" }, h("h2", {}, title), children);
  return h("div", {}, flush("Nodes", table(node, nodes)), flush(`Buckets (${count(look.buckets.length)})`, table(bucket, look.buckets)));
}

/** What the numbers do not tell. */
function unseen(look) {
  const suspects = look.buckets.filter((bucket) => bucket.suspect).length;
  const missing = look.problems.length > 0 && notice("bad", h("strong", {}, `${count(look.problems.length)} of ${count(look.buckets.length)} buckets could not be counted`), h("p", {}, "Their numbers are missing below; people whose grabs fall there are told to try again. What is wrong stands on ", h("a", { href: "#/nodes" }, "Health"), "."), h("p", { class: "hint" }, look.problems[0]));
  const repaired = suspects > 0 && notice("warn", h("strong", {}, `${count(suspects)} suspect ${suspects === 1 ? "bucket" : "buckets"}`), h("p", {}, "Their node came back as another process. Nothing is given there until the steward has compared them with the ledger."));
  return [missing, repaired];
}

/** Shows a rain until the page is left; `changed(look)` at every look, `ended()` when there is nothing more to see. */
export function live(id, page, changed, ended) {
  const shown = { tiles: h("div", { id: "live" }), charts: h("div", {}), outcomes: h("div", {}), places: h("div", {}), notice: h("div", {}) };
  const history = [];
  let slow = null;
  const draw = (look) => {
    history.push(look);
    if (look.here.latency_p99_seconds !== null) slow = look.here;
    if (history.length > KEPT) history.shift();
    replace(shown.tiles, tiles(look, slow));
    replace(shown.charts, charts(history));
    replace(shown.outcomes, outcomes(look));
    replace(shown.places, places(look));
    replace(shown.notice, unseen(look));
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
  return h("div", {}, shown.notice, shown.tiles, shown.charts, shown.outcomes, shown.places);
}
