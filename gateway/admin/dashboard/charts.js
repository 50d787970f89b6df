/* Charts by uPlot, each with a legend of values and a table of the same values. Without the library, only the tables
   are shown. */

import { el, say } from "./dom.js";
import { clock, day, moment } from "./format.js";

export const hasCharts = typeof globalThis.uPlot === "function";
const HEIGHT = 190, MAX_ROWS = 400;
const probe = el("i", { hidden: true });

/* The theme's value of `--name`: a canvas does not know CSS variables. */
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
const faded = (rgb, part) => rgb.replace(/rgba?\(([^,]+),([^,]+),([^,)]+).*/, `rgba($1,$2,$3,${part})`);

/* Charts are drawn one at a time, so that the page stays responsive. */
const waiting = new Set();
function later(chart) {
  if (!waiting.size) setTimeout(next);
  waiting.add(chart);
}
function next() {
  const [chart] = waiting;
  waiting.delete(chart);
  if (waiting.size) setTimeout(next);
  if (chart?.node.isConnected) chart.draw();
}

/* Stacked values: each series plus all series below it. */
function stacked(series) {
  const sums = [];
  let below = null;
  for (const { values } of series) {
    below = values.map((v, i) => (v === null ? null : v + (below?.[i] ?? 0)));
    sums.push(below);
  }
  return sums;
}

function times(splits, span) {
  return splits.map((at, i) => {
    if (at === null) return "";
    if (span > 4 * 86400) return day(at);
    const first = i === 0 || new Date(1000 * at).getDate() !== new Date(1000 * splits[i - 1]).getDate();
    return span > 86400 && first ? day(at) : clock(at);
  });
}

/* series: {name, label, key, values, dash, width, fill}. `key` names the colour. options: {title, kind: "stack" | "line",
   log, top, unit, label, height, band: [lowIndex, highIndex], total}. */
