// A new rain, with what its split would look like before anybody pays for it.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { histogram } from "./charts.js";
import { cents, count, money, whole } from "./format.js";
import { button, busy, card, confirm, failure, field, heading, input, notice, select, toast } from "./parts.js";

const RULES = [["double_mean", "Double mean: like the chat apps"], ["line_cut", "Line cut: few large, many small"], ["even", "All alike"], ["tiers", "Prize table"]];
const LEVELS = [["", "The server's default"], ["memory", "Memory"], ["fsync", "On disk (fsync)"], ["replicas:1", "One replica"], ["replicas:2", "Two replicas"]];
const PAUSE_MS = 250;

/** "1 x 888.00" a line → tiers. */
function tiers(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const [, number, amount] = /^\s*(\d+)\s*[x×*]\s*([\d.,]+)\s*$/.exec(line) ?? [];
    const value = amount && cents(amount);
    if (!value) throw new Error(`“${line.trim()}” is not like “10 x 8.88”`);
    return { count: Number(number), cents: value };
  });
}

function fields() {
  const many = { inputmode: "numeric" };
  const amount = { inputmode: "decimal" };
  return {
    title: input("title", { placeholder: "Final question", maxlength: "200" }),
    room: input("room", { placeholder: "quiz" }),
    sponsor: input("sponsor", { list: "sponsors", placeholder: "acme" }),
    rule: select("rule", RULES, "double_mean"),
    tiers: h("textarea", { id: "tiers", rows: "4", placeholder: "1 x 888.00\n100 x 8.88" }),
    total: input("total", { ...amount, placeholder: "5,000.00" }),
    packets: input("packets", { ...many, placeholder: "2,000" }),
    min: input("min", { ...amount, placeholder: "0.01" }),
    max: input("max", { ...amount, placeholder: "no limit" }),
    seconds: input("seconds", { ...many, value: "30" }),
    opens: input("opens", { type: "datetime-local" }),
    durability: select("durability", LEVELS, ""),
    key: h("input", { type: "checkbox", id: "key_required" }),
  };
}

function optional(node, read, name) {
  if (!node.value.trim()) return undefined;
  const value = read(node.value);
  if (value === null) throw new Error(`${name} “${node.value}” is not a number that works here`);
  return value;
}

/** What the fields say about the split; null while something is missing. */
function split(f) {
  const body = { min_cents: optional(f.min, cents, "Smallest"), max_cents: optional(f.max, cents, "Largest") };
  if (f.rule.value === "tiers") {
    const list = tiers(f.tiers.value);
    if (!list.length) return null;
    const total = list.reduce((sum, tier) => sum + BigInt(tier.count) * tier.cents, 0n);
    return { ...body, rule: { tiers: list }, total_cents: total, packets: list.reduce((sum, tier) => sum + tier.count, 0) };
  }
  const total = optional(f.total, cents, "Total");
  const packets = optional(f.packets, whole, "Packets");
  return total === undefined || packets === undefined ? null : { ...body, rule: f.rule.value, total_cents: total, packets };
}

function rainOf(f) {
  const body = split(f);
  if (!body) throw new Error("Say how much it is and how many packets");
  const opens = f.opens.value ? new Date(f.opens.value).getTime() : undefined;
  const seconds = optional(f.seconds, whole, "Seconds");
  return { ...body, title: f.title.value.trim(), room: f.room.value.trim(), sponsor: f.sponsor.value.trim(), opens_at_ms: opens,
    duration_ms: seconds === undefined ? undefined : seconds * 1000, durability: f.durability.value || undefined, key_required: f.key.checked };
}

function picture(preview) {
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return [histogram(preview.histogram), h("dl", { class: "facts" },
    fact("Packets", count(preview.packets)), fact("Sum", money(preview.sum_cents)), fact("Smallest", money(preview.smallest_cents)),
    fact("Median", money(preview.median_cents)), fact("Largest", money(preview.largest_cents))),
  h("p", { class: "hint" }, preview.exact ? "Drawn with a seed that is thrown away: the rain's own amounts are alike, and nobody knows them." : `From a sample of ${count(preview.looked_at)} packets.`)];
}

