// The fields of a rain, for a new one and for a template, and what they say.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { histogram } from "./charts.js";
import { cents, count, fieldTime, money, sentence, whole, zone } from "./format.js";
import { card, facts, field, input, notice, select, suggest } from "./parts.js";

const RULES = [["double_mean", "Double mean: like the chat apps"], ["line_cut", "Line cut: few large, many small"], ["even", "All alike"], ["tiers", "Prize table"]];
const LEVELS = [["", "The server's default"], ["memory", "Memory: survives a process"], ["fsync", "On disk: survives a node's crash"], ["replicas:1", "One replica: survives a machine"], ["replicas:2", "Two replicas"]];
const PAUSE_MS = 250;

/** "1 x 888.00" a line → tiers. */
function tiers(text) {
  return text.split("\n").filter((line) => line.trim()).map((line) => {
    const [, number, amount] = /^\s*([\d,]+)\s*[x×*]\s*([^\s]+)\s*$/.exec(line) ?? [];
    const [many, value] = [number && whole(number), amount && cents(amount)];
    if (!value || !many) throw new Error(`“${line.trim()}” is not like “10 x 8.88”`);
    return { count: many, cents: value };
  });
}

const plain = (value) => (value === undefined || value === null ? "" : money(value).replace(/[^\d.,]/g, ""));

/** The fields, with what `rain` says in them. */
function fields(rain) {
  const many = { inputmode: "numeric" };
  const amount = { inputmode: "decimal" };
  const prizes = rain.rule?.tiers;
  const levels = LEVELS.some(([key]) => key === (rain.durability ?? "")) ? LEVELS : [...LEVELS, [rain.durability, rain.durability]];
  return {
    title: input("title", { placeholder: "Final question", maxlength: "200", value: rain.title ?? "" }),
    room: input("room", { placeholder: "quiz", maxlength: "64", value: rain.room ?? "" }),
    sponsor: input("sponsor", { list: "sponsors", placeholder: "acme", maxlength: "64", value: rain.sponsor ?? "" }),
    rule: select("rule", RULES, prizes ? "tiers" : rain.rule ?? "double_mean"),
    tiers: h("textarea", { id: "tiers", rows: "4", placeholder: "1 x 888.00\n100 x 8.88", value: prizes ? prizes.map((tier) => `${tier.count} x ${plain(tier.cents)}`).join("\n") : "" }),
    total: input("total", { ...amount, placeholder: "5,000.00", value: prizes ? "" : plain(rain.total_cents) }),
    packets: input("packets", { ...many, placeholder: "2,000", value: prizes || !rain.packets ? "" : count(rain.packets) }),
    min: input("min", { ...amount, placeholder: "0.01", value: plain(rain.min_cents) }),
    max: input("max", { ...amount, placeholder: "no limit", value: plain(rain.max_cents) }),
    seconds: input("seconds", { ...many, value: String((rain.duration_ms ?? 30_000) / 1000) }),
    opens: h("input", { id: "opens", type: "datetime-local", step: "1", min: fieldTime(Date.now()) }),
    announce: input("announce", { ...many, placeholder: "at once", value: rain.announce_ms === undefined || rain.announce_ms === null ? "" : String(rain.announce_ms / 60_000) }),
    durability: select("durability", levels, rain.durability ?? ""),
    key: h("input", { type: "checkbox", id: "key_required", checked: rain.key_required === true }),
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

function read(f) {
  const body = split(f);
  if (!body) throw new Error("Say how much it is and how many packets");
  for (const [node, name] of [[f.room, "a room"], [f.sponsor, "a sponsor"]]) if (!node.value.trim()) throw new Error(`It needs ${name}`);
  const opens = f.opens.value ? new Date(f.opens.value).getTime() : undefined;
  const seconds = optional(f.seconds, whole, "Seconds");
  const minutes = optional(f.announce, whole, "Minutes");
  return { ...body, title: f.title.value.trim(), room: f.room.value.trim(), sponsor: f.sponsor.value.trim(), opens_at_ms: opens, duration_ms: seconds === undefined ? undefined : seconds * 1000,
    durability: f.durability.value || undefined, key_required: f.key.checked, announce_ms: minutes === undefined ? undefined : minutes * 60_000 };
}

const waiting = () => h("p", { class: "hint" }, "Say how much and how many, and the amounts show here.");

function picture(preview) {
  return [histogram(preview.histogram), facts(["Packets", count(preview.packets)], ["Sum", money(preview.sum_cents)], ["Smallest", money(preview.smallest_cents)], ["Median", money(preview.median_cents)], ["Largest", money(preview.largest_cents)]),
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
        if (!body) return replace(shown, waiting());
        const preview = await api.ask("/v1/rains/preview", body);
        if (mine === turn) replace(shown, picture(preview));
      } catch (problem) {
        if (mine === turn) replace(shown, notice("warn", h("strong", {}, "This cannot work"), h("p", {}, sentence(problem.message))));
      }
    }, PAUSE_MS);
  };
}

/**
 * Cards for what, how much and when, and one with the preview. `read()` gives the body of a rain, or throws what is wrong with it. A template has no
 * opening time.
 */
export function rainForm(rain, { template = false, first } = {}) {
  const f = fields(rain);
  const shown = h("div", { id: "preview" }, waiting());
  const look = looker(f, shown);
  const sums = [field("Total", f.total), field("Packets", f.packets)];
  const table = field("Prizes", f.tiers, "One line each: how many, x, how much.");
  const announce = field("Announced, minutes before", f.announce, "Empty: as soon as it is created. Needs an opening time.");
  const sponsors = h("datalist", { id: "sponsors" });
  const arrange = () => {
    const prizes = f.rule.value === "tiers";
    sums.forEach((node) => (node.hidden = prizes));
    table.hidden = !prizes;
    announce.hidden = !template && !f.opens.value;
    if (announce.hidden) f.announce.value = "";
  };
  const more = h("details", { open: Boolean(rain.durability || rain.key_required) }, h("summary", {}, "More"), field("Durability of a win", f.durability), h("label", { class: "check" }, f.key, "Grabs need the key that clients hear at the opening"));
  const times = template ? [field("Seconds open", f.seconds), announce] : [field("Opens", f.opens, `Your time, UTC${zone()}. Empty: by hand.`), field("Seconds open", f.seconds)];
  const cards = [
    card("What", first, field("Title", f.title), h("div", { class: "pair" }, field("Room", f.room, "Who watches it hears of the rain."), field("Sponsor", f.sponsor, "Who pays."))),
    card("How much", field("Split", f.rule), table, h("div", { class: "pair" }, sums), h("div", { class: "pair" }, field("Smallest packet", f.min), field("Largest packet", f.max))),
    card("When", h("div", { class: "pair" }, times), !template && announce, more), sponsors];
  arrange();
  look();
  if (api.may("accounts", "read")) suggest(sponsors, "/v1/accounts?prefix=sponsor:&limit=100", "accounts", (account) => h("option", { value: account.name.slice("sponsor:".length) }, money(account.balance_cents)));
  const changed = () => {
    arrange();
    look();
  };
  return { cards, preview: card("Preview", shown), changed, read: () => read(f) };
}
