// Rains by name, from which rains and schedules are made.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, money, rule } from "./format.js";
import { busy, button, confirm, dialog, empty, failure, faultText, field, heading, input, loading, notice, page, pages, table, toast, writing } from "./parts.js";
import { rainForm } from "./rainform.js";

const to = (name) => `#/templates/${encodeURIComponent(name)}`;

async function remove(name, again) {
  const done = await dialog({ title: `Delete the template “${name}”?`, text: "Rains that were made from it stay as they are.", yes: "Delete", danger: true, act: (_, key) => api.write(`/v1/templates/${encodeURIComponent(name)}/delete`, {}, { key }) });
  if (!done) return;
  toast("Deleted", name);
  again();
}

function columns(again) {
  const act = ({ name }) => h("div", { class: "actions" }, h("a", { class: "button small use", href: `#/rains/new/${encodeURIComponent(name)}` }, "New rain"), h("a", { class: "button small plan", href: `#/schedules/new/${encodeURIComponent(name)}` }, "Schedule"), button("Delete", () => remove(name, again), "small danger"));
  return [
    ["Template", ({ name, rain }) => [h("a", { href: to(name), title: name }, name), h("small", { class: "hint under", title: rain.title }, rain.title || rain.room)], "lead"],
    ["Sponsor", ({ rain }) => rain.sponsor],
    ["Split", ({ rain }) => rule(rain.rule)],
    ["Total", ({ rain }) => [money(rain.total_cents), h("small", { class: "hint under" }, `${count(rain.packets)} packets`)], "number"],
    ...(api.may("rains", "write") ? [["", act, "acts"]] : []),
  ];
}

export function templates(main) {
  const fresh = () => h("a", { class: "button primary", href: "#/templates/new", id: "new-template" }, "New template");
  const none = empty("No template yet", "Keep a rain that comes again under a name: then a new one is two clicks, and a schedule creates them by itself.", api.may("rains", "write") && fresh());
  const list = h("div", {});
  const again = () => replace(list, pages((cursor, background) => page("/v1/templates?limit=50", "templates", cursor, background), (rows) => table(columns(again), rows), none));
  replace(main, heading("Templates", "Rains by name, without their times", writing("rains", fresh())), h("section", { class: "card flush" }, list));
  again();
}
templates.title = "Templates";

function edit(main, name, rain) {
  const called = input("name", { placeholder: "friday-final", maxlength: "64", value: name ?? "" });
  const made = rainForm(rain, { template: true, first: name === undefined && field("Template name", called, "Letters, digits and . _ @ : + = / -") });
  const told = h("div", {});
  const save = h("button", { type: "submit", class: "primary", id: "save-template" }, name === undefined ? "Create template" : "Save");
  const keyOf = api.wishes();
  const write = async () => {
    const body = made.read();
    delete body.opens_at_ms;
    if (name === undefined && !called.value.trim()) throw new Error("It needs a name");
    const [path, sent] = name === undefined ? ["/v1/templates", { name: called.value.trim(), rain: body }] : [`/v1/templates/${encodeURIComponent(name)}/update`, { rain: body }];
    const template = await api.write(path, sent, { key: keyOf(sent), confirm });
    if (!template) return;
    toast(name === undefined ? "The template is there" : "Saved", template.name);
    location.hash = "/templates";
  };
  const send = (event) => {
    event.preventDefault();
    busy(save, () => write().catch((problem) => replace(told, notice("warn", h("strong", {}, "Not yet"), h("p", {}, faultText(problem))))));
  };
  const changed = () => {
    made.changed();
    replace(told);
  };
  const form = h("form", { class: "columns", oninput: changed, onsubmit: send, novalidate: true }, h("div", {}, made.cards),
    h("div", { class: "aside" }, made.preview, told, h("div", { class: "actions end" }, h("a", { class: "button", href: "#/templates" }, "Cancel"), api.may("rains", "write") && save)));
  const plan = name !== undefined && [h("a", { class: "button", href: `#/schedules/new/${encodeURIComponent(name)}` }, "Schedule"), h("a", { class: "button primary", href: `#/rains/new/${encodeURIComponent(name)}` }, "New rain")];
  replace(main, h("a", { class: "back", href: "#/templates" }, "Templates"), heading(name ?? "New template", name === undefined ? "A rain that comes again, under a name" : "Rains that were made from it stay as they are", plan && writing("rains", ...plan)), form);
}

// What a rain has that its template may have too.
const OF_TEMPLATE = ["title", "room", "sponsor", "rule", "total_cents", "packets", "min_cents", "max_cents", "duration_ms", "durability", "key_required"];

/** `like`: the number of a rain to begin with. */
export async function newTemplate(main, page, like) {
  if (!api.may("rains", "write")) return replace(main, failure({ title: "Your key may not make templates", message: "Ask for one with the role operator." }));
  if (like === undefined) return edit(main, undefined, {});
  replace(main, loading());
  try {
    const rain = await api.get(`/v1/rains/${like}`);
    if (page.alive) edit(main, undefined, Object.fromEntries(OF_TEMPLATE.map((name) => [name, rain[name]])));
  } catch (problem) {
    if (page.alive) replace(main, failure(problem, () => newTemplate(main, page, like)));
  }
}
newTemplate.title = "New template";

export async function template(main, page, name) {
  replace(main, loading());
  try {
    const found = await api.get(`/v1/templates/${encodeURIComponent(name)}`);
    if (page.alive) edit(main, name, found.rain);
  } catch (problem) {
    if (page.alive) replace(main, failure(problem, () => template(main, page, name)));
  }
}
template.title = "Template";
