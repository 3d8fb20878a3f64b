// One rain: what it is, what can be done with it, and its live numbers.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { cents, count, duration, fullTime, money, rule, whole } from "./format.js";
import { button, card, confirm, dialog, facts, failure, field, input, loading, notice, poll, stateOf, toast, writing } from "./parts.js";
import { clock, live } from "./live.js";

/** A steward looks many times a second: after this something is wrong. */
const LATE_MS = 5000;

function announced(rain) {
  if (rain.announce_at_ms === null) return "as soon as it was created";
  return rain.announce_at_ms > Date.now() ? `from ${fullTime(rain.announce_at_ms)}` : fullTime(rain.announce_at_ms);
}

function terms(rain) {
  return facts(["Total", money(rain.total_cents)], ["Packets", count(rain.packets)], ["Split", rule(rain.rule)], ["Sponsor", h("a", { href: `#/accounts/sponsor:${rain.sponsor}` }, rain.sponsor)], ["Room", rain.room],
    ["Opens", rain.opens_at_ms ? fullTime(rain.opens_at_ms) : "by hand"], ["Closes", rain.closes_at_ms && fullTime(rain.closes_at_ms)], ["Open for", duration(rain.duration_ms)], ["Room is told", announced(rain)],
    ["Top-ups", rain.top_ups && count(rain.top_ups.length)], ["A win survives", { memory: "a process (memory)", fsync: "a node's crash (fsync)" }[rain.durability] ?? rain.durability], ["Grabs need a key", rain.key_required && "yes"], ["What is left goes back", rain.refund_after_ms ? `${duration(rain.refund_after_ms)} after the end` : "at the end"], ["Created", fullTime(rain.created_at_ms)]);
}

async function topUp(rain) {
  const [total, packets] = [input("more-total", { inputmode: "decimal", placeholder: "1,000.00" }), input("more-packets", { inputmode: "numeric", placeholder: "500" })];
  const read = () => {
    const body = { total_cents: cents(total.value), packets: whole(packets.value) };
    if (!body.total_cents || !body.packets) throw new Error("Say how much, and how many packets.");
    return body;
  };
  return dialog({ title: "Top up", text: `Adds packets to “${rain.title || rain.id}”, paid by ${rain.sponsor}.`, fields: [field("Amount", total), field("Packets", packets)], yes: "Go on", read,
    act: (body, key) => api.write(`/v1/rains/${rain.id}/top-up`, body, { key, confirm }) });
}

async function close(rain) {
  const left = rain.live ? `${count(rain.live.pool)} of its ${count(rain.packets)} packets are left. ` : "";
  const text = [`${left}No packet leaves its pool any more. What is left goes back to the sponsor, at once.`, "This cannot be taken back."];
  // The person has just read what happens: the server's second question is answered with that.
  return dialog({ title: "Close this rain?", text, yes: "Close it", danger: true, act: (_, key) => api.write(`/v1/rains/${rain.id}/close`, {}, { key, confirm: () => true }) });
}

function actions(rain, again) {
  const step = (name) => () => api.write(`/v1/rains/${rain.id}/${name}`, {}, { confirm });
  const untold = rain.announce_at_ms !== null && rain.announce_at_ms > Date.now();
  const all = [
    ["Open now", "ready", "open", step("open"), "primary", "The rain is open"],
    ["Announce now", untold ? "created ready" : "", "announce", step("announce"), "", "The room has been told"],
    ["Pause", "open", "pause", step("pause"), "", "The rain is paused"],
    ["Resume", "paused", "resume", step("resume"), "primary", "The rain goes on"],
    ["Top up", "created ready open paused", "top-up", () => topUp(rain), "", "The packets are being loaded"],
  ];
  const shut = ["Close", "created ready open paused", "close", () => close(rain), "danger", "The rain is closed"];
  const made = ([text, , id, act, kind, done]) => {
    const node = button(text, async () => {
      if (!(await act())) return;
      toast(done, rain.title || `Rain ${rain.id}`);
      await again();
    }, kind);
    node.id = `do-${id}`;
    return node;
  };
  const offered = ([, states]) => states.split(" ").includes(rain.state);
  const links = [api.may("audits", "read") && h("a", { class: "button", id: "to-audit", href: `#/rains/${rain.id}/audit` }, "Audit"), h("a", { class: "button", href: `/v1/rains/${rain.id}/winners.csv`, download: `winners-${rain.id}.csv` }, "Winners (CSV)")];
  const keep = api.may("rains", "write") && h("a", { class: "button", id: "to-template", href: `#/templates/new/${rain.id}` }, "Save as template");
  const close_it = api.may("rains", "write") && offered(shut) && made(shut);
  return [writing("rains", ...all.filter(offered).map(made)), links, keep, close_it];
}

/** Nobody has done what was due: a steward's work. */
function late(rain, look) {
  const since = rain.state === "ready" ? rain.opens_at_ms : rain.state === "open" || rain.state === "paused" ? rain.closes_at_ms : null;
  const over = since ? Date.now() - since : 0;
  const never = rain.state === "created" && Date.now() - rain.created_at_ms > LATE_MS && look.pool === 0;
  if (over < LATE_MS && !never) return null;
  const what = never ? "Its packets are not being loaded" : rain.state === "ready" ? "It should have opened by now" : "It should have closed by now";
  return notice("bad", h("strong", {}, what), h("p", {}, "A steward does that, and none seems to be at work: start a process with the role steward, or look into its log. A node that is down delays it as well: see ", h("a", { href: "#/nodes" }, "Health"), "."));
}

export async function rain(main, page, id) {
  const [head, body] = [h("div", {}), h("div", {})];
  let state = "";
  const again = async () => {
    const found = await api.get(`/v1/rains/${id}`, { background: state !== "" });
    state = `${found.state} ${found.sold_out}`;
    document.title = `${found.title || `Rain ${id}`} · hongbao`;
    replace(head, h("a", { class: "back", href: "#/rains" }, "Rains"),
      h("header", { class: "heading" }, h("div", {}, h("h1", {}, found.title || `Rain ${id}`, " ", h("span", { id: "state" }, stateOf(found))), h("p", { class: "hint" }, `Rain ${found.id}`, ticking)), h("div", { class: "actions" }, actions(found, again))));
    replace(facted, h("h2", {}, "Terms"), terms(found));
    current = found;
    return found;
  };
  const ticking = h("b", { id: "clock" });
  const [facted, overdue] = [card(null), h("div", {})];
  let current = null;
  const changed = (look) => {
    replace(overdue, late(current, look));
    ticking.textContent = clock(look);
    if (`${look.state} ${look.sold_out}` !== state) again().catch(() => {});
  };
  replace(main, loading());
  try {
    await again();
  } catch (problem) {
    return replace(main, failure(problem, () => rain(main, page, id)));
  }
  if (!page.alive) return;
  // Settled is not yet refunded and finished: the steward has still to look.
  const ended = () => poll(page, 2000, () => state.startsWith("finished") || again().catch(() => {}));
  replace(body, overdue, live(id, page, changed, ended), facted);
  replace(main, head, body);
}
rain.title = "Rain";
