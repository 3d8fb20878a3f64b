// A new rain, with what its split would look like before anybody pays for it.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { money } from "./format.js";
import { busy, button, confirm, failure, faultText, heading, loading, notice, toast } from "./parts.js";
import { rainForm } from "./rainform.js";

/** The fields of a template that a rain does not have are taken away, the others take its place. */
function overrides(template, body) {
  const gone = Object.keys(template).filter((name) => body[name] === undefined);
  return { ...body, ...Object.fromEntries(gone.map((name) => [name, null])) };
}

/** What it would do, then the wish to do it. */
async function rehearse(body, shown, key, name, template) {
  const told = await api.write("/v1/rains?dry_run=true", body, { key });
  const make = () => (name === undefined ? api.write("/v1/rains", body, { key, confirm }) : api.write(`/v1/templates/${encodeURIComponent(name)}/rains`, overrides(template, body), { key, confirm }));
  const create = button(`Create, and take ${money(body.total_cents)}`, async () => {
    const rain = await make();
    if (!rain) return;
    toast("The rain is created", "Its packets are being loaded.");
    location.hash = `/rains/${rain.id}`;
  }, "primary");
  create.id = "create-rain";
  replace(shown, notice("info", h("strong", {}, told.existing ? `This is rain ${told.existing}` : "Nothing has happened yet"),
    h("p", {}, `${body.sponsor} has ${money(told.sponsor_balance_cents)}, and ${money(told.sponsor_balance_after_cents)} after it. Whatever nobody wins goes back.`), create));
}

function draw(main, rain, name) {
  const made = rainForm(rain);
  const asked = h("div", { id: "rehearsal" });
  let key = api.wish();
  const changed = () => {
    made.changed();
    key = api.wish();
    replace(asked);
  };
  const check = h("button", { type: "submit", class: "primary", id: "check-rain" }, "Check");
  const send = (event) => {
    event.preventDefault();
    busy(check, async () => {
      try {
        await rehearse(made.read(), asked, key, name, rain);
      } catch (problem) {
        replace(asked, notice("warn", h("strong", {}, "Not yet"), h("p", {}, faultText(problem))));
      }
    });
  };
  const form = h("form", { class: "columns", oninput: changed, onsubmit: send, novalidate: true }, h("div", {}, made.cards),
    h("div", { class: "aside" }, made.preview, asked, h("div", { class: "actions end" }, h("a", { class: "button", href: name === undefined ? "#/rains" : "#/templates" }, "Cancel"), check)));
  replace(main, heading("New rain", name === undefined ? "Nothing is paid before you have seen it" : `From the template ${name}. Nothing is paid before you have seen it`), form);
}

export async function create(main, page, name) {
  if (!api.may("rains", "write")) return replace(main, failure({ title: "Your key may not create rains", message: "Ask for one with the role operator." }));
  if (name === undefined) return draw(main, {});
  replace(main, loading());
  try {
    const template = await api.get(`/v1/templates/${encodeURIComponent(name)}`);
    if (page.alive) draw(main, template.rain, name);
  } catch (problem) {
    if (page.alive) replace(main, failure(problem, () => create(main, page, name)));
  }
}
create.title = "New rain";
