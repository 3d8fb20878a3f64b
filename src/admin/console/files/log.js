// Who did what.

import { h, replace } from "./dom.js";
import { toJson } from "./api.js";
import { words } from "./format.js";
import { badge, dialog, empty, field, heading, input, moment, page, pages, table } from "./parts.js";

function pretty(value) {
  return value === null || value === undefined ? "–" : JSON.stringify(JSON.parse(toJson(value)), null, 2);
}

function details(line) {
  const part = (name, value) => h("div", { class: "field" }, h("span", {}, name), h("pre", {}, pretty(value)));
  return dialog({ title: words(line.operation), text: [`${line.method} ${line.path}`, line.outcome, `Request ${line.request_id}`], fields: [part("Before", line.before), part("After", line.after)], yes: "Close", no: null });
}

/** What it was about: what it names, or what it made. */
function about(line) {
  const made = line.after?.id ?? line.after?.name;
  const kindOf = (name) => (String(name).includes(":") ? "account" : line.operation.split("_").at(-1));
  const text = line.target || (made === undefined || made === null ? "–" : `${kindOf(made)}:${made}`);
  const [, kind, id] = /^(rain|webhook|schedule|template|account):(.+)$/.exec(text) ?? [];
  return kind ? h("a", { href: `#/${kind}s/${kind === "account" ? id : encodeURIComponent(id)}` }, text) : text;
}

const COLUMNS = [
  ["When", (line) => moment(line.at_ms)],
  ["Who", (line) => [line.caller_name, " ", h("small", { class: "hint" }, line.caller)], "lead"],
  ["Did", (line) => h("button", { type: "button", class: "link", onclick: () => details(line) }, words(line.operation))],
  ["About", about],
  ["Outcome", (line) => [badge(line.outcome.split(":")[0]), " ", h("span", { class: "hint" }, line.outcome.split(":").slice(1).join(":").trim())], "wide"],
];

export function log(main) {
  const target = input("target", { placeholder: "Anything, like rain:7 or account:sponsor:acme" });
  const list = h("div", {});
  const again = () => {
    const of = target.value.trim() ? `&target=${encodeURIComponent(target.value.trim())}` : "";
    replace(list, pages((cursor) => page(`/v1/log?limit=50${of}`, "log", cursor), (rows) => table(COLUMNS, rows, details), empty("No writes", "Every write, and every one that was refused, stands here for ever.")));
  };
  target.addEventListener("change", again);
  replace(main, heading("Log", "Every write: who, what, before and after. Lines are never changed"), h("section", { class: "card flush" }, h("div", { class: "filters" }, field("About", target)), list));
  again();
}
log.title = "Log";
