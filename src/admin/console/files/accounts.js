// Balances, deposits, and the lines of one account.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { cents, money, words } from "./format.js";
import { badge, button, card, confirm, dialog, empty, failure, field, heading, input, loading, moment, page, pages, select, table, toast, writing } from "./parts.js";

const KINDS = [["sponsor:", "Sponsors"], ["escrow:", "Escrow of rains"], ["user:", "Users"], ["", "All"]];

async function open(again) {
  const name = input("sponsor-name", { placeholder: "acme" });
  const read = () => {
    if (!name.value.trim()) throw new Error("Say what the sponsor is called.");
    return { sponsor: name.value.trim() };
  };
  const account = await dialog({ title: "New sponsor", text: "Opens an account. One that is open stays as it is.", fields: [field("Name", name)], yes: "Open", read, act: (body, key) => api.write("/v1/accounts", body, { key }) });
  if (!account) return;
  toast("The account is open", account.name);
  again();
}

async function deposit(sponsor, again) {
  const [amount, reference] = [input("amount", { inputmode: "decimal", placeholder: "10,000.00" }), input("reference", { placeholder: "bank reference", maxlength: "100" })];
  const read = () => {
    const value = cents(amount.value);
    if (!value) throw new Error("Say how much, like 10,000.00.");
    return { body: { cents: value }, key: reference.value.trim() || undefined };
  };
  const account = await dialog({ title: `Deposit for ${sponsor}`, text: "Records money that was paid in.", fields: [field("Amount", amount), field("Reference", reference, "The same reference is never recorded twice.")], yes: "Go on", read,
    act: (asked, key) => api.write(`/v1/accounts/${encodeURIComponent(sponsor)}/deposits`, asked.body, { key: asked.key ?? key, confirm }) });
  if (!account) return;
  toast("Recorded", `${sponsor} has ${money(account.balance_cents)}`);
  again();
}

export function accounts(main) {
  const writes = api.may("accounts", "write");
  const list = h("div", {});
  const kind = select("kind", KINDS, "sponsor:");
  const begins = input("begins", { type: "search", placeholder: "The beginning of a name", maxlength: "64" });
  const prefix = () => encodeURIComponent(kind.value + begins.value.trim());
  const columns = [
    ["Account", (row) => h("a", { href: `#/accounts/${row.name}`, title: row.name }, row.name), "lead"],
    ["Balance", (row) => h("span", { class: BigInt(row.balance_cents) < 0n ? "minus" : "" }, money(row.balance_cents)), "number"],
    ...(writes ? [["", (row) => row.name.startsWith("sponsor:") && button("Deposit", () => deposit(row.name.slice(8), again), "small"), "acts"]] : []),
  ];
  const again = () => replace(list, pages((cursor) => page(`/v1/accounts?limit=50&prefix=${prefix()}`, "accounts", cursor), (rows) => table(columns, rows), begins.value.trim() ? empty("No account begins like that") : empty("No account of this kind", "Sponsors pay for rains: open an account, and record what was paid in.")));
  [kind, begins].forEach((node) => node.addEventListener("change", again));
  replace(main, heading("Accounts", "Double entry: the sum of all accounts is zero", writing("accounts", Object.assign(button("New sponsor", () => open(again), "primary"), { id: "new-sponsor" }))),
    h("section", { class: "card flush" }, h("div", { class: "filters" }, field("Kind", kind), field("Name", begins)), list));
  again();
}
accounts.title = "Accounts";

const LINES = [
  ["What", (row) => [badge(row.kind, Number(row.cents) < 0 ? "quiet" : "good"), row.note && h("small", { class: "hint under" }, row.note)], "lead"],
  ["With", (row) => h("a", { href: `#/accounts/${row.other}` }, row.other)],
  ["Rain", (row) => (row.rain_id ? h("a", { href: `#/rains/${row.rain_id}` }, row.rain_id) : "–")],
  ["Packet", (row) => (row.packet_id ? h("span", { class: "mono" }, row.packet_id) : "–")],
  ["Amount", (row) => h("span", { class: Number(row.cents) < 0 ? "out" : "in" }, Number(row.cents) > 0 ? "+" : "", money(row.cents)), "number"],
  ["When", (row) => moment(row.at_ms), "number"],
];

export async function account(main, _, name) {
  const again = () => account(main, _, name);
  replace(main, loading());
  try {
    const found = await api.get(`/v1/accounts/${encodeURIComponent(name)}`);
    const pays = name.startsWith("sponsor:");
    const lines = pages((cursor) => page(`/v1/accounts/${encodeURIComponent(name)}/statement?limit=50`, "lines", cursor), (rows) => table(LINES, rows), empty("No lines yet", "Nothing has come in or gone out."));
    replace(main, h("a", { class: "back", href: "#/accounts" }, "Accounts"), heading(name, `${words(name.split(":")[0])} account`, pays && writing("accounts", button("Deposit", () => deposit(name.slice(8), again), "primary"))),
      card(null, h("div", { class: "balance" }, h("span", {}, "Balance"), h("strong", {}, money(found.balance_cents)))), h("section", { class: "card flush" }, h("h2", {}, "Statement, newest first"), lines));
  } catch (problem) {
    replace(main, failure(problem, again));
  }
}
account.title = "Account";
