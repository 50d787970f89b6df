/* The overview: hit rate, latency, savings and wrong hits. */

import { get } from "../api.js";
import { Chart } from "../charts.js";
import { card, choice, el, head, num, recovered, say, table } from "../dom.js";
import { count, dollars, duration, latency, ms, percent, rate, short, sum } from "../format.js";
import { Trend } from "../trend.js";
import { routing } from "./routing.js";
import { wrongHits } from "./wrong_hits.js";

export const title = "Overview";
const SPANS = [["1h", "1 h"], ["6h", "6 h"], ["24h", "24 h"], ["7d", "7 days"], ["30d", "30 days"]];
const EVERY_MS = { "1h": 4000, "6h": 30000, "24h": 30000, "7d": 60000, "30d": 60000 };
const VERDICTS = ["exact", "semantic", "stale", "coalesced", "miss", "bypass"];
const SECONDS = [.1, .2, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 18000, 36000, 86400, 172800, 432000, 864000, 2592000];
const SAVED = { backend_s: ["Backend time", duration], tokens: ["Tokens", short], dollars: ["Dollars", dollars] };

export function mount(root, { params, fail, remember }) {
  let span = SPANS.some(([value]) => value === params.get("span")) ? params.get("span") : "1h";
  let quantile = "p95", saved = "backend_s", timer = null, trend = null, stats = null;
  const ended = new AbortController();
  const charts = {
    traffic: new Chart({ title: "Requests per second by verdict", kind: "stack", unit: rate, axis: short, empty: "No requests in this time." }),
    hits: new Chart({ title: "Hit rate", unit: (v) => percent(v), axis: (v) => `${Math.round(100 * v)} %`, top: 1, empty: "Nothing was looked up in this time." }),
    latency: new Chart({ title: "Latency by verdict", unit: latency, log: true, empty: "No requests in this time." }),
    stages: new Chart({ title: "Latency by stage", unit: latency, log: true, empty: "Nothing was timed in this time." }),
    saved: new Chart({ title: "Saved by hits", kind: "stack", unit: (v) => SAVED[saved][1](v), axis: (v) => (saved === "tokens" ? short(v) : SAVED[saved][1](v)), empty: "No hits in this time." }),
  };
  const again = () => { remember({ span: span === "1h" ? null : span }); load(); };
  const tiles = el("dl", { class: "tiles" });
  const start = beginning();
  const traffic = card("Traffic", { span: 8, id: "traffic" }, charts.traffic.node);
  const verdicts = table("Verdicts", ["Verdict", { title: "Requests", n: true }, { title: "Share", n: true }, { title: "p50 ms", n: true }, { title: "p95 ms", n: true }]);
  const refusals = table("Neighbours refused", [{ title: "Reason", wide: true }, { title: "Count", n: true }, { title: "Share", n: true }],
    "No stored answer has been refused for another question yet.");
  const parts = { routing: routing(), wrong: wrongHits() };
  const quantiles = choice("Quantile", [["p50", "p50"], ["p95", "p95"]], quantile, (value) => { quantile = value; draw(); });
  root.append(
    el("div", { class: "bar" }, choice("Time", SPANS, span, (value) => { span = value; again(); }), el("span", { class: "quiet", id: "span-note" })),
    el("div", { class: "grid" }, start, tiles,
      traffic, card("Hit rate", { span: 4, note: "of what was looked up" }, charts.hits.node),
      card("Latency by verdict", { span: 6, actions: quantiles }, charts.latency.node),
      card("Latency by stage", { span: 6 }, charts.stages.node),
      card("Saved by hits", { span: 6, actions: choice("What was saved", Object.entries(SAVED).map(([key, [text]]) => [key, text]), saved, (value) => { saved = value; draw(); }) }, charts.saved.node),
      parts.wrong.node, parts.routing.share, parts.routing.why, parts.wrong.routes, parts.wrong.events, parts.routing.rules,
      card("Verdicts and latency", { span: 6, note: "since the start", id: "verdicts" }, verdicts.node),
      card("Neighbours refused", { span: 6, note: "since the start", id: "refusals" }, refusals.node)));

  async function load() {
    clearTimeout(timer);
    const wanted = span;
    try {
      const told = await get(`/admin/history?span=${wanted}`, { signal: ended.signal });
      if (wanted === span) { trend = new Trend(told); draw(); }
      recovered(root);
    } catch (error) { fail(error); }
    if (!ended.signal.aborted) timer = setTimeout(load, EVERY_MS[span]);
  }

  function draw() {
    if (!trend) return;
    const { at, step } = trend;
    const seen = VERDICTS.filter((v) => sum(trend.verdicts[v]) > 0);
    charts.traffic.update(at, step, seen.map((v) => ({ name: v, label: v, key: v, values: trend.perSecond(trend.verdicts[v]) })));
    charts.hits.update(at, step, [{ name: "hits", label: "hit rate", key: "exact", values: trend.hitRates(), fill: true, latest: trend.hitRate() }]);
    charts.latency.update(at, step, seen.map((v) => ({ name: v, label: v, key: v, values: trend.latency("latency_ms", v, quantile) })));
    charts.stages.update(at, step, trend.stages().map((stage, i) => ({ name: stage, label: stage, key: `c${i % 8}`, values: trend.latency("stage_ms", stage, "p95") })));
    charts.saved.incrs = saved === "backend_s" ? SECONDS : null;
    charts.saved.update(at, step, [{ name: saved, label: SAVED[saved][0], key: "coalesced", values: trend.saved[saved], latest: sum(trend.saved[saved]) }]);
    parts.routing.draw(trend);
    parts.wrong.draw(trend);
    say(document.getElementById("span-note"), `${duration(trend.length)} shown, ${duration(step)} a point`);
    drawTiles();
  }

  function drawTiles() {
    if (!trend || !stats) return;
    const requests = sum(VERDICTS.map((v) => sum(trend.verdicts[v]))), over = `in ${SPANS.find(([v]) => v === span)[1]}`;
    const items = [
      ["Hit rate", percent(trend.hitRate()), requests ? over : `idle ${over}`, `${percent(stats.hit_rate)} since the start`],
      ["Requests per second", rate(trend.recent(requests)), `${count(requests)} ${over}`, `${count(stats.requests)} since the start`],
      ["Backend time saved", duration(sum(trend.saved.backend_s)), over, `${duration(stats.backend_seconds_saved)} since the start`],
      ["Tokens saved", short(sum(trend.saved.tokens)), over, `${count(stats.tokens_saved)} since the start`],
      ["Dollars saved", dollars(sum(trend.saved.dollars)), over, stats.tokens_saved && !stats.dollars_saved ? "set a backend's price to count them" : `${dollars(stats.dollars_saved)} since the start`],
      ["Refused under load", count(sum(trend.shed)), over, `${count(stats.shed)} since the start`],
    ];
    items.forEach(([name, value, ...notes], i) => {
      const tile = tiles.children[i] || tiles.appendChild(el("div", { class: "tile" }, el("dt"), el("dd", { class: "figure" }), el("dd"), el("dd")));
      [name, value, ...notes].forEach((text, k) => say(tile.children[k], text));
    });
  }

  load();
  return {
    update(report) {
      stats = report;
      start.hidden = stats.requests > 0;
      if (!start.hidden) start.tell(stats);
      verdicts.update(VERDICTS.map((v) => Object.assign([head(v, v), num(count(stats.verdicts[v])), num(stats.requests ? percent(stats.verdicts[v] / stats.requests) : "–"),
        num(ms(stats.latency_ms[v].p50)), num(ms(stats.latency_ms[v].p95))], { quiet: !stats.verdicts[v] })));
      const refused = Object.entries(stats.refusals).sort((a, b) => b[1] - a[1]), all = sum(refused.map(([, n]) => n));
      refusals.update(refused.map(([reason, n]) => [head(reason), num(count(n)), num(percent(n / all))]));
      parts.routing.update(stats);
      parts.wrong.update(stats);
      drawTiles();
    },
    unmount() {
      ended.abort();
      clearTimeout(timer);
      for (const chart of [...Object.values(charts), ...parts.routing.charts, ...parts.wrong.charts]) chart.destroy();
    },
  };
}

function beginning() {
  const curl = el("pre", { tabindex: "0" });
  const node = el("section", { class: "card span-12", id: "start", "aria-labelledby": "start-title", hidden: true },
    el("h2", { id: "start-title" }, "No traffic yet"),
    el("p", {}, "Point a client's base URL at this gateway, or send a request twice and watch the second one hit:"), curl);
  return Object.assign(node, { tell: (stats) => say(curl, `curl -si ${stats.listen}/v1/chat/completions -H 'content-type: application/json' \\\n  -d '{"model": "demo", "messages": [{"role": "user", "content": "What is a scope?"}]}'`) });
}
