// Whether everything is there, and how claims flow.

import { h, replace } from "./dom.js";
import { bytes, count, place, rate, seconds } from "./format.js";
import { badge, empty, heading, loading, notice, table, tile } from "./parts.js";
import { watch } from "./health.js";

const up = (row, name) => h("span", { class: `dot ${row.up ? "good" : "bad"}`, title: row.name }, ` ${name}`);

function state(row, suspects) {
  if (!row.up) return badge("down", "bad");
  if (suspects) return badge(`${count(suspects)} suspect`, "warn");
  return row.checks.length ? badge("look", row.checks.some((check) => check.verdict !== "warning") ? "bad" : "warn") : badge("up", "good");
}

function memory(row) {
  if (!row.up) return "–";
  if (!row.memory_max_bytes) return bytes(row.memory_bytes);
  const part = row.memory_bytes / row.memory_max_bytes;
  return [bytes(row.memory_bytes), h("small", { class: `under ${part > 0.8 ? "warned" : "hint"}` }, `${Math.floor(part * 100)} % of ${bytes(row.memory_max_bytes)}`)];
}

function columns(flow) {
  const said = (read) => (row) => (row.up ? read(row) : "–");
  return [
    ["Node", (row) => up(row, place(row.name)), "lead"],
    ["State", (row) => state(row, flow.suspects.filter((suspect) => suspect.node === row.name).length)],
    ["Slots", (row) => count(row.slots), "number"],
    ["Latency", said((row) => seconds(row.latency_seconds)), "number"],
    ["Memory", memory, "number"],
    ["Commands/s", said((row) => count(row.commands_per_second)), "number"],
    ["Clients", said((row) => count(row.clients)), "number"],
    ["Replicas", said((row) => count(row.replicas)), "number"],
    ["Disk", said((row) => row.appendfsync)],
    ["Clock", said((row) => `${row.clock_ahead_ms > 0 ? "+" : ""}${row.clock_ahead_ms} ms`), "number"],
    ["Redis", said((row) => row.version)],
  ];
}

const RAINS = [
  ["Rain", (row) => h("a", { href: `#/rains/${row.rain_id}` }, `Rain ${row.rain_id}`), "lead"],
  ["State", (row) => badge(row.state)],
  ["Left", (row) => count(row.pool), "number"],
  ["Won", (row) => count(row.winners), "number"],
  ["On their way", (row) => count(row.claims_waiting + row.leased + row.retrying), "number"],
  ["Dead", (row) => (row.dead ? h("a", { href: `#/dead/${row.rain_id}` }, count(row.dead)) : "0"), "number"],
];

/** Those at which something happens or is left to do, the open ones first. */
function atWork(rains) {
  const rank = (row) => ({ open: 0, paused: 1 })[row.state] ?? 2;
  const busy = rains.filter((row) => rank(row) < 2 || row.dead + row.claims_waiting + row.leased + row.retrying > 0).sort((a, b) => rank(a) - rank(b));
  const rest = rains.length - busy.length;
  const hint = rest > 0 && h("p", { class: "foot hint" }, `${count(rest)} more ${rest === 1 ? "rain waits" : "rains wait"} for an opening, or for what is left to go back.`);
  return [busy.length ? table(RAINS, busy) : empty("No rain is falling"), hint];
}

function verdict(look) {
  const { nodes, faults } = look;
  const bad = faults.some((fault) => fault.tone === "bad");
  const title = bad ? "Something is wrong" : faults.length ? "Something to look at" : "All is well";
  const text = faults.length ? `What it is, and what to do about it, is said above.` : `The ledger answers in ${seconds(nodes.ledger.latency_seconds)}, and ${nodes.nodes.length === 1 ? "the node" : `all ${count(nodes.nodes.length)} nodes`} as well.`;
  return h("section", { class: `card verdict ${bad ? "bad" : faults.length ? "warn" : "good"}`, id: "ready" }, h("strong", {}, title), h("p", {}, text), h("p", { class: "hint" }, `This process has the roles ${nodes.roles.join(", ")}.`));
}

function draw(look) {
  const { nodes, flow, lost } = look;
  if (!nodes || !flow) return notice("bad", h("p", {}, "Nothing could be looked at yet."));
  const ledger = nodes.ledger;
  return h("div", { class: lost ? "stale" : "" }, verdict(look),
    h("div", { class: "tiles" },
      tile("Claims waiting", count(flow.claims_waiting), `${count(flow.leased)} leased`), tile("Retrying", count(flow.retrying), "wait for another try", { tone: flow.retrying ? "warn" : "" }), tile("Dead letters", count(flow.dead), "wait for a person", { tone: flow.dead ? "warn" : "" }),
      tile("Oldest claim", flow.claims_waiting + flow.leased + flow.retrying ? seconds(flow.oldest_seconds) : "none", "on its way"), tile("Credits a second", rate(flow.credits_per_second), "all rains"),
      tile("Ledger", ledger.up ? seconds(ledger.latency_seconds) : "down", ledger.up ? "answers" : "does not answer", { tone: ledger.up ? "" : "bad" })),
    h("section", { class: "card flush", id: "nodes" }, h("h2", {}, "Nodes"), table(columns(flow), nodes.nodes)),
    h("section", { class: "card flush" }, h("h2", {}, "Rains at work"), atWork(flow.rains)));
}

export function nodes(main, page) {
  const shown = h("div", {}, loading());
  replace(main, heading("Health", "Ledger, nodes and claims; looks every two seconds"), shown);
  watch(page, (look) => replace(shown, draw(look)));
}
nodes.title = "Health";
