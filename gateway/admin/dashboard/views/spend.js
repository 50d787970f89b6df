/* Who spent what, what that saved, and where the month is heading. */

import { get } from "../api.js";
import { Chart } from "../charts.js";
import { card, choice, el, head, num, recovered, say, table } from "../dom.js";
import { count, dollars, duration, latency, percent, short } from "../format.js";
import { alternatives } from "./alternatives.js";

export const title = "Spend";
const SPANS = [["24h", "24 h"], ["7d", "7 days"], ["30d", "30 days"]];
const BY = [["tenant", "Tenant"], ["model", "Model"], ["route", "Route"], ["backend", "Backend"], ["key", "Key"], ["user", "User"]];
const HOUR_S = 3600, DAY_S = 86400, EVERY_MS = 10000, ROWS = 100;
const usd = (n) => (n === null ? "not priced" : dollars(n));

export function mount(root, { params, fail, remember }) {
  let span = SPANS.some(([value]) => value === params.get("span")) ? params.get("span") : "7d";
  let by = BY.some(([value]) => value === params.get("by")) ? params.get("by") : "tenant";
  let timer = null;
  const ended = new AbortController();
  const again = () => { remember({ span: span === "7d" ? null : span, by: by === "tenant" ? null : by }); load(); };
  const sentence = el("p", { id: "saved", role: "status" }), routed = el("p", { id: "routed", hidden: true });
  const tiles = el("dl", { class: "tiles" });
  const trend = new Chart({ title: "Cost and savings", unit: dollars, empty: "Nothing was booked in this time." });
  const payers = table("Who spent what", [{ title: "Name", wide: true }, { title: "Requests", n: true }, { title: "Hits", n: true }, { title: "Tokens", n: true }, { title: "Cost", n: true }, { title: "Saved", n: true }],
    "Nothing is booked in this time. A route books with spend: on in the policy.");
  const budgets = table("Budgets", [{ title: "Route", wide: true }, { title: "Spent", n: true }, { title: "Budget", n: true }, { title: "Left", n: true }, "Used", { title: "Forecast", n: true }],
    "No route books its spend. Set spend: on in the policy.");
  const costs = table("What it cost", [{ title: "Cost", wide: true }, { title: "Sum", n: true }]);
  const who = card("Who spent what", { span: 12, id: "payers", actions: choice("By", BY, by, (value) => { by = value; again(); }) }, payers.node);
  const month = card("This month", { span: 8, id: "budgets" }, budgets.node);
  root.append(
    el("div", { class: "bar" }, choice("Time", SPANS, span, (value) => { span = value; again(); })),
    el("div", { class: "grid" }, card("Saved", { span: 12, id: "savings" }, sentence, routed), tiles,
      card("Cost and savings", { span: 12 }, trend.node), who, month, card("What it cost", { span: 4, id: "costs" }, costs.node),
      alternatives({ fail, signal: ended.signal, span: () => span })));

  async function load() {
    clearTimeout(timer);
    const [wanted, names] = [span, by], options = { signal: ended.signal }, step = span === "24h" ? "hour" : "day";
    try {
      const [report, rows, times, budget] = await Promise.all([
        get(`/admin/report?since=${wanted}`, options), get(`/admin/spend?by=${names}&since=${wanted}`, options),
        get(`/admin/spend?by=${step}&since=${wanted}`, options), get("/admin/budgets", options)]);
      if (wanted === span && names === by) draw(report, rows, times, budget, step);
      recovered(root);
    } catch (error) { fail(error); }
    if (!ended.signal.aborted) { clearTimeout(timer); timer = setTimeout(load, EVERY_MS); }
  }

  function draw(report, rows, times, budget, step) {
    say(sentence, `${report.sentence}.`);
    routed.hidden = !report.routing;
    if (report.routing) say(routed, `${report.routing_sentence}.`);
    drawTiles(report, budget);
    drawTrend(report, times, step);
    payers.update(rows.rows.slice(0, ROWS).map((row) => [head(row[by] || "none"), num(count(row.requests)), num(count(row.hits)), num(short(row.tokens)), num(usd(row.cost)), num(dollars(row.saved))]));
    who.note(rows.rows.length > ROWS ? `the first ${ROWS} of ${count(rows.rows.length)}` : "");
    month.note(`${budget.month}: ${dollars(budget.spent)} so far, ${budget.forecast === null ? "no forecast yet" : `${dollars(budget.forecast)} at its end if it goes on like the last week`}`);
    budgets.update([...budget.routes, ...budget.parties].map((each) => [head(owner(each)), num(dollars(each.spent)), num(each.budget === null ? "none" : dollars(each.budget)),
      num(each.left === null ? "–" : each.left < 0 ? `${dollars(-each.left)} over` : dollars(each.left)), used(each), num(dollars(each.forecast))]));
    const { costs: own } = report;
    costs.update([["Audits", dollars(own.audits)], [`Other calls, ${count(own.trials_failed)} failed trials`, dollars(own.trials)], ["Embedding", duration(own.embedding_s)],
      ["CPU of requests", duration(own.cpu_s)], ["CPU of learning", duration(own.learning_cpu_s)]].map(([name, value]) => [head(name), num(value)]));
  }

  function drawTiles({ cache, net, spent, not_priced: unpriced }, budget) {
    const items = [
      ["Answered", cache.requests ? percent(cache.answered / cache.requests) : "–", `${count(cache.answered)} of ${count(cache.requests)} requests`],
      ["Saved, net", net === null ? "not priced" : net < 0 ? `-${dollars(-net)}` : dollars(net), "after audits and other calls"],
      ["Spent", usd(spent), unpriced ? `${count(unpriced)} calls are not priced` : "by the calls of clients"],
      ["Tokens saved", short(cache.saved_tokens), "by hits"],
      ["Audited wrong", `${count(cache.wrong)} of ${count(cache.audited)}`, cache.audited ? `${percent(cache.wrong_share.low)} to ${percent(cache.wrong_share.high)} of semantic hits` : "nothing was audited"],
      ["Median time", cache.p50_hit_ms === null ? "–" : latency(cache.p50_hit_ms), cache.p50_backend_ms === null ? "of hits" : `of hits; ${latency(cache.p50_backend_ms)} from a backend`],
    ];
    items.forEach(([name, value, note], i) => {
      const tile = tiles.children[i] || tiles.appendChild(el("div", { class: "tile" }, el("dt"), el("dd", { class: "figure" }), el("dd")));
      [name, value, note].forEach((text, k) => say(tile.children[k], text));
    });
  }

  /* Days and hours without bookings are 0. A day is one of UTC: the chart shows local times, so it begins at local midnight. */
  function drawTrend(report, times, step) {
    const length = step === "hour" ? HOUR_S : DAY_S, first = Math.floor(Date.parse(report.since) / 1000 / length) * length, end = Date.parse(report.until) / 1000;
    const rows = new Map(times.rows.map((row) => [Date.parse(row[step]) / 1000, row]));
    const at = Array.from({ length: Math.max(1, Math.ceil((end - first) / length)) }, (_, i) => first + i * length);
    const shown = at.map((start) => start + (step === "day" ? 60 * new Date(1000 * start).getTimezoneOffset() : 0));
    trend.update(shown, length, [["cost", "cost", "miss"], ["saved", "saved by hits", "exact"]].map(([name, label, key]) =>
      ({ name, label, key, values: at.map((start) => rows.get(start)?.[name] ?? 0) })));
  }

  load();
  return { unmount() { ended.abort(); clearTimeout(timer); trend.destroy(); } };
}

function owner({ route, tenant, key }) {
  return tenant === undefined && key === undefined ? route : `${route}, ${key === undefined ? `tenant ${tenant}` : `key ${key}`}`;
}

function used({ budget, spent }) {
  if (budget === null) return "–";
  const part = Math.min(1, spent / budget);
  return { id: part.toFixed(3), name: "load", node: () => el("i", { class: "meter", role: "img", "aria-label": percent(spent / budget), vars: { part: `${100 * part}%` } }) };
}
