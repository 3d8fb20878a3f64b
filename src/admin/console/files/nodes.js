// Whether everything is there, and how claims flow.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, rate, seconds } from "./format.js";
import { badge, card, empty, failure, heading, loading, notice, poll, table } from "./parts.js";

const COLUMNS = [
  ["Part", (row) => h("span", { class: `dot ${row.ok ? "good" : "bad"}` }, ` ${row.name}`), "lead"],
  ["What it is", (row) => row.kind],
  ["State", (row) => (row.ok ? badge("up", "good") : badge("down", "bad"))],
  ["Says", (row) => (row.ok ? "–" : row.text), "wide"],
];

const RAINS = [
  ["Rain", (row) => h("a", { href: `#/rains/${row.rain_id}` }, `Rain ${row.rain_id}`), "lead"],
  ["State", (row) => badge(row.state)],
  ["Left", (row) => count(row.pool), "number"],
  ["Won", (row) => count(row.winners), "number"],
  ["On their way", (row) => count(row.claims_waiting + row.leased + row.retrying), "number"],
  ["Dead", (row) => count(row.dead), "number"],
];

function tile(name, value, hint) {
  return h("div", { class: "tile" }, h("span", {}, name), h("strong", {}, value), h("small", {}, hint));
}

function draw(ready, flow) {
  const parts = [{ name: "SQL", kind: "Ledger", ok: ready.sql === "ok", text: ready.sql }, ...Object.entries(ready.redis).map(([name, text]) => ({ name: name.replace("redis://", ""), kind: "Node", ok: text === "ok", text }))];
  const down = parts.filter((part) => !part.ok).length;
  return [
    h("section", { class: `card verdict ${ready.ready ? "good" : "bad"}`, id: "ready" }, h("strong", {}, ready.ready ? "Ready" : ready.draining ? "Draining" : "Not ready"),
      h("p", {}, ready.ready ? `The ledger and all ${parts.length - 1} nodes answer.` : ready.draining ? "This process is being stopped." : `${down} of ${parts.length} do not answer.`)),
    flow && h("div", { class: "tiles" },
      tile("Claims waiting", count(flow.claims_waiting), `${count(flow.leased)} leased`), tile("Retrying", count(flow.retrying), "wait for another try"), tile("Dead", count(flow.dead), "wait for a person"),
      tile("Oldest claim", flow.oldest_seconds ? seconds(flow.oldest_seconds) : "none", "on its way"), tile("Credits a second", rate(flow.credits_per_second), "all rains")),
    flow?.problems.length ? notice("bad", h("strong", {}, "Not everything could be counted"), flow.problems.map((text) => h("p", {}, text))) : null,
    h("section", { class: "card flush" }, h("h2", {}, "Parts"), table(COLUMNS, parts)),
    h("section", { class: "card flush" }, h("h2", {}, "Unfinished rains"), flow?.rains.length ? table(RAINS, flow.rains) : empty("No rain is at work")),
  ];
}

export function nodes(main, page) {
  const shown = h("div", {}, loading());
  replace(main, heading("Health", "This process and what stands behind it; looks every two seconds"), shown);
  poll(page, 2000, async () => {
    try {
      const [ready, flow] = await Promise.all([api.get("/readyz", { background: true, anyStatus: true }), api.get("/v1/pipeline", { background: true })]);
      if (page.alive) replace(shown, draw(ready, flow));
    } catch (problem) {
      if (page.alive) replace(shown, failure(problem));
    }
  });
}
nodes.title = "Health";
