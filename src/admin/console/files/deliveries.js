// The log of deliveries to webhooks, as they go, and sending again by hand.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, fromNow, fullTime, seconds } from "./format.js";
import { badge, button, dialog, empty, facts, failure, field, loading, moment, page, pages, poll, select, table, toast } from "./parts.js";

const STATES = [["", "All"], ["pending", "Pending"], ["delivered", "Delivered"], ["failed", "Failed"]];
const TONES = { pending: "info", delivered: "good", failed: "bad" };

const TRIES = [
  ["Try", (row) => `no. ${row.number}`, "lead"],
  ["When", (row) => moment(row.at_ms)],
  ["Answer", (row) => row.status ?? "none", "number"],
  ["Took", (row) => seconds(row.took_ms / 1000), "number"],
  ["What went wrong", (row) => row.error ?? "–", "wide"],
];

/** What was sent and every try, and the wish to send it again. */
async function details(id, again) {
  const body = h("div", { class: "details" }, loading());
  const show = async () => {
    const found = await api.get(`/v1/deliveries/${id}`);
    replace(body, facts(["State", badge(found.state, TONES[found.state])], ["Event", found.event], ["Happened", fullTime(found.event_at_ms)], ["Event id", found.event_id], ["Tries", count(found.attempts)], ["Next try", found.next_at_ms && fullTime(found.next_at_ms)]),
      found.log.length ? table(TRIES, found.log.toReversed()) : h("p", { class: "hint" }, "It has not been tried yet."), h("div", { class: "field" }, h("span", {}, "What is sent"), h("pre", { tabindex: "0" }, JSON.stringify(JSON.parse(api.toJson(found.body)), null, 2))));
  };
  show().catch((problem) => replace(body, failure(problem)));
  const may = api.may("webhooks", "write");
  const send = async (_, key) => may && api.write(`/v1/deliveries/${id}/resend`, {}, { key });
  const done = await dialog({ title: `Delivery ${id}`, fields: [body], yes: may ? "Send again" : "Close", no: may ? "Close" : null, act: send });
  if (!done) return;
  toast("It is sent again", `Delivery ${id}`);
  again();
}

async function resend(row, again) {
  await api.write(`/v1/deliveries/${row.id}/resend`, {});
  toast("It is sent again", row.event);
  again();
}

async function resendFailed(webhook, again) {
  const text = `Everything that has failed${webhook ? "" : ", of all webhooks,"} is sent again. Receivers tell repeats by the event's id.`;
  const done = await dialog({ title: "Send all failed ones again?", text, yes: "Send again", act: (_, key) => api.write("/v1/deliveries/resend", webhook ? { webhook } : {}, { key }) });
  if (!done) return;
  toast(`${count(done.resent)} are sent again`);
  again();
}

/** A card with the log, of one webhook or of all; `look()` reads it anew. */
export function deliveries(here, webhook) {
  const state = select("delivery-state", STATES, "");
  const list = h("div", {});
  let shown = null;
  const look = () => shown?.look();
  const columns = [
    ["Event", (row) => [h("button", { type: "button", class: "link", onclick: () => details(row.id, look) }, row.event), h("small", { class: "hint under" }, row.event_id)], "lead"],
    ["State", (row) => badge(row.state, TONES[row.state])],
    ...(webhook ? [] : [["Webhook", (row) => h("a", { href: `#/webhooks/${row.webhook}` }, row.webhook)]]),
    ["Tries", (row) => count(row.attempts), "number"],
    ["Happened", (row) => moment(row.event_at_ms), "number"],
    ["Next try", (row) => (row.next_at_ms ? h("time", { title: fullTime(row.next_at_ms) }, row.next_at_ms <= Date.now() ? "now" : fromNow(row.next_at_ms)) : "–"), "number"],
    ...(api.may("webhooks", "write") ? [["", (row) => row.state === "failed" && h("div", { class: "actions" }, button("Send again", () => resend(row, look), "small resend")), "acts"]] : []),
  ];
  const read = (cursor, background) => {
    const query = new URLSearchParams({ limit: "50" });
    if (webhook) query.set("webhook", webhook);
    if (state.value) query.set("state", state.value);
    return page(`/v1/deliveries?${query}`, "deliveries", cursor, background);
  };
  const again = () => {
    const none = empty(state.value ? "None like that" : "Nothing has been sent yet", state.value ? null : "Events show here as they happen. A test shows whether a receiver takes them.");
    shown = pages(read, (rows) => table(columns, rows), none);
    replace(list, shown);
  };
  state.addEventListener("change", again);
  const all = api.may("webhooks", "write") && Object.assign(button("Send all failed again", () => resendFailed(webhook, look), "small"), { id: "resend-failed" });
  const node = h("section", { class: "card flush", id: "deliveries" }, h("div", { class: "cardhead" }, h("h2", {}, "Deliveries"), h("div", { class: "actions" }, all, field("State", state))), list);
  again();
  poll(here, 1000, look);
  return { node, look };
}
