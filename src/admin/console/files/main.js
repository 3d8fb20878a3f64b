// Who is logged in, where they are, and the frame around the pages.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { count } from "./format.js";
import { button, failure, notice } from "./parts.js";
import * as health from "./health.js";
import { login } from "./login.js";
import { rains } from "./rains.js";
import { create } from "./create.js";
import { rain } from "./rain.js";
import { audit } from "./audit.js";
import { newTemplate, template, templates } from "./templates.js";
import { newSchedule, schedule, schedules } from "./schedules.js";
import { dead } from "./dead.js";
import { account, accounts } from "./accounts.js";
import { nodes } from "./nodes.js";
import { webhook, webhooks } from "./webhooks.js";
import { keys } from "./keys.js";
import { log } from "./log.js";

// Path pattern, page, module that it reads.
const PAGES = [
  [/^\/rains$/, rains, "rains"],
  [/^\/rains\/new$/, create, "rains"],
  [/^\/rains\/new\/(.+)$/, create, "rains"],
  [/^\/rains\/(\d+)$/, rain, "rains"],
  [/^\/rains\/(\d+)\/audit$/, audit, "audits"],
  [/^\/templates$/, templates, "rains"],
  [/^\/templates\/new$/, newTemplate, "rains"],
  [/^\/templates\/new\/(\d+)$/, newTemplate, "rains"],
  [/^\/templates\/(.+)$/, template, "rains"],
  [/^\/schedules$/, schedules, "rains"],
  [/^\/schedules\/new$/, newSchedule, "rains"],
  [/^\/schedules\/new\/(.+)$/, newSchedule, "rains"],
  [/^\/schedules\/(\d+)$/, schedule, "rains"],
  [/^\/dead$/, dead, "dead_letters"],
  [/^\/dead\/(\d+)$/, dead, "dead_letters"],
  [/^\/accounts$/, accounts, "accounts"],
  [/^\/accounts\/(.+)$/, account, "accounts"],
  [/^\/nodes$/, nodes, "rains"],
  [/^\/webhooks$/, webhooks, "webhooks"],
  [/^\/webhooks\/([^/]+)$/, webhook, "webhooks"],
  [/^\/keys$/, keys, "keys"],
  [/^\/log$/, log, "audits"],
];

const LINKS = [
  ["/rains", "Rains", "rains"],
  ["/templates", "Templates", "rains"],
  ["/schedules", "Schedules", "rains"],
  ["/dead", "Dead letters", "dead_letters"],
  ["/accounts", "Accounts", "accounts"],
  ["/nodes", "Health", "rains"],
  ["/webhooks", "Webhooks", "webhooks"],
  ["/keys", "Keys", "keys"],
  ["/log", "Log", "audits"],
];

const app = document.getElementById("app");
let current = { leave: [] };

function path() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || "/rains";
  } catch {
    return location.hash.slice(1);
  }
}

function leave() {
  current.alive = false;
  current.leave.forEach((act) => act());
  current = { alive: true, leave: [] };
}

/** What is wrong stands above every page, and what waits for somebody beside the names of the pages. */
function tell(look, banner, links) {
  const mark = (to, number, tone) => {
    const node = links.get(to)?.querySelector(".mark");
    if (node) [node.textContent, node.className] = [number ? count(number) : "", `mark ${tone}`];
  };
  mark("/nodes", look.faults.length, look.faults.some((fault) => fault.tone === "bad") ? "bad" : "warn");
  mark("/dead", look.dead ?? 0, "warn");
  const failed = links.get("/webhooks")?.querySelector(".mark");
  if (failed) [failed.textContent, failed.className] = [look.failed ? "!" : "", "mark warn"];
  const text = JSON.stringify(look.faults);
  if (banner.dataset.shown === text) return;
  banner.dataset.shown = text;
  // Who reads with the ears is told when something new is wrong, not whenever a number changes.
  const titles = look.faults.map((fault) => fault.title.replace(/[\d.,]+/g, "")).join();
  const open = banner.querySelector("details")?.open;
  const one = (fault) => notice(fault.tone, h("strong", {}, fault.title), h("p", {}, fault.advice));
  const [first, ...rest] = look.faults;
  replace(banner, first && one(first), rest.length > 0 && h("details", { class: "others", open }, h("summary", {}, `${count(rest.length)} more`), rest.map(one)));
  banner.setAttribute("aria-live", banner.dataset.titles === titles ? "off" : "polite");
  banner.dataset.titles = titles;
}

function frame() {
  const who = api.me();
  const links = LINKS.filter(([, , module]) => api.may(module, "read"));
  const here = path();
  const nav = new Map(links.map(([to, text]) => [to, h("a", { href: `#${to}`, "aria-current": here === to || here.startsWith(`${to}/`) ? "page" : undefined }, text, h("span", { class: "mark" }))]));
  const out = button("Log out", async () => {
    await api.logOut();
    leave();
    start();
  }, "plain");
  out.id = "log-out";
  const main = h("div", { id: "page" });
  const banner = h("div", { id: "faults" });
  const skip = h("a", { class: "skip", href: "#page", onclick: (event) => { event.preventDefault(); app.querySelector("main").focus(); } }, "Skip to the page");
  const said = document.querySelector("#said") ?? h("div", { id: "said" });
  replace(app, skip, h("div", { class: "frame" },
    h("aside", {}, h("a", { class: "brand", href: "#/rains" }, h("img", { src: "/console/icon.svg", alt: "", width: "26", height: "26" }), "hongbao"),
      h("nav", { "aria-label": "Pages" }, [...nav.values()]), said,
      h("div", { class: "who" }, h("div", {}, h("strong", { title: who.name }, who.name), h("small", {}, who.roles.join(", "))), out)),
    h("main", { tabindex: "-1" }, banner, main)));
  app.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "center" });
  health.watch(current, (look) => tell(look, banner, nav));
  return main;
}

function show() {
  leave();
  const main = frame();
  const to = path();
  for (const [pattern, page, module] of PAGES) {
    const match = pattern.exec(to);
    if (!match) continue;
    if (!api.may(module, "read")) break;
    document.title = `${page.title} · hongbao`;
    page(main, current, ...match.slice(1));
    return;
  }
  replace(main, failure({ title: "There is no such page", message: "Or your key may not see it." }));
}

function logInFirst(text) {
  leave();
  health.end();
  // What was said to the one who left is not for the next, and what was asked is not answered.
  document.querySelectorAll("#said, dialog").forEach((node) => node.remove());
  document.title = "Log in · hongbao";
  replace(app, login(enter, text));
  document.getElementById("key")?.focus();
}

function enter() {
  health.begin();
  show();
}

async function start() {
  api.whenEnded(() => logInFirst("Your session has ended. Log in to go on where you were."));
  try {
    await api.session();
  } catch (problem) {
    if (problem.status === 401) return logInFirst();
    return replace(app, h("main", {}, failure(problem, start)));
  }
  enter();
}

addEventListener("hashchange", () => {
  if (!api.me()) return;
  document.querySelectorAll("dialog").forEach((node) => node.remove());
  show();
  scrollTo(0, 0);
  app.querySelector("main")?.focus({ preventScroll: true });
});
start();