/** Looks anew a moment after the last change; an older answer never replaces a younger one. */
function looker(f, shown) {
  let [timer, turn] = [0, 0];
  return () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const mine = ++turn;
      try {
        const body = split(f);
        if (!body) return;
        const preview = await api.ask("/v1/rains/preview", body);
        if (mine === turn) replace(shown, picture(preview));
      } catch (problem) {
        if (mine === turn) replace(shown, notice("warn", h("strong", {}, "This cannot work"), h("p", {}, problem.message)));
      }
    }, PAUSE_MS);
  };
}

/** What it would do, then the wish to do it. */
async function rehearse(f, shown, key) {
  const body = rainOf(f);
  const told = await api.write("/v1/rains?dry_run=true", body, { key });
  const create = button(`Create, and take ${money(body.total_cents)}`, async () => {
    const rain = await api.write("/v1/rains", body, { key, confirm });
    if (!rain) return;
    toast("The rain is created", "Its packets are being loaded.");
    location.hash = `/rains/${rain.id}`;
  }, "primary");
  create.id = "create-rain";
  replace(shown, notice("info", h("strong", {}, told.existing ? `This is rain ${told.existing}` : "Nothing has happened yet"),
    h("p", {}, `${body.sponsor} has ${money(told.sponsor_balance_cents)}, and ${money(told.sponsor_balance_after_cents)} after it. Whatever nobody wins goes back.`), create));
}

export function create(main) {
  if (!api.may("rains", "write")) return replace(main, failure({ title: "Your key may not create rains", message: "Ask for one with the role operator." }));
  const f = fields();
  const shown = h("div", { id: "preview" }, h("p", { class: "hint" }, "Say how much and how many, and the amounts show here."));
  const asked = h("div", { id: "rehearsal" });
  let key = api.wish();
  const look = looker(f, shown);
  const check = h("button", { type: "submit", class: "primary", id: "check-rain" }, "Check");
  const money_of = [field("Total", f.total), field("Packets", f.packets)];
  const table = field("Prizes", f.tiers, "One line each: how many, x, how much.");
  const arrange = () => {
    const prizes = f.rule.value === "tiers";
    money_of.forEach((node) => (node.hidden = prizes));
    table.hidden = !prizes;
  };
  const changed = () => {
    arrange();
    key = api.wish();
    replace(asked);
    look();
  };
  const form = h("form", { class: "columns", oninput: changed, onsubmit: (event) => {
    event.preventDefault();
    busy(check, async () => {
      try {
        await rehearse(f, asked, key);
      } catch (problem) {
        replace(asked, notice("warn", h("strong", {}, problem.title ?? "Not yet"), h("p", {}, problem.message)));
      }
    });
  } },
  h("div", {}, card("What", field("Title", f.title), h("div", { class: "pair" }, field("Room", f.room, "Who watches it hears of the rain."), field("Sponsor", f.sponsor, "Who pays."))),
    card("How much", field("Split", f.rule), table, h("div", { class: "pair" }, money_of), h("div", { class: "pair" }, field("Smallest packet", f.min), field("Largest packet", f.max))),
    card("When", h("div", { class: "pair" }, field("Opens", f.opens, "Empty: by hand."), field("Seconds open", f.seconds)),
      h("details", {}, h("summary", {}, "More"), field("Durability of a win", f.durability), h("label", { class: "check" }, f.key, "Grabs need the key that clients hear at the opening")))),
  h("div", { class: "aside" }, card("Preview", shown), asked, h("div", { class: "actions end" }, h("a", { class: "button", href: "#/rains" }, "Cancel"), check)),
  h("datalist", { id: "sponsors" }));
  replace(main, heading("New rain", "Nothing is paid before you have seen it"), form);
  arrange();
  suggest(form);
}
create.title = "New rain";

async function suggest(form) {
  if (!api.may("accounts", "read")) return;
  const list = await api.get("/v1/accounts?prefix=sponsor:&limit=100").catch(() => null);
  const names = (list?.accounts ?? []).map((account) => h("option", { value: account.name.slice("sponsor:".length) }, money(account.balance_cents)));
  form.querySelector("#sponsors").append(...names);
}
