// Templates with opening times: what comes, what became of what was to come, and what went wrong.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { duration, fieldTime, fromNow, fullTime, sentence, words, zone } from "./format.js";
import { badge, busy, button, card, confirm, dialog, empty, facts, failure, faultText, field, heading, input, loading, moment, notice, page, pages, poll, select, table, toast, writing } from "./parts.js";

const DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const short = (day) => words(day).slice(0, 3);

/** {daily: {at: "20:00", utc_offset: "+08:00"}} → "Daily at 20:00 (UTC+08:00)" */
function when(times) {
  const clock = ({ at, utc_offset: offset }) => `at ${at} (UTC${offset && offset !== "Z" ? offset : ""})`;
  if (times.daily) return `Daily ${clock(times.daily)}`;
  if (times.weekly) return `${times.weekly.days.map(short).join(", ")} ${clock(times.weekly)}`;
  return times.once.length === 1 ? "Once" : `${times.once.length} times`;
}

function next(schedule) {
  const [first] = schedule.next_openings_ms;
  if (first === undefined) return h("span", { class: "hint" }, schedule.ended ? "–" : "none to come");
  return [moment(first), h("small", { class: "hint" }, ` ${fromNow(first)}`)];
}

const LIST = [
  ["Schedule", (row) => h("a", { href: `#/schedules/${row.id}` }, row.overrides.title || row.template), "lead"],
  ["Template", (row) => h("a", { href: `#/templates/${encodeURIComponent(row.template)}` }, row.template)],
  ["Opens", (row) => when(row.times)],
  ["State", (row) => (row.ended ? badge("ended", "quiet") : badge("running", "good"))],
  ["Next", next, "number"],
];

export function schedules(main) {
  const fresh = () => h("a", { class: "button primary", href: "#/schedules/new", id: "new-schedule" }, "New schedule");
  const none = empty("No schedule yet", "A schedule creates a rain from a template ahead of each opening, and says when it could not.", api.may("rains", "write") && fresh());
  const list = pages((cursor, background) => page("/v1/schedules?limit=50", "schedules", cursor, background), (rows) => table(LIST, rows, (row) => (location.hash = `/schedules/${row.id}`)), none);
  replace(main, heading("Schedules", "Rains that are created by themselves, newest first", writing("rains", fresh())), h("section", { class: "card flush" }, list));
}
schedules.title = "Schedules";

const OPENINGS = [
  ["Opens", (row) => moment(row.opens_at_ms), "lead"],
  ["State", (row) => badge(row.state, { created: "good", failed: "warn", missed: "bad" }[row.state])],
  ["Rain", (row) => (row.rain_id ? h("a", { href: `#/rains/${row.rain_id}` }, `Rain ${row.rain_id}`) : "–")],
  ["What went wrong", (row) => row.problem ?? "–", "wide"],
  ["Last tried", (row) => moment(row.tried_at_ms), "number"],
];

/** What is wrong with openings that may still be saved. */
function trouble(schedule) {
  const failed = schedule.openings.filter((row) => row.state === "failed");
  return failed.map((row) => notice("bad", h("strong", {}, `There is no rain yet for ${fullTime(row.opens_at_ms)}`), h("p", {}, `${sentence(row.problem)}. It is tried again every few seconds until then: put that right, and the rain is there.`)));
}

async function end(schedule, again) {
  const done = await dialog({ title: "End this schedule?", text: "It creates no more rains. Those that it has created stay, and open as planned. This cannot be taken back.", yes: "End it", danger: true, act: (_, key) => api.write(`/v1/schedules/${schedule.id}/end`, {}, { key }) });
  if (!done) return;
  toast("The schedule has ended");
  again();
}

export async function schedule(main, here, id) {
  const shown = h("div", {}, loading());
  replace(main, shown);
  let last = "";
  const again = async (background = false) => {
    const found = await api.get(`/v1/schedules/${id}`, { background });
    const now = JSON.stringify(found);
    if (!here.alive || now === last) return;
    last = now;
    const stop = !found.ended && writing("rains", Object.assign(button("End", () => end(found, again), "danger"), { id: "end-schedule" }));
    const coming = found.next_openings_ms.length ? h("ol", { class: "coming" }, found.next_openings_ms.map((ms) => h("li", {}, h("span", {}, fullTime(ms)), h("small", { class: "hint" }, fromNow(ms))))) : h("p", { class: "hint" }, "None.");
    const other = Object.entries(found.overrides).map(([name, value]) => [words(name), String(value ?? "taken away")]);
    replace(shown, h("a", { class: "back", href: "#/schedules" }, "Schedules"), heading(found.overrides.title || found.template, `Schedule ${found.id}`, stop), trouble(found),
      h("div", { class: "grid2" }, card("Terms", facts(["Template", h("a", { href: `#/templates/${encodeURIComponent(found.template)}` }, found.template)], ["Opens", when(found.times)], ["State", found.ended ? badge("ended", "quiet") : badge("running", "good")],
        ["Created and loaded", `${duration(found.ahead_ms)} ahead`], ["Made", fullTime(found.created_at_ms)], ...other)), card("Next openings", coming)),
      h("section", { class: "card flush" }, h("h2", {}, "What became of the openings"), found.openings.length ? table(OPENINGS, found.openings) : empty("No opening has come near", `A rain is created ${duration(found.ahead_ms)} before it opens.`)));
  };
  try {
    await again();
    poll(here, 2000, () => again(true).catch(() => {}));
  } catch (problem) {
    replace(shown, failure(problem, () => schedule(main, here, id)));
  }
}
schedule.title = "Schedule";

