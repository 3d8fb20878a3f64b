// All rains, newest first.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, money, rule } from "./format.js";
import { empty, heading, moment, page, pages, poll, stateOf, table, writing } from "./parts.js";

const COLUMNS = [
  ["Rain", (rain) => [h("a", { href: `#/rains/${rain.id}`, title: rain.title }, rain.title || `Rain ${rain.id}`), h("small", { class: "hint under" }, rain.title ? `Rain ${rain.id} in ${rain.room}` : rain.room)], "lead"],
  ["State", stateOf],
  ["Sponsor", (rain) => rain.sponsor],
  ["Split", (rain) => rule(rain.rule)],
  ["Total", (rain) => [money(rain.total_cents), h("small", { class: "hint under" }, `${count(rain.packets)} packets`)], "number"],
  ["Opens", (rain) => (rain.opens_at_ms ? moment(rain.opens_at_ms) : "by hand"), "number"],
];

const fresh = () => h("a", { class: "button primary", href: "#/rains/new", id: "new-rain" }, "New rain");

export function rains(main, here) {
  const read = (cursor, background) => page("/v1/rains?limit=50", "rains", cursor, background);
  const none = empty("No rain yet", "Create one: it costs nothing until you have seen what it would look like.", api.may("rains", "write") && fresh());
  const draw = (rows) => table(COLUMNS, rows, (rain) => (location.hash = `/rains/${rain.id}`));
  const list = pages(read, draw, none);
  replace(main, heading("Rains", "Newest first", writing("rains", api.may("rains", "write") && h("a", { class: "button", href: "#/templates" }, "From a template"), fresh())), h("section", { class: "card flush" }, list));
  poll(here, 3000, list.look);
}
rains.title = "Rains";
