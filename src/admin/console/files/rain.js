// One rain: what it is, what can be done with it, and its live numbers.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { cents, count, duration, fullTime, money, rule, whole } from "./format.js";
import { button, card, confirm, dialog, failure, field, input, loading, poll, stateOf, toast } from "./parts.js";
import { live } from "./live.js";

function facts(rain) {
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  return h("dl", { class: "facts" },
    fact("Total", money(rain.total_cents)), fact("Packets", count(rain.packets)), fact("Split", rule(rain.rule)), fact("Sponsor", h("a", { href: `#/accounts/sponsor:${rain.sponsor}` }, rain.sponsor)),
    fact("Room", rain.room), fact("Opens", rain.opens_at_ms ? fullTime(rain.opens_at_ms) : "by hand"), fact("Open for", duration(rain.duration_ms)), fact("A win survives", rain.durability),
    fact("Created", fullTime(rain.created_at_ms)));
}

async function topUp(rain) {
  const [total, packets] = [input("more-total", { inputmode: "decimal", placeholder: "1,000.00" }), input("more-packets", { inputmode: "numeric", placeholder: "500" })];
  const read = () => {
    const body = { total_cents: cents(total.value), packets: whole(packets.value) };
    if (!body.total_cents || !body.packets) throw new Error("Say how much, and how many packets.");
    return body;
  };
  const body = await dialog({ title: "Top up", text: `Adds packets to “${rain.title || rain.id}”, paid by ${rain.sponsor}.`, fields: [field("Amount", total), field("Packets", packets)], yes: "Go on", read });
  return body && api.write(`/v1/rains/${rain.id}/top-up`, body, { confirm });
}

async function close(rain) {
  const text = ["No packet leaves its pool any more. What is left goes back to the sponsor, at once. This cannot be taken back."];
  const sure = await dialog({ title: "Close this rain?", text, yes: "Close it", danger: true });
  // The person has just read what happens: the server's second question is answered with that.
  return sure && api.write(`/v1/rains/${rain.id}/close`, {}, { confirm: () => true });
}

function actions(rain, again) {
  const step = (name) => () => api.write(`/v1/rains/${rain.id}/${name}`, {}, { confirm });
  const all = [
    ["Open now", "ready", "open", step("open"), "primary", "The rain is open"],
    ["Pause", "open", "pause", step("pause"), "", "The rain is paused"],
    ["Resume", "paused", "resume", step("resume"), "primary", "The rain goes on"],
    ["Top up", "created ready open paused", "top-up", () => topUp(rain), "", "The packets are being loaded"],
    ["Close", "created ready open paused", "close", () => close(rain), "danger", "The rain is closed"],
  ];
  const offered = api.may("rains", "write") ? all.filter(([, states]) => states.split(" ").includes(rain.state)) : [];
  const buttons = offered.map(([text, , id, act, kind, done]) => {
    const node = button(text, async () => {
      if (!(await act())) return;
      toast(done);
      await again();
    }, kind);
    node.id = `do-${id}`;
    return node;
  });
  return [buttons, api.may("audits", "read") && h("a", { class: "button", id: "to-audit", href: `#/rains/${rain.id}/audit` }, "Audit"), h("a", { class: "button", href: `/v1/rains/${rain.id}/winners.csv`, download: `winners-${rain.id}.csv` }, "Winners")];
}

export async function rain(main, page, id) {
  const [head, body] = [h("div", {}), h("div", {})];
  let state = "";
  const again = async () => {
    const found = await api.get(`/v1/rains/${id}`, { background: state !== "" });
    state = `${found.state} ${found.sold_out}`;
    document.title = `${found.title || `Rain ${id}`} · hongbao`;
    replace(head, h("a", { class: "back", href: "#/rains" }, "Rains"),
      h("header", { class: "heading" }, h("div", {}, h("h1", {}, found.title || `Rain ${id}`, " ", h("span", { id: "state" }, stateOf(found))), h("p", { class: "hint" }, `Rain ${found.id}`)), h("div", { class: "actions" }, actions(found, again))));
    replace(facted, facts(found));
    return found;
  };
  const facted = card("Terms");
  const changed = (look) => {
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
  replace(body, live(id, page, changed, ended), facted);
  replace(main, head, body);
}
rain.title = "Rain";
