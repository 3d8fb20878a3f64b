// What pages are made of: titles, tables, badges, dialogs, states.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, fullTime, money, sentence, time } from "./format.js";

const TONES = {
  created: "quiet", ready: "info", open: "good", paused: "warn", closed: "quiet", refunded: "quiet", finished: "quiet",
  active: "good", revoked: "bad", expired: "warn", done: "good", refused: "warn", failed: "bad", unknown: "bad",
};

export function badge(text, tone = TONES[text] ?? "quiet") {
  return h("span", { class: `badge ${tone}` }, h("i", {}), text.replaceAll("_", " "));
}

export function stateOf(rain) {
  return rain.sold_out && rain.state === "open" ? badge("sold out", "info") : badge(rain.state);
}

export function heading(title, hint, ...actions) {
  return h("header", { class: "heading" }, h("div", {}, h("h1", {}, title), hint && h("p", { class: "hint" }, hint)), h("div", { class: "actions" }, actions));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), children);
}

export function button(text, act, kind = "") {
  const node = h("button", { type: "button", class: kind, onclick: () => busy(node, act) }, text);
  return node;
}

/** Not twice at the same time; what goes wrong is told beside the button. */
export async function busy(node, act) {
  if (node.disabled) return;
  const around = node.closest(".actions, .foot") ?? node;
  if (around.nextElementSibling?.matches(".fault.beside")) around.nextElementSibling.remove();
  node.disabled = true;
  try {
    await act();
  } catch (problem) {
    around.after(h("p", { class: "fault beside", role: "alert" }, faultText(problem)));
  } finally {
    node.disabled = false;
    // A question that was asked meanwhile could not give the focus back to a button that was off.
    if (document.activeElement === document.body) node.focus();
  }
}

export function faultText(problem) {
  return problem.title && problem.title !== problem.message ? `${sentence(problem.title)}: ${problem.message}.` : problem.message;
}

// Which role a person without the permission would need.
const NEEDS = { rains: "operator", accounts: "finance", dead_letters: "operator or finance", audits: "operator", keys: "admin", webhooks: "operator" };

/** What only those see who may write; the others are told so. */
export function writing(module, ...buttons) {
  if (api.may(module, "write")) return buttons;
  return h("span", { class: "readonly", title: `Your key may look here and change nothing. Changes need the role ${NEEDS[module]}.` }, `Read only: changes need the role ${NEEDS[module]}`);
}

export function moment(ms) {
  return h("time", { title: fullTime(ms) }, time(ms));
}

export function loading() {
  return h("div", { class: "state", role: "status" }, h("span", { class: "spinner" }), "Loading");
}

export function empty(title, hint, ...more) {
  return h("div", { class: "state empty" }, h("strong", {}, title), hint && h("p", {}, hint), more);
}

export function failure(problem, again) {
  return h("div", { class: "state failed", role: "alert" }, h("strong", {}, sentence(problem.title ?? "It did not work")), h("p", {}, sentence(problem.message)), again && button("Try again", again));
}

export function notice(tone, ...children) {
  return h("div", { class: `notice ${tone}` }, children);
}

/** Columns: [title, cell(row), class]. On a phone each row is a block, and cells carry their titles. */
export function table(columns, rows, onRow) {
  const cells = (row) => columns.map(([title, cell, kind]) => h("td", { class: kind, "data-title": title }, cell(row)));
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => (onRow ? clickable(h("tr", { class: "link" }, cells(row)), () => onRow(row)) : h("tr", {}, cells(row)))))));
}

/** A row that leads somewhere, by mouse and, if there is no link in it, by keyboard. */
function clickable(row, act) {
  row.addEventListener("click", (event) => event.target.closest("a, button") || act());
  if (row.querySelector("a, button")) return row;
  row.tabIndex = 0;
  row.addEventListener("keydown", (event) => event.target === row && event.key === "Enter" && act());
  return row;
}

/** A list in pages: `read(cursor, background)` gives {rows, next}. `node.look()` reads the first page anew, unless more of them are shown. */
export function pages(read, draw, whenEmpty) {
  const body = h("div", {}, loading());
  const foot = h("div", { class: "foot" });
  let [rows, shown, last] = [[], 0, null];
  const put = (page) => {
    const now = JSON.stringify(rows, (_, value) => (typeof value === "bigint" ? value.toString() : value));
    if (now !== last) replace(body, rows.length ? draw(rows) : whenEmpty);
    last = now;
    const more = page.next && [h("span", { class: "hint" }, `${count(rows.length)} shown`), button("Show more", () => next(page.next))];
    replace(foot, more);
  };
  const next = async (cursor) => {
    const page = await read(cursor);
    rows = rows.concat(page.rows);
    shown += 1;
    put(page);
  };
  const first = () => next().catch((problem) => replace(body, failure(problem, first)));
  first();
  const node = h("div", { class: "pages" }, body, foot);
  node.look = async () => {
    if (shown !== 1) return;
    const page = await read(undefined, true).catch(() => null);
    if (!page || shown !== 1) return;
    rows = page.rows;
    put(page);
  };
  return node;
}

