// Whether a rain's money is where it should be.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { stack } from "./charts.js";
import { count, money, words } from "./format.js";
import { button, card, empty, failure, heading, stateOf, table, toast, writing } from "./parts.js";

const DIFFERENCES = [
  ["What", (row) => words(row.kind), "lead"],
  ["Packet", (row) => row.packet_id ?? "–"],
  ["User", (row) => row.user ?? "–"],
  ["Amount", (row) => money(row.cents), "number"],
  ["Detail", (row) => row.detail, "wide"],
];

function verdict(report) {
  const moving = report.in_motion ? ` ${count(report.in_motion)} claims are still on their way, which is as it should be.` : "";
  return h("section", { class: `card verdict ${report.balanced ? "good" : "bad"}`, id: "verdict", "data-balanced": report.balanced },
    h("strong", {}, report.balanced ? "Balanced" : "Not balanced"),
    h("p", {}, report.balanced ? `Every one of ${count(report.packets)} packets is in exactly one place, to the cent.${moving}` : `${count(report.differences_total)} differences. Nothing was changed; see below what is where.`));
}

function sums(report) {
  const rows = [["Funded", null, report.funded_cents, "sum"], ["In the pool", report.pool_count, report.pool_cents], ["On the move between buckets", report.transfer_count, report.transfer_cents],
    ["Claims on their way or dead", report.claims_count, report.claims_cents], ["Credited", report.credited_count, report.credited_cents], ["Refunded", null, report.refunded_cents], ["Discarded", null, report.discarded_cents]];
  return h("div", { class: "scroll" }, h("table", { class: "sums" }, h("tbody", {}, rows.map(([name, number, sum, kind]) => h("tr", { class: kind }, h("th", { scope: "row" }, name), h("td", { class: "number" }, number === null ? "" : count(number)), h("td", { class: "number" }, money(sum)))))));
}

function picture(report) {
  const part = (name, sum, tone) => [name, Number(sum), tone, money(sum)];
  return stack([part("Credited", report.credited_cents, "good"), part("Claims", report.claims_cents, "info"), part("Pool", report.pool_cents, "quiet"), part("Refunded", report.refunded_cents, "info2"), part("Discarded", report.discarded_cents, "warn")]);
}

async function repair(id, again) {
  const { repaired } = await api.write(`/v1/rains/${id}/repair`, { all: false });
  if (repaired) toast(`${count(repaired.buckets.length)} buckets repaired`, `${count(repaired.wins_restored)} wins put back`);
  else toast("Nothing to repair", "No bucket is suspect.");
  await again();
}

export async function audit(main, page, id) {
  const shown = h("div", {}, h("div", { class: "state", role: "status" }, h("span", { class: "spinner" }), "Looking for every packet"));
  const again = async () => {
    try {
      const report = await api.get(`/v1/rains/${id}/audit`);
      const differences = report.differences.length ? table(DIFFERENCES, report.differences) : empty("No differences", "Every packet was found where it belongs.");
      replace(shown, verdict(report), h("div", { class: "grid2" }, card("Sums", sums(report)), card("Where the money is", picture(report), h("p", { class: "hint" }, "The rain is ", stateOf(report), "."))), h("section", { class: "card flush" }, h("h2", {}, "Differences"), differences));
    } catch (problem) {
      replace(shown, failure(problem, again));
    }
  };
  const anew = button("Audit again", again, "primary");
  const mend = writing("audits", Object.assign(button("Repair suspect buckets", () => repair(id, again)), { id: "do-repair" }));
  replace(main, h("a", { class: "back", href: `#/rains/${id}` }, `Rain ${id}`), heading("Audit", "Recomputed from the seed, compared with every bucket and the ledger", mend, anew), shown);
  await again();
}
audit.title = "Audit";
