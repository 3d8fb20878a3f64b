// Requests in the name of whoever is logged in.

import { setCurrency } from "./format.js";

let who = null;
let onEnd = () => {};

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `the server answered ${status}`);
    this.status = status;
    this.title = body.title ?? "The request failed";
    this.body = body;
  }
}

/** Called when the session has ended. */
export function whenEnded(act) {
  onEnd = act;
}

export function me() {
  return who;
}

/** `may("rains", "write")`: what the server would refuse is not offered. */
export function may(module, access) {
  const has = who?.permissions ?? [];
  return has.includes(`${module}:write`) || (access === "read" && has.includes(`${module}:read`));
}

// Amounts are 64-bit integers: those beyond 2^53 would change as a number.
function reviver(name, value, context) {
  if (typeof value !== "number" || !(name === "cents" || name.endsWith("_cents"))) return value;
  return BigInt(context?.source ?? value);
}

function replacer(_, value) {
  if (typeof value !== "bigint") return value;
  return JSON.rawJSON ? JSON.rawJSON(value.toString()) : Number(value);
}

export function toJson(body) {
  return JSON.stringify(body, replacer);
}

async function send(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Problem(0, { title: "The server does not answer", detail: "Check the connection; the console goes on by itself." });
  }
  const text = await answer.text();
  let body = {};
  try {
    body = text ? JSON.parse(text, reviver) : {};
  } catch {
    body = { detail: text.slice(0, 200) };
  }
  if (answer.ok || (options?.anyStatus && answer.status !== 401)) return body;
  if (answer.status === 401 && who) {
    who = null;
    onEnd();
  }
  throw new Problem(answer.status, body);
}

/** `background`: the page asks by itself, so the session is not kept alive by it. */
export function get(path, { background = false, anyStatus = false } = {}) {
  return send(path, { anyStatus, headers: background ? { "hongbao-background": "1" } : {} });
}

/** A question with a body. */
export function ask(path, body) {
  return send(path, { method: "POST", headers: head(), body: toJson(body) });
}

function head() {
  return { "content-type": "application/json", "hongbao-csrf": who?.csrf ?? "" };
}

/** One wish of a person; sent again with the same key it still happens once. */
export function wish() {
  return crypto.randomUUID ? crypto.randomUUID() : [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Wishes for one thing after another: as long as it is the same thing, it is the same wish. */
export function wishes() {
  let [last, key] = [];
  return (thing) => {
    const text = toJson(thing);
    if (text !== last) [last, key] = [text, wish()];
    return key;
  };
}

/** A write. `confirm(problem)` is asked when the server wants to hear it twice; false: nothing happens, and the answer is null. */
export async function write(path, body, { key = wish(), confirm } = {}) {
  const request = (more) => send(path, { method: "POST", headers: { ...head(), "idempotency-key": key, ...more }, body: toJson(body ?? {}) });
  try {
    return await request({});
  } catch (problem) {
    if (problem.status !== 428 || !problem.body.confirm || !confirm) throw problem;
    if (!(await confirm(problem))) return null;
    return request({ "hongbao-confirm": problem.body.confirm });
  }
}

export async function session() {
  who = await send("/console/session");
  setCurrency(who.currency ?? "");
  return who;
}

export async function logIn(key, secret) {
  who = await send("/console/login", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ key, secret }) });
  setCurrency(who.currency ?? "");
  return who;
}

export async function logOut() {
  await send("/console/logout", { method: "POST", headers: head() });
  who = null;
}
