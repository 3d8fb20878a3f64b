// Numbers and times for people. Money is a BigInt of cents and never passes through a float.

export function grouped(digits) {
  return String(digits).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

export function money(cents) {
  if (cents === undefined || cents === null) return "–";
  const value = BigInt(cents);
  const text = (value < 0n ? -value : value).toString().padStart(3, "0");
  return `${value < 0n ? "−" : ""}${grouped(text.slice(0, -2))}.${text.slice(-2)}`;
}

/** "1,234.5" → 123450n; null where that is no amount. */
export function cents(text) {
  const match = /^(\d{1,15})(?:\.(\d{1,2}))?$/.exec(text.trim().replaceAll(",", ""));
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
  if (value < 1) return `${(value * 1000).toFixed(value < 0.01 && value > 0 ? 1 : 0)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  return `${Math.round(value / 60)} min`;
}

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
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
  if (ms < 120_000) return `${ms / 1000} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${Math.round(ms / 3_600_000)} h` : `${Math.round(ms / 86_400_000)} days`;
}

const RULES = { even: "All alike", double_mean: "Double mean", line_cut: "Line cut" };

export function rule(value) {
  return typeof value === "string" ? RULES[value] ?? value : `Prize table, ${value.tiers.length} tiers`;
}

/** "dead_letters" → "Dead letters" */
export function words(name) {
  const text = name.toLowerCase().replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
