// All rains, newest first.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count, money, rule } from "./format.js";
import { empty, heading, moment, page, pages, stateOf, table } from "./parts.js";

const COLUMNS = [
  ["Rain", (rain) => h("a", { href: `#/rains/${rain.id}` }, rain.title || `Rain ${rain.id}`), "lead"],
  ["State", stateOf],
  ["Room", (rain) => rain.room],
  ["Sponsor", (rain) => rain.sponsor],
  ["Split", (rain) => rule(rain.rule)],
  ["Packets", (rain) => count(rain.packets), "number"],
  ["Total", (rain) => money(rain.total_cents), "number"],
  ["Opens", (rain) => (rain.opens_at_ms ? moment(rain.opens_at_ms) : "by hand"), "number"],
];

function newRain() {
  return api.may("rains", "write") && h("a", { class: "button primary", href: "#/rains/new", id: "new-rain" }, "New rain");
}

export function rains(main) {
  const read = (cursor) => page("/v1/rains?limit=50", "rains", cursor);
  const none = empty("No rain yet", "Create one: it costs nothing until you have seen what it would look like.", newRain());
  const draw = (rows) => table(COLUMNS, rows, (rain) => (location.hash = `/rains/${rain.id}`));
  replace(main, heading("Rains", "Newest first", newRain()), h("section", { class: "card flush" }, pages(read, draw, none)));
}
rains.title = "Rains";
