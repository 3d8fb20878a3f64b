// Keys of the admin API.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { badge, button, confirm, dialog, empty, field, heading, input, moment, page, pages, secretDialog, select, table, toast } from "./parts.js";

const ROLES = [["viewer", "sees everything but keys"], ["operator", "prepares and runs rains, and puts right what goes wrong"], ["finance", "moves money: deposits, dead letters"], ["admin", "may do everything, keys included"]];
const OVERLAPS = [["86400000", "A day"], ["3600000", "An hour"], ["0", "Not at all: the old secret ends now"]];

const issued = (title, key) => secretDialog(title, key.credential);

async function create(again) {
  const name = input("key-name", { placeholder: "dashboard", maxlength: "64" });
  const boxes = ROLES.map(([role]) => h("input", { type: "checkbox", id: `role-${role}`, value: role }));
  const roles = h("div", { class: "field" }, h("span", {}, "Roles"), ROLES.map(([role, text], n) => h("label", { class: "check" }, boxes[n], h("span", {}, h("b", {}, role), ` ${text}`))));
  const read = () => {
    const chosen = ROLES.map(([role]) => role).filter((_, n) => boxes[n].checked);
    if (!name.value.trim() || !chosen.length) throw new Error("A key needs a name and at least one role.");
    return { name: name.value.trim(), roles: chosen };
  };
  const key = await dialog({ title: "New key", fields: [field("Name", name, "Who or what uses it. It stands in the log."), roles], yes: "Create", read, act: (body, wish) => api.write("/v1/keys", body, { key: wish, confirm }) });
  if (!key) return;
  await issued(`The key “${key.name}”`, key);
  again();
}

async function rotate(key, again) {
  const overlap = select("overlap", OVERLAPS, "86400000");
  const made = await dialog({ title: `A new secret for “${key.name}”?`, text: "Bring it to whoever uses the key while the old one is still good.", fields: [field("The old secret stays good for", overlap)], yes: "Rotate", read: () => ({ overlap_ms: Number(overlap.value) }),
    act: (body, wish) => api.write(`/v1/keys/${key.id}/rotate`, body, { key: wish, confirm }) });
  if (!made) return;
  await issued(`The new secret of “${key.name}”`, made);
  again();
}

async function revoke(key, again) {
  const done = await dialog({ title: `Revoke “${key.name}”?`, text: "Whoever uses it is refused from now on, and its sessions end. This cannot be taken back.", yes: "Revoke", danger: true, act: (_, wish) => api.write(`/v1/keys/${key.id}/revoke`, {}, { key: wish, confirm }) });
  if (!done) return;
  toast("Revoked", key.name);
  again();
}

export function keys(main) {
  const writes = api.may("keys", "write");
  const list = h("div", {});
  const act = (key) => key.state === "active" && h("div", { class: "actions" }, button("Rotate", () => rotate(key, again), "small"), button("Revoke", () => revoke(key, again), "small danger"));
  const columns = [
    ["Name", (key) => [h("span", { title: key.name }, key.name), h("small", { class: "hint under" }, key.id)], "lead"],
    ["Roles", (key) => key.roles.join(", ")],
    ["State", (key) => badge(key.state)],
    ["Secret", (key) => (key.old_secret_until_ms ? ["the old one until ", moment(key.old_secret_until_ms)] : `no. ${key.generation}`)],
    ["Last used", (key) => moment(key.last_used_at_ms), "number"],
    ["Created", (key) => moment(key.created_at_ms), "number"],
    ...(writes ? [["", act, "acts"]] : []),
  ];
  const again = () => replace(list, pages((cursor) => page("/v1/keys?limit=100", "keys", cursor), (rows) => table(columns, rows), empty("No keys yet", "Only “bootstrap”, of whoever runs the server. Make one for every person and program.")));
  replace(main, heading("Keys", "Who may use the API, and for what", writes && Object.assign(button("New key", () => create(again), "primary"), { id: "new-key" })), h("section", { class: "card flush" }, list));
  again();
}
keys.title = "Keys";
