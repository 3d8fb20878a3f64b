// Numbers and times for people. Money is a BigInt of cents and never passes through a float.

export function grouped(digits) {
  return String(digits).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

let sign = "";

/** What stands before an amount, as the server says. */
export function setCurrency(text) {
  sign = text;
}

export function money(cents) {
  if (cents === undefined || cents === null) return "–";
  const value = BigInt(cents);
  const text = (value < 0n ? -value : value).toString().padStart(3, "0");
  return `${value < 0n ? "−" : ""}${sign}${grouped(text.slice(0, -2))}.${text.slice(-2)}`;
}

/** "1,234.5" → 123450n; null where that is no amount. */
export function cents(text) {
  const match = /^(\d{1,15})(?:\.(\d{1,2}))?$/.exec(text.replace(sign, "").trim().replaceAll(",", ""));
  return match ? BigInt(match[1]) * 100n + BigInt((match[2] ?? "").padEnd(2, "0")) : null;
}

export function count(number) {
  return number === undefined || number === null ? "–" : grouped(Math.round(number));
}

export function whole(text) {
  const match = /^\d{1,9}$/.exec(text.trim().replaceAll(",", ""));
  return match ? Number(match[0]) : null;
}

export function rate(number) {
  return number >= 100 ? count(number) : number.toFixed(number >= 10 || number === 0 ? 0 : 1);
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value > 0 && value < 0.001) return `${Math.max(Math.round(value * 1e6), 1)} µs`;
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 && value > 0 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return `${Math.round(value / 60)} min`;
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const step = number > 0 ? Math.min(Math.floor(Math.log2(number) / 10), units.length - 1) : 0;
  const value = number / 1024 ** step;
  return `${value.toFixed(step && value < 100 ? 1 : 0)} ${units[step]}`;
}

/** "/data/node-0/redis.sock" → "node-0": where the nodes are is seldom what tells them apart. */
export function place(name) {
  const socket = /([^/]+)\/redis\.sock$/.exec(name);
  return socket ? socket[1] : name.replace(/^rediss?:\/\//, "");
}

/** This machine's distance from Greenwich at a moment, like +08:00. */
export function zone(ms = Date.now()) {
  const east = -new Date(ms).getTimezoneOffset();
  const two = (number) => String(number).padStart(2, "0");
  return `${east < 0 ? "-" : "+"}${two(Math.floor(Math.abs(east) / 60))}:${two(Math.abs(east) % 60)}`;
}

/** For the value of a field of the kind datetime-local. */
export function fieldTime(ms) {
  const there = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return there.toISOString().slice(0, 16);
}

/** How long from now, or ago: "in 5 min", "3 h ago". */
export function fromNow(ms, now = Date.now()) {
  const away = Math.abs(ms - now);
  const text = duration(away < 120_000 ? Math.round(away / 1000) * 1000 : away);
  return ms >= now ? `in ${text}` : `${text} ago`;
}

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });

export function fullTime(ms) {
  return ms === undefined || ms === null ? "–" : FULL.format(new Date(ms));
}

export function time(ms) {
  if (ms === undefined || ms === null) return "–";
  const then = new Date(ms);
  const clock = CLOCK.format(then);
  return then.toDateString() === new Date().toDateString() ? clock : `${DAY.format(then)}, ${clock.slice(0, 5)}`;
}

export function duration(ms) {
  if (ms === 0) return "no time";
  if (ms < 120_000) return `${ms / 1000} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} days`;
}

const RULES = { even: "All alike", double_mean: "Double mean", line_cut: "Line cut" };

export function rule(value) {
  return typeof value === "string" ? RULES[value] ?? value : `Prize table, ${value.tiers.length} tiers`;
}

export function sentence(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** "dead_letters" → "Dead letters" */
export function words(name) {
  return sentence(name.toLowerCase().replaceAll("_", " "));
}
