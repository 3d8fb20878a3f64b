// Who is logged in, where they are, and the frame around the pages.

import { h, replace } from "./dom.js";
import * as api from "./api.js";
import { button, failure } from "./parts.js";
import { login } from "./login.js";
import { rains } from "./rains.js";
import { create } from "./create.js";
import { rain } from "./rain.js";
import { audit } from "./audit.js";
import { dead } from "./dead.js";
import { account, accounts } from "./accounts.js";
import { nodes } from "./nodes.js";
import { keys } from "./keys.js";
import { log } from "./log.js";

// Path pattern, page, module that it reads.
const PAGES = [
  [/^\/rains$/, rains, "rains"],
  [/^\/rains\/new$/, create, "rains"],
  [/^\/rains\/(\d+)$/, rain, "rains"],
  [/^\/rains\/(\d+)\/audit$/, audit, "audits"],
  [/^\/dead$/, dead, "dead_letters"],
  [/^\/accounts$/, accounts, "accounts"],
  [/^\/accounts\/(.+)$/, account, "accounts"],
  [/^\/nodes$/, nodes, "rains"],
  [/^\/keys$/, keys, "keys"],
  [/^\/log$/, log, "audits"],
];

const LINKS = [
  ["/rains", "Rains", "rains"],
  ["/dead", "Dead letters", "dead_letters"],
  ["/accounts", "Accounts", "accounts"],
  ["/nodes", "Health", "rains"],
  ["/keys", "Keys", "keys"],
  ["/log", "Log", "audits"],
];

const app = document.getElementById("app");
let current = { leave: [] };

function path() {
  return decodeURIComponent(location.hash.slice(1)) || "/rains";
}

export function go(to) {
  location.hash = to;
}

function leave() {
  current.alive = false;
  current.leave.forEach((act) => act());
  current = { alive: true, leave: [] };
}

function frame() {
  const who = api.me();
  const links = LINKS.filter(([, , module]) => api.may(module, "read"));
  const here = path();
  const nav = links.map(([to, text]) => h("a", { href: `#${to}`, "aria-current": here.startsWith(to) ? "page" : undefined }, text));
  const out = button("Log out", async () => {
    await api.logOut();
    leave();
    start();
  }, "plain");
  out.id = "log-out";
  const main = h("main", { id: "page", tabindex: "-1" });
  replace(app, h("div", { class: "frame" },
    h("aside", {}, h("a", { class: "brand", href: "#/rains" }, h("img", { src: "/console/icon.svg", alt: "", width: "26", height: "26" }), "hongbao"),
      h("nav", { "aria-label": "Pages" }, nav),
      h("div", { class: "who" }, h("div", {}, h("strong", {}, who.name), h("small", {}, who.roles.join(", "))), out)),
    main));
  app.querySelector('[aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "center" });
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
  // What was said to the one who left is not for the next.
  document.querySelector(".toasts")?.remove();
  document.title = "Log in · hongbao";
  replace(app, login(show, text));
  document.getElementById("key")?.focus();
}

async function start() {
  api.whenEnded(() => logInFirst("Your session has ended. Log in to go on where you were."));
  try {
    await api.session();
  } catch (problem) {
    if (problem.status === 401) return logInFirst();
    return replace(app, h("main", {}, failure(problem, start)));
  }
  show();
}

addEventListener("hashchange", () => api.me() && show());
start();
