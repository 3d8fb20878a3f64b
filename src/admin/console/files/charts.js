// Small pictures of numbers.

import { h, svg } from "./dom.js";
import { count, money } from "./format.js";

/** Values over time, drawn to the full width. `points`: [ms, value]. */
export function line(points, { label, show = count, tone = "", least = 1 }) {
  const [width, height, pad] = [600, 130, 6];
  const first = points[0]?.[0] ?? 0;
  const span = Math.max((points.at(-1)?.[0] ?? 0) - first, 1);
  const peak = Math.max(...points.map(([, value]) => value), 0);
  const most = Math.max(peak, least);
  const x = (ms) => ((ms - first) / span) * width;
  const y = (value) => height - pad - (value / most) * (height - 2 * pad);
  const path = points.map(([ms, value], n) => `${n ? "L" : "M"}${x(ms).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const area = points.length > 1 ? `${path}L${width} ${height - pad}L0 ${height - pad}Z` : "";
  const grid = [0, 0.5, 1].map((part) => svg("line", { class: "grid", x1: 0, x2: width, y1: y(most * part), y2: y(most * part) }));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${show(points.at(-1)?.[1] ?? 0)} now, ${show(peak)} at most` },
    grid, area && svg("path", { class: "area", d: area }), path && svg("path", { class: "line", d: path }));
  return h("figure", { class: `chart ${tone}` }, h("figcaption", {}, h("span", {}, label), h("span", { class: "hint" }, `${points.length ? `now ${show(points.at(-1)[1])}, ` : ""}peak ${show(peak)}`)), picture);
}

/** Packets by amount. `bars`: {from_cents, below_cents, packets}. */
export function histogram(bars) {
  const most = Math.max(...bars.map((bar) => bar.packets), 1);
  const [width, height] = [600, 180];
  const step = width / bars.length;
  const shapes = bars.map((bar, n) => {
    const tall = bar.packets ? Math.max((bar.packets / most) * (height - 4), 2) : 0;
    return svg("rect", { class: "bar", x: n * step + 1, y: height - tall, width: Math.max(step - 2, 1), height: tall, rx: 2 },
      svg("title", {}, `${money(bar.from_cents)} to ${money(bar.below_cents - 1n)}: ${count(bar.packets)} packets`));
  });
  return h("figure", { class: "chart histogram" },
    h("figcaption", {}, h("span", {}, "Packets by amount"), h("span", { class: "hint" }, `tallest ${count(most)}`)),
    svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "Packets by amount" }, shapes),
    h("div", { class: "axis" }, h("span", {}, money(bars[0]?.from_cents)), h("span", {}, money(bars[Math.floor(bars.length / 2)]?.from_cents)), h("span", {}, money(bars.at(-1)?.below_cents))));
}

/** Parts of a whole in one bar, with a legend. `parts`: [name, number, tone, shown]. */
export function stack(parts) {
  const whole = Math.max(parts.reduce((sum, part) => sum + part[1], 0), 1);
  let at = 0;
  const shapes = parts.map(([name, number, tone]) => {
    const width = (number / whole) * 1000;
    const shape = svg("rect", { class: tone, x: at, y: 0, width, height: 10 }, svg("title", {}, `${name}: ${count(number)}`));
    at += width;
    return shape;
  });
  return h("figure", { class: "stack" }, svg("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": parts.map(([name, number]) => `${name} ${number}`).join(", ") }, shapes),
    h("ul", { class: "legend" }, parts.map(([name, number, tone, shown]) => h("li", {}, h("i", { class: tone }), h("span", {}, name), h("b", {}, shown ?? count(number))))));
}

/** A part of 1 as a thin bar. */
export function meter(part, label) {
  const width = Math.min(Math.max(part, 0), 1) * 100;
  return svg("svg", { class: "meter", viewBox: "0 0 100 4", preserveAspectRatio: "none", role: "img", "aria-label": label }, svg("rect", { class: "track", width: 100, height: 4 }), svg("rect", { class: "fill", width, height: 4 }));
}
