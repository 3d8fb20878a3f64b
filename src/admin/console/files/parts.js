// What pages are made of: titles, tables, badges, dialogs, states.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { fullTime, money, time } from "./format.js";

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

/** Not twice at the same time; what goes wrong is told. */
export async function busy(node, act) {
  if (node.disabled) return;
  node.disabled = true;
  try {
    await act();
  } catch (problem) {
    toast(problem.title ?? "It did not work", problem.message, "bad");
  } finally {
    node.disabled = false;
  }
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
  return h("div", { class: "state failed", role: "alert" }, h("strong", {}, problem.title ?? "It did not work"), h("p", {}, problem.message), again && button("Try again", again));
}

export function notice(tone, ...children) {
  return h("div", { class: `notice ${tone}` }, children);
}

/** Columns: [title, cell(row), class]. On a phone each row is a block, and cells carry their titles. */
export function table(columns, rows, onRow) {
  const cells = (row) => columns.map(([title, cell, kind]) => h("td", { class: kind, "data-title": title }, cell(row)));
  return h("div", { class: "scroll" }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { class: kind, scope: "col" }, title)))),
    h("tbody", {}, rows.map((row) => h("tr", onRow ? { class: "link", onclick: () => onRow(row) } : {}, cells(row))))));
}

/** A list in pages: `read(cursor)` gives {rows, next}. */
export function pages(read, draw, whenEmpty) {
  const body = h("div", {}, loading());
  const foot = h("div", { class: "foot" });
  let rows = [];
  const more = async (cursor) => {
    try {
      const page = await read(cursor);
      rows = rows.concat(page.rows);
      replace(body, rows.length ? draw(rows) : whenEmpty);
      replace(foot, page.next ? button("Show more", () => more(page.next)) : null);
    } catch (problem) {
      replace(body, failure(problem, () => more(cursor)));
    }
  };
  more();
  return h("div", {}, body, foot);
}

/** For a list of the API, whichever way it names its next page. */
export async function page(path, name, cursor) {
  const answer = await api.get(path + (cursor ? `${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}` : ""));
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

/** Asks. `read()` makes the answer of the fields, or throws what is wrong with them; null: no. */
export function dialog({ title, text, fields = [], yes, danger = false, read = () => true }) {
  return new Promise((resolve) => {
    const fault = h("p", { class: "fault", role: "alert" });
    const end = (answer) => {
      node.close();
      node.remove();
      resolve(answer);
    };
    const decide = (event) => {
      event.preventDefault();
      try {
        end(read());
      } catch (problem) {
        fault.textContent = problem.message;
      }
    };
    const node = h("dialog", { oncancel: () => end(null) }, h("form", { onsubmit: decide }, h("h2", {}, title), [text].flat().map((line) => line && h("p", {}, line)), fields, fault,
      h("div", { class: "actions end" }, h("button", { type: "button", onclick: () => end(null) }, "Cancel"), h("button", { type: "submit", class: danger ? "danger" : "primary", id: "yes" }, yes))));
    document.body.append(node);
    node.showModal();
  });
}

/** The second step of what moves money: what the server says would happen. */
export function confirm(problem) {
  const { what = "", cents } = problem.body;
  const text = what.charAt(0).toUpperCase() + what.slice(1) + ".";
  return dialog({ title: cents === null || cents === undefined ? "Are you sure?" : `This moves ${money(cents)}`, text: [text, "Nothing has happened yet."], yes: "Do it", danger: true });
}

export function toast(title, text, tone = "good") {
  let stack = document.querySelector(".toasts");
  if (!stack) {
    stack = h("div", { class: "toasts", role: "status" });
    document.body.append(stack);
  }
  const node = h("div", { class: `toast ${tone}` }, h("strong", {}, title), text && h("p", {}, text));
  node.addEventListener("click", () => node.remove());
  stack.append(node);
  setTimeout(() => node.remove(), tone === "bad" ? 12_000 : 5_000);
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
