/* The share of wrong semantic hits with its interval, and the drift alarms, for the overview. */

import { Chart } from "../charts.js";
import { card, el, head, num, svg, table } from "../dom.js";
import { count, figure, moment, percent, plural } from "../format.js";

const hundredths = (share) => percent(share, 2);

export function wrongHits() {
  const chart = new Chart({ title: "Wrong hits, of all requests", unit: hundredths, axis: (v) => percent(v, v < 0.1 ? 1 : 0), band: [1, 2], empty: "Nothing has been audited in this time." });
  const routes = table("Wrong semantic hits by route", [{ title: "Route", wide: true }, "Promised", "Measured", { title: "95 % interval and promise" }, { title: "Of hits", n: true }, { title: "Threshold", n: true }, { title: "Labels", n: true }], "No route has a semantic cache.");
  const pick = el("select", { "aria-label": "Route", on: { change: () => trend && draw(trend) } });
  const node = card("Wrong semantic hits", { span: 6, note: "of all requests, as audits measure it", actions: pick }, chart.node);
  const events = table("Drift alarms", [{ title: "Route", wide: true }, "Time", "Event"], "No drift alarm in this time.");
  let trend = null, promised = {};

  function draw(told) {
    trend = told;
    events.update(driftAlarms(trend));
    const names = Object.keys(trend.wrong_hits), route = names.includes(pick.value) ? pick.value : names[0];
    if ([...pick.options].map((o) => o.value).join() !== names.join()) pick.replaceChildren(...names.map((name) => el("option", { value: name }, name)));
    if (route) pick.value = route;
    pick.hidden = names.length < 2;
    const known = trend.wrong_hits[route], nothing = trend.at.map(() => null);
    const audited = known && known.share.some((v) => v !== null);
    const where = (values) => values.map((v, i) => (known.share[i] === null ? null : v)); // without a share, only the band is drawn
    const limit = promised[route];
    chart.update(trend.at, trend.step, [
      { name: "share", label: route ? `measured, ${route}` : "measured", key: "miss", values: audited ? known.share : nothing },
      { name: "low", label: "low end", key: "miss", values: audited ? where(known.low) : nothing, width: 0.5, quiet: true },
      { name: "high", label: "high end", key: "miss", values: audited ? where(known.high) : nothing, width: 0.5, quiet: true },
      { name: "limit", label: "promised", key: "quiet", dash: [4, 4], width: 1.25, values: audited && limit ? trend.at.map(() => limit) : nothing, latest: limit ?? null },
    ]);
  }

  return {
    node, draw, charts: [chart], routes: card("Wrong semantic hits by route", { span: 12, note: "now, with the 95 % interval of the audits", id: "quality" }, routes.node),
    events: card("Drift alarms", { span: 12, note: "labels forgotten, because stored answers proved wrong more often than learned", id: "drift" }, events.node),
    update(stats) {
      const all = stats.quality || [];
      promised = Object.fromEntries(all.map((r) => [r.route, r.max_wrong_hits]));
      routes.update(all.map((r) => {
        const { share, low, high } = r.wrong_hits.of_all;
        return [head(r.route), r.max_wrong_hits === null ? "–" : hundredths(r.max_wrong_hits),
          share === null ? "not audited yet" : `${hundredths(share)} (${hundredths(low)} to ${hundredths(high)})`,
          { id: JSON.stringify([share, low, high, r.max_wrong_hits]), name: "range", node: () => range(share, low, high, r.max_wrong_hits) },
          num(hundredths(r.wrong_hits.of_served.share)), num(figure(r.threshold)), num(count(r.labels))];
      }));
    },
  };
}

const MAX_ALARMS = 20; // rows

/* The slots with alarms, newest first. */
function driftAlarms(trend) {
  const rows = Object.entries(trend.drift_alarms).flatMap(([route, counts]) => counts.map((n, i) => ({ route, n, at: trend.at[i] })).filter(({ n }) => n > 0));
  return rows.sort((a, b) => b.at - a.at).slice(0, MAX_ALARMS)
    .map(({ route, n, at }) => [head(route), moment(at), `${plural(n, "alarm", "alarms")}: the threshold fell back to the calibration`]);
}

/* The interval as a bar, the share as a dot, the promise as a line. The text next to it has the figures. */
function range(share, low, high, limit) {
  const picture = svg("svg", { viewBox: "0 0 100 14", class: "interval", "aria-hidden": "true", preserveAspectRatio: "none" });
  if (share === null) return picture;
  const top = Math.max(high, limit || 0) * 1.15 || 1, x = (v) => 100 * v / top;
  picture.append(svg("rect", { x: x(low), y: 5, width: Math.max(0.8, x(high) - x(low)), height: 4, class: limit !== null && low > limit ? "over-limit" : "within" }),
    svg("rect", { x: x(share) - 0.6, y: 2, width: 1.2, height: 10, class: "dot" }));
  if (limit !== null) picture.append(svg("line", { x1: x(limit), x2: x(limit), y1: 0, y2: 14, class: "limit" }));
  return picture;
}
