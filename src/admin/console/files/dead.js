// Claims that wait for a person.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, money } from "./format.js";
import { badge, button, confirm, dialog, empty, field, heading, input, moment, page, pages, table, toast, writing } from "./parts.js";

function filter(rain, reason) {
  const query = new URLSearchParams({ limit: "50" });
  if (/^\d+$/.test(rain)) query.set("rain", rain);
  if (reason) query.set("reason", reason);
  return query;
}

async function requeue(row, again) {
  const { requeued } = await api.write(`/v1/dead-letters/${row.packet_id}/requeue`, {});
  toast(requeued ? "It is tried again" : "It was tried again before", `Packet ${row.packet_id}, ${money(row.cents)} for ${row.user}`);
  again();
}

async function discard(row, again) {
  const reason = input("why", { maxlength: "200" });
  const read = () => {
    if (!reason.value.trim()) throw new Error("Say why: it is kept in the ledger.");
    return { reason: reason.value.trim() };
  };
  const done = await dialog({ title: "Discard this claim?", text: `${row.user} does not get ${money(row.cents)}; the money goes back to the sponsor, for good.`, fields: [field("Reason", reason, "Kept in the ledger and in the log.")], yes: "Discard", danger: true, read,
    act: (body, key) => api.write(`/v1/dead-letters/${row.packet_id}/discard`, body, { key, confirm }) });
  if (!done) return;
  toast("Discarded", done.detail);
  again();
}

async function requeueAll(rain, reason, again) {
  const which = `${reason ? `all with the reason “${reason}”` : "all"}${rain ? ` of rain ${rain}` : ""}`;
  const body = { rain: rain ? Number(rain) : undefined, reason: reason || undefined };
  const done = await dialog({ title: "Try again?", text: `The settlers try ${which} again. Those that fail again come back here; nobody is paid twice.`, yes: "Requeue", act: (_, key) => api.write("/v1/dead-letters/requeue", body, { key }) });
  if (!done) return;
  toast(`${count(done.requeued)} are tried again`);
  again();
}

function columns(again) {
  const writes = api.may("dead_letters", "write");
  const act = (row) => h("div", { class: "actions" }, button("Requeue", () => requeue(row, again), "small requeue"), button("Discard", () => discard(row, again), "small danger"));
  return [
    ["User", (row) => row.user, "lead"],
    ["Amount", (row) => money(row.cents), "number"],
    ["Rain", (row) => h("a", { href: `#/rains/${row.rain_id}` }, row.rain_id)],
    ["Why", (row) => [badge(row.reason.split(":")[0], "warn"), " ", h("span", { class: "hint" }, row.reason.split(":").slice(1).join(":").trim())], "wide"],
    ["Tries", (row) => count(row.attempts), "number"],
    ["Since", (row) => moment(row.at_ms), "number"],
    ...(writes ? [["", act, "acts"]] : []),
  ];
}

export function dead(main, _, ofRain) {
  const [search, rain, reason] = [input("search", { type: "search", placeholder: "User or packet" }), input("rain", { inputmode: "numeric", placeholder: "Any", value: ofRain ?? "" }), input("reason", { placeholder: "Any, like unknown_account" })];
  const list = h("div", {});
  let shown = [];
  const matches = (row) => !search.value.trim() || row.user.includes(search.value.trim()) || row.packet_id.includes(search.value.trim());
  const none = () => empty(shown.length ? "None like that" : "No dead letters", shown.length ? "The search looks at what is loaded; the filters ask the server." : "Every claim finds its way by itself.");
  const draw = (rows) => {
    shown = rows;
    const found = rows.filter(matches);
    return found.length ? table(columns(again), found) : none();
  };
  const again = () => replace(list, pages((cursor) => page(`/v1/dead-letters?${filter(rain.value.trim(), reason.value.trim())}`, "dead_letters", cursor), draw, empty("No dead letters", "Every claim finds its way by itself.")));
  const all = Object.assign(button("Requeue all of these", () => requeueAll(rain.value.trim(), reason.value.trim(), again)), { id: "requeue-all" });
  search.addEventListener("input", () => shown.length && replace(list, draw(shown)));
  [rain, reason].forEach((node) => node.addEventListener("change", again));
  replace(main, heading("Dead letters", "Claims that could not be credited, and wait for you to decide", writing("dead_letters", all)),
    h("section", { class: "card flush" }, h("div", { class: "filters" }, field("Search", search), field("Rain", rain), field("Reason", reason)), list));
  again();
}
dead.title = "Dead letters";
