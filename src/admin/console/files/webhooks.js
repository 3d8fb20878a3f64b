// Other people's servers that are told what happens.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, fullTime } from "./format.js";
import { badge, button, card, dialog, empty, facts, failure, field, heading, input, loading, moment, pages, secretDialog, select, table, toast, writing } from "./parts.js";
import { deliveries } from "./deliveries.js";

const EVENTS = [["rain.opened", "a rain has opened"], ["rain.sold_out", "every packet is won"], ["rain.closed", "it is over"], ["rain.refunded", "what was left is back with its sponsor"], ["claim.dead", "a claim needs a person"]];
const OVERLAPS = [["86400000", "A day"], ["3600000", "An hour"], ["0", "Not at all: the old secret ends now"]];

function eventBoxes(chosen) {
  const boxes = EVENTS.map(([name]) => h("input", { type: "checkbox", id: `event-${name.replace(".", "-")}`, checked: chosen.includes(name) }));
  const node = h("div", { class: "field" }, h("span", {}, "Events"), EVENTS.map(([name, text], n) => h("label", { class: "check" }, boxes[n], h("span", {}, h("b", {}, name), ` ${text}`))));
  const read = () => {
    const events = EVENTS.map(([name]) => name).filter((_, n) => boxes[n].checked);
    if (!events.length) throw new Error("Choose at least one event.");
    return events;
  };
  return { node, read };
}

function addressField(url) {
  const node = input("url", { type: "url", placeholder: "https://quiz.example/hongbao", maxlength: "2048", value: url });
  const read = () => {
    if (!node.value.trim()) throw new Error("Say where it is: https, or plain http to this machine.");
    return node.value.trim();
  };
  return { node: field("Address", node, "What is sent, and how to check its signature, stands in proto/webhooks.md."), read };
}

async function create(again) {
  const [address, events] = [addressField(""), eventBoxes(EVENTS.map(([name]) => name))];
  const read = () => ({ url: address.read(), events: events.read() });
  const made = await dialog({ title: "New webhook", fields: [address.node, events.node], yes: "Create", read, act: (body, key) => api.write("/v1/webhooks", body, { key }) });
  if (!made) return;
  await secretDialog("The secret of the webhook", made.secret, "The receiver checks signatures with it.");
  again();
  location.hash = `/webhooks/${made.id}`;
}

async function edit(webhook, again) {
  const [address, events] = [addressField(webhook.url), eventBoxes(webhook.events)];
  const read = () => ({ url: address.read(), events: events.read() });
  const done = await dialog({ title: "Edit the webhook", fields: [address.node, events.node], yes: "Save", read, act: (body, key) => api.write(`/v1/webhooks/${webhook.id}/update`, body, { key }) });
  if (!done) return;
  toast("Saved", done.url);
  again();
}

async function enable(webhook, enabled, again) {
  const write = (key) => api.write(`/v1/webhooks/${webhook.id}/update`, { enabled }, { key });
  const text = "It gets no new deliveries. What is pending waits until it is enabled again.";
  const done = enabled ? await write() : await dialog({ title: "Disable this webhook?", text, yes: "Disable", danger: true, act: (_, key) => write(key) });
  if (!done) return;
  toast(enabled ? "Enabled" : "Disabled", webhook.url);
  again();
}

async function rotate(webhook, again) {
  const overlap = select("overlap", OVERLAPS, "86400000");
  const made = await dialog({ title: "A new secret?", text: "Bring it to the receiver while deliveries still carry a signature by the old one, too.", fields: [field("The old secret signs as well for", overlap)], yes: "Rotate",
    read: () => ({ overlap_ms: Number(overlap.value) }), act: (body, key) => api.write(`/v1/webhooks/${webhook.id}/rotate`, body, { key }) });
  if (!made) return;
  await secretDialog("The new secret of the webhook", made.secret, "The receiver checks signatures with it.");
  again();
}

async function remove(webhook) {
  const done = await dialog({ title: "Delete this webhook?", text: [webhook.url, "Nothing is sent there any more, what is pending neither. This cannot be taken back: a new one has a new secret."], yes: "Delete", danger: true, act: (_, key) => api.write(`/v1/webhooks/${webhook.id}/delete`, {}, { key }) });
  if (!done) return;
  toast("Deleted", webhook.url);
  location.hash = "/webhooks";
}

async function test(webhook, log) {
  await api.write(`/v1/webhooks/${webhook.id}/test`, {});
  toast("A test is on its way", "The log below says how it went.");
  log.look();
}

const state = (webhook) => (webhook.deleted_at_ms ? badge("deleted", "bad") : webhook.enabled ? badge("enabled", "good") : badge("disabled", "warn"));

const COLUMNS = [
  ["Address", (row) => h("a", { href: `#/webhooks/${row.id}`, title: row.url }, row.url), "lead"],
  ["State", state],
  ["Events", (row) => (row.events.length === EVENTS.length ? "all" : row.events.join(", ")), "wide"],
  ["Created", (row) => moment(row.created_at_ms), "number"],
];

export function webhooks(main, page) {
  const list = h("div", {});
  const fresh = () => Object.assign(button("New webhook", () => create(again), "primary"), { id: "new-webhook" });
  const none = () => empty("No webhook yet", "Have your server told when a rain opens, sells out or closes, and when a claim needs a person.");
  const read = async (_, background) => ({ rows: (await api.get("/v1/webhooks", { background })).webhooks });
  const again = () => replace(list, pages(read, (rows) => table(COLUMNS, rows, (row) => (location.hash = `/webhooks/${row.id}`)), none()));
  replace(main, heading("Webhooks", "Servers that are told what happens", writing("webhooks", fresh())), h("section", { class: "card flush" }, list), deliveries(page).node);
  again();
}
webhooks.title = "Webhooks";

function actions(webhook, again, log) {
  if (webhook.deleted_at_ms) return null;
  const all = [
    webhook.enabled ? ["test", "Send a test", () => test(webhook, log), "primary"] : ["enable", "Enable", () => enable(webhook, true, again), "primary"],
    ["edit", "Edit", () => edit(webhook, again), ""],
    ["rotate", "New secret", () => rotate(webhook, again), ""],
    webhook.enabled && ["disable", "Disable", () => enable(webhook, false, again), "danger"],
    ["delete", "Delete", () => remove(webhook), "danger"],
  ];
  return writing("webhooks", ...all.filter(Boolean).map(([id, text, act, kind]) => Object.assign(button(text, act, kind), { id: `hook-${id}` })));
}

export async function webhook(main, page, id) {
  const [head, log] = [h("div", {}), deliveries(page, id)];
  replace(main, loading());
  const again = async (background = false) => {
    const found = await api.get(`/v1/webhooks/${encodeURIComponent(id)}`, { background });
    replace(head, h("a", { class: "back", href: "#/webhooks" }, "Webhooks"), heading(found.url, ["Webhook ", found.id, " ", state(found)], actions(found, again, log)),
      card(null, facts(["Events", found.events.length === EVENTS.length ? "all" : found.events.join(", ")], ["Secret", `no. ${count(found.generation)}`], ["Old secret signs until", found.old_secret_until_ms && fullTime(found.old_secret_until_ms)],
        ["Created", fullTime(found.created_at_ms)], ["Deleted", found.deleted_at_ms && fullTime(found.deleted_at_ms)])));
  };
  try {
    await again();
    if (page.alive) replace(main, head, log.node);
  } catch (problem) {
    if (page.alive) replace(main, failure(problem, () => webhook(main, page, id)));
  }
}
webhook.title = "Webhook";