/** For a list of the API, whichever way it names its next page. */
export async function page(path, name, cursor, background = false) {
  const answer = await api.get(path + (cursor ? `${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : ""), { background });
  return { rows: answer[name], next: answer.next_cursor, answer };
}

export function field(label, input, hint) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));
}

export function input(name, more = {}) {
  return h("input", { name, id: name, autocomplete: "off", ...more });
}

export function select(name, options, value) {
  return h("select", { name, id: name }, options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)));
}

/**
 * Asks. `read()` makes the answer of the fields, or throws what is wrong with them; `act(answer, key)` does it while the question still stands, so that
 * what goes wrong is told there; `key` is the same as long as the answer is. Gives what `act` gave, or the answer; null: no.
 */
export function dialog({ title, text, fields = [], yes, no = "Cancel", id = "yes", danger = false, read = () => true, act = (answer) => answer }) {
  return new Promise((resolve) => {
    const keyOf = api.wishes();
    const fault = h("p", { class: "fault", role: "alert" });
    const enter = h("button", { type: "submit", class: danger ? "danger" : "primary", id }, yes);
    const end = (answer) => {
      node.close();
      node.remove();
      resolve(answer);
    };
    const decide = async (event) => {
      event.preventDefault();
      if (enter.disabled) return;
      enter.disabled = true;
      fault.textContent = "";
      try {
        const answer = read();
        end(await act(answer, keyOf(answer)));
      } catch (problem) {
        fault.textContent = faultText(problem);
      } finally {
        enter.disabled = false;
      }
    };
    const node = h("dialog", { "aria-label": title, oncancel: (event) => { event.preventDefault(); end(null); } }, h("form", { onsubmit: decide, novalidate: true }, h("h2", {}, title), [text].flat().map((line) => line && h("p", {}, line)), fields, fault,
      h("div", { class: "actions end" }, no && h("button", { type: "button", onclick: () => end(null) }, no), enter)));
    document.body.append(node);
    node.showModal();
    (node.querySelector("input:not([type=checkbox]), select, textarea") ?? (danger && no ? node.querySelector("button") : enter)).focus();
  });
}

/** The second step of what moves money: what the server says would happen. */
export function confirm(problem) {
  const { what = "", cents } = problem.body;
  const text = what.charAt(0).toUpperCase() + what.slice(1) + ".";
  return dialog({ title: cents === null || cents === undefined ? "Are you sure?" : `This moves ${money(cents)}`, text: [text, "Nothing has happened yet."], yes: "Do it", id: "sure", danger: true });
}

/** A secret is shown once. */
export function secretDialog(title, secret, hint) {
  const text = h("code", { class: "secret", id: "credential" }, secret);
  const copy = navigator.clipboard && button("Copy", async () => {
    await navigator.clipboard.writeText(secret);
    copy.textContent = "Copied";
  });
  return dialog({ title, text: ["Keep it now: it is shown once, and the server does not keep it.", hint], fields: [h("div", { class: "secretline" }, text, copy)], yes: "I have it", no: null });
}

/** What has been done, in a line that covers nothing. Only the last is shown. */
export function toast(title, text) {
  document.querySelector(".toasts")?.remove();
  const line = h("div", { class: "toasts", role: "status" }, h("strong", {}, title), text && h("span", {}, text));
  (document.querySelector("#said") ?? document.body).append(line);
  setTimeout(() => line.remove(), 6_000);
}

export function tile(name, value, hint, { id, tone = "" } = {}) {
  return h("div", { class: `tile ${tone}` }, h("span", {}, name), h("strong", { id, class: typeof value === "string" && value.length > 11 ? "long" : undefined }, value), h("small", {}, hint));
}

/** Names and values; those without a value are left out. */
export function facts(...all) {
  return h("dl", { class: "facts" }, all.filter(([, value]) => value !== undefined && value !== null && value !== false).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** What is offered while somebody writes a name. */
export async function suggest(list, path, name, read) {
  const answer = await api.get(path).catch(() => null);
  list.append(...(answer?.[name] ?? []).map(read));
}

/** Runs now and every `ms` until the page is left. */
export function poll(page, ms, act) {
  let timer = 0;
  const round = async () => {
    if (!page.alive) return;
    if (!document.hidden) await act();
    if (page.alive) timer = setTimeout(round, ms);
  };
  page.leave.push(() => clearTimeout(timer));
  round();
}