/** The instants of "once": one field, and more on demand. */
function instants() {
  const list = h("div", { class: "instants" });
  const one = () => h("input", { type: "datetime-local", class: "instant", step: "1", "aria-label": "Opening", min: fieldTime(Date.now()) });
  list.append(one());
  const more = h("button", { type: "button", class: "small", onclick: () => list.append(one()) }, "Another opening");
  const read = () => {
    const all = [...list.querySelectorAll("input")].filter((node) => node.value).map((node) => new Date(node.value).getTime());
    if (!all.length) throw new Error("Say when it opens");
    return { once: all.sort((a, b) => a - b) };
  };
  return { node: h("div", { class: "field" }, h("span", {}, "Openings"), list, h("small", {}, `Your time, UTC${zone()}.`), h("div", {}, more)), read };
}

function clockFields() {
  const at = h("input", { type: "time", id: "at", value: "20:00" });
  const offset = input("offset", { value: zone(), maxlength: "6" });
  const read = () => {
    if (!at.value) throw new Error("Say at what time of day it opens");
    return { at: at.value.slice(0, 5), utc_offset: offset.value.trim() || "Z" };
  };
  return { node: h("div", { class: "pair" }, field("At", at), field("UTC offset", offset, "It does not know of summer time.")), read };
}

function planFields() {
  const kind = select("kind", [["once", "On the dates that I name"], ["daily", "Daily"], ["weekly", "On days of the week"]], "once");
  const [once, clock] = [instants(), clockFields()];
  const boxes = DAYS.map((day) => h("input", { type: "checkbox", value: day, id: `day-${day}` }));
  const days = h("div", { class: "field" }, h("span", {}, "Days"), h("div", { class: "days" }, DAYS.map((day, n) => h("label", { class: "check" }, boxes[n], short(day)))));
  const arrange = () => {
    once.node.hidden = kind.value !== "once";
    clock.node.hidden = kind.value === "once";
    days.hidden = kind.value !== "weekly";
  };
  arrange();
  const read = () => {
    if (kind.value === "once") return once.read();
    if (kind.value === "daily") return { daily: clock.read() };
    const chosen = DAYS.filter((_, n) => boxes[n].checked);
    if (!chosen.length) throw new Error("Choose at least one day");
    return { weekly: { days: chosen, ...clock.read() } };
  };
  return { nodes: [field("How often", kind), once.node, days, clock.node], arrange, read };
}

function draw(main, names, chosen) {
  const source = select("template", names.map((name) => [name, name]), chosen ?? names[0]);
  const title = input("title", { placeholder: "As the template says", maxlength: "200" });
  const ahead = input("ahead", { inputmode: "numeric", value: "10" });
  const plan = planFields();
  const told = h("div", {});
  const keyOf = api.wishes();
  const save = h("button", { type: "submit", class: "primary", id: "save-schedule" }, "Create schedule");
  const write = async () => {
    const minutes = /^\d{1,5}$/.test(ahead.value.trim()) ? Number(ahead.value) : null;
    if (minutes === null) throw new Error("Say how many minutes ahead a rain is created");
    const body = { template: source.value, times: plan.read(), ahead_ms: minutes * 60_000, overrides: title.value.trim() ? { title: title.value.trim() } : {} };
    const made = await api.write("/v1/schedules", body, { key: keyOf(body), confirm });
    if (!made) return;
    toast("The schedule is at work");
    location.hash = `/schedules/${made.id}`;
  };
  const send = (event) => {
    event.preventDefault();
    busy(save, () => write().catch((problem) => replace(told, notice("warn", h("strong", {}, "Not yet"), h("p", {}, faultText(problem))))));
  };
  const changed = () => {
    plan.arrange();
    replace(told);
  };
  replace(main, h("a", { class: "back", href: "#/schedules" }, "Schedules"), heading("New schedule", "A rain is created from the template ahead of each opening"),
    h("form", { class: "narrow", oninput: changed, onsubmit: send, novalidate: true }, card("What", field("Template", source), field("Title", title)), card("When", plan.nodes, field("Created and loaded, minutes ahead", ahead, "From then on the sponsor's money is held.")), told,
      h("div", { class: "actions end" }, h("a", { class: "button", href: "#/schedules" }, "Cancel"), save)));
}

export async function newSchedule(main, here, chosen) {
  if (!api.may("rains", "write")) return replace(main, failure({ title: "Your key may not make schedules", message: "Ask for one with the role operator." }));
  replace(main, loading());
  try {
    const { templates } = await api.get("/v1/templates?limit=1000");
    const names = templates.map((template) => template.name);
    if (chosen !== undefined && !names.includes(chosen)) names.unshift(chosen);
    if (!here.alive) return;
    if (names.length) draw(main, names, chosen);
    else replace(main, h("a", { class: "back", href: "#/schedules" }, "Schedules"), empty("A schedule needs a template", "It says what the rains are like.", h("a", { class: "button primary", href: "#/templates/new" }, "New template")));
  } catch (problem) {
    if (here.alive) replace(main, failure(problem, () => newSchedule(main, here, chosen)));
  }
}
newSchedule.title = "New schedule";