export class Chart {
  constructor({ title, kind = "line", unit = String, axis, height = HEIGHT, log = false, incrs = null, top = null, band = null, sync = "time", empty }) {
    Object.assign(this, { title, kind, unit, axis: axis || unit, height, log, incrs, top, band, sync, plot: null, shape: "" });
    this.host = el("div", { class: "plot", vars: { height: `${height}px` }, tabindex: "0", role: "group", "aria-roledescription": "chart",
      on: { keydown: (event) => this.key(event), blur: () => this.point(null) } });
    this.legend = el("ul", { class: "legend", "aria-label": `${title}: legend` });
    this.when = el("span", { class: "when" });
    this.body = el("tbody");
    this.heading = el("tr");
    this.details = el("details", { open: !hasCharts, on: { toggle: () => this.list() } }, el("summary", {}, "As a table"),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, as a table` },
        el("table", { "aria-label": title }, el("thead", {}, this.heading), this.body)));
    this.nothing = el("p", { class: "empty over" }, empty || "Nothing in this time.");
    this.node = el("figure", { class: "chart" }, el("div", { class: "frame" }, this.host, this.nothing),
      el("figcaption", {}, this.legend, this.when), this.details);
    this.redraw = () => { this.shape = ""; this.draw(); };
    document.addEventListener("theme", this.redraw);
    this.sized = new ResizeObserver(() => this.size());
    this.sized.observe(this.host);
    if (!hasCharts) this.host.hidden = true;
  }

  destroy() {
    document.removeEventListener("theme", this.redraw);
    this.sized.disconnect();
    waiting.delete(this);
    this.plot?.destroy();
    this.plot = null;
  }

  /* at: the start of each slot, in seconds; values: null if nothing is known. */
  update(at, step, series) {
    Object.assign(this, { at, step, series });
    const any = series.some(({ values }) => values.some((v) => v !== null && (v !== 0 || this.kind === "line")));
    this.nothing.hidden = any;
    this.host.setAttribute("aria-label", `${this.title}. ${this.summary()} Arrow keys move through it; the table below has every value.`);
    this.point(this.at_);
    later(this);
    this.list();
  }

  summary() {
    const last = this.series.map((s) => [s.label, s.values.findLast((v) => v !== null)]).filter(([, v]) => v !== undefined);
    return last.length ? `Latest: ${last.map(([label, v]) => `${label} ${this.unit(v)}`).join(", ")}.` : "Nothing in this time.";
  }

  draw() {
    if (!hasCharts || !this.at || !this.host.clientWidth) return;
    const data = this.kind === "stack" ? stacked(this.series).reverse() : this.series.map((s) => s.values);
    const shape = JSON.stringify([this.series.map((s) => [s.name, s.key]), this.kind]);
    if (shape !== this.shape) {
      this.plot?.destroy();
      this.shape = shape;
      this.plot = new globalThis.uPlot(this.options(), [this.at, ...data], this.host);
    } else this.plot.setData([this.at, ...data]);
    this.plot.setScale("x", { min: this.at[0], max: this.at.at(-1) + this.step });
  }

  options() {
    const grid = { stroke: colour("grid"), width: 1 }, quiet = colour("quiet"), font = "11px system-ui, sans-serif";
    const paths = this.kind === "stack" ? globalThis.uPlot.paths.stepped({ align: 1 }) : null;
    const drawn = this.kind === "stack" ? [...this.series].reverse() : this.series;
    return {
      width: this.host.clientWidth, height: this.height, legend: { show: false }, padding: [10, 2, 0, 0],
      cursor: { sync: { key: this.sync }, drag: { x: false, y: false }, y: false, points: this.kind === "stack" ? { show: false } : { size: 6 } },
      scales: {
        x: { time: true, auto: false },
        y: this.log ? { distr: 3, range: (u, min, max) => logRange(min, max) }
          : { range: (u, min, max) => [0, this.top ?? Math.max(max === null ? 1 : max * 1.08, 1e-9)] },
      },
      axes: [
        { stroke: quiet, font, grid: { show: false }, ticks: { show: false }, size: 24, space: 70,
          values: (u, splits) => times(splits, this.at.at(-1) - this.at[0]) },
        { stroke: quiet, font, grid, ticks: { show: false }, size: 52, space: 34, gap: 6,
          ...(this.log && { splits: (u, axis, min, max) => powers(min, max) }), ...(this.incrs && { incrs: this.incrs }),
          values: (u, splits) => splits.map((v) => (v === null ? "" : this.axis(v))) },
      ],
      series: [{}, ...drawn.map((s) => {
        const stroke = colour(s.key);
        if (this.kind === "stack") return { label: s.label, stroke, width: 0, fill: stroke, paths, points: { show: false } };
        return { label: s.label, stroke, width: s.width ?? 1.75, dash: s.dash, fill: s.fill ? faded(stroke, 0.14) : null,
          spanGaps: false, points: { show: !s.quiet, size: 5, fill: stroke, filter: (u, index) => lone(this.series[index - 1].values) } };
      })],
      bands: this.band ? [{ series: [this.band[1] + 1, this.band[0] + 1], fill: faded(colour(this.series[this.band[0]].key), 0.2) }] : [],
      hooks: { setCursor: [(u) => this.point(u.cursor.idx ?? null)] },
    };
  }

  size() {
    if (!this.plot) this.draw();
    else if (this.host.clientWidth) this.plot.setSize({ width: this.host.clientWidth, height: this.height });
  }

  /* The legend has the values of the slot under the cursor, or of the latest one. */
  point(index) {
    if (!this.series) return;
    this.at_ = index;
    const shown = this.series.filter((s) => !s.quiet);
    shown.forEach((s, i) => {
      const item = this.legend.children[i] || this.legend.appendChild(el("li", {}, el("i"), el("span"), el("b")));
      item.firstChild.className = s.dash ? "key dashed" : "key";
      item.firstChild.style.setProperty("--key", `var(--${s.key})`);
      say(item.children[1], s.label);
      const value = index === null || index === undefined ? (s.latest !== undefined ? s.latest : s.values.findLast((v) => v !== null)) : s.values[index];
      say(item.children[2], value === null || value === undefined ? "–" : this.unit(value));
    });
    while (this.legend.children.length > shown.length) this.legend.lastChild.remove();
    say(this.when, index === null || index === undefined || !this.at?.[index] ? "" : moment(this.at[index]));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (steps === undefined || !this.at?.length || !this.plot) return;
    event.preventDefault();
    const last = this.at.length - 1;
    const index = Math.max(0, Math.min(last, (this.at_ ?? last + 1) + steps));
    this.plot.setCursor({ left: this.plot.valToPos(this.at[index] + this.step / 2, "x"), top: 10 });
    this.point(index);
    this.host.setAttribute("aria-label", `${this.title}, ${moment(this.at[index])}: ${this.series.map((s) => `${s.label} ${s.values[index] === null ? "nothing" : this.unit(s.values[index])}`).join(", ")}`);
  }

  list() {
    if (!this.details.open || !this.at) return;
    this.heading.replaceChildren(el("th", { scope: "col" }, "From"), ...this.series.map((s) => el("th", { scope: "col", class: "n" }, s.label)));
    const rows = [];
    for (let i = this.at.length - 1; i >= 0 && rows.length < MAX_ROWS; i--) {
      if (this.series.every((s) => s.values[i] === null)) continue;
      rows.push(el("tr", {}, el("th", { scope: "row" }, moment(this.at[i])), ...this.series.map((s) => el("td", { class: "n" }, s.values[i] === null ? "–" : this.unit(s.values[i])))));
    }
    this.body.replaceChildren(...rows);
  }
}

/* Values without a neighbour, which a line cannot show. */
const lone = (values) => values.flatMap((v, i) => (v !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null ? [i] : []));

function powers(min, max) {
  const found = [];
  for (let e = Math.floor(Math.log10(min)); 10 ** e <= max * 1.001; e++) found.push(10 ** e);
  return found;
}

function logRange(min, max) {
  if (min === null || !(min > 0)) return [1, 100];
  return [10 ** Math.floor(Math.log10(min)), 10 ** Math.max(Math.ceil(Math.log10(max)), Math.floor(Math.log10(min)) + 1)];
}
