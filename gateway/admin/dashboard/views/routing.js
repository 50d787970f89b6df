/* The parts of the overview about light and large models. */

import { Chart } from "../charts.js";
import { card, head, num, table } from "../dom.js";
import { count, figure, percent, sum } from "../format.js";

const WHY = {
  "only-backend": "the route has one backend", "below-threshold": "easy enough for the light model", "above-threshold": "too hard for the light model",
  budget: "the other one would be too slow", fallback: "the first one failed", overloaded: "the first one had no place", limit: "a limit keeps it to the light one",
  "cascade-accepted": "the light one's answer passed its check", "cascade-escalated": "the light one's answer did not pass", "cascade-kept": "nobody better could answer",
};

export function routing() {
  const chart = new Chart({ title: "Light and large", kind: "stack", unit: (v) => percent(v), axis: (v) => `${Math.round(100 * v)} %`, top: 1, empty: "No misses that could go to either." });
  const why = table("Why misses went where they went", ["Tier", "Reason", { title: "Why", wide: true }, { title: "Misses", n: true }, { title: "Share", n: true }], "No misses in this time.");
  const rules = table("Light or large, by route", [{ title: "Route", wide: true }, "Rule", { title: "Threshold", n: true }, { title: "Large, last hour", n: true }, "Of the gap kept", "Labels"],
    "No route has two models. Name light and large in a policy to split its misses.");
  return {
    share: card("Misses: light or large", { span: 6, id: "routing" }, chart.node),
    why: card("Why misses went where they went", { span: 6, id: "why" }, why.node),
    rules: card("Light or large", { span: 12, note: "the rule and the current state of each route", id: "rules" }, rules.node),
    charts: [chart],
    draw(trend) {
      chart.update(trend.at, trend.step, trend.tiers().map((tier, i) => ({ name: tier, label: tier, key: keyOf(tier, i), values: trend.share(tier), latest: overall(trend, tier) })));
      const rows = Object.entries(trend.reasons()).flatMap(([tier, reasons]) => Object.entries(reasons).map(([reason, n]) => ({ tier, reason, n })));
      const all = sum(rows.map((row) => row.n));
      why.update(rows.sort((a, b) => b.n - a.n).map(({ tier, reason, n }) => [head(tier === "none" ? "–" : tier, keyOf(tier, trend.tiers().indexOf(tier))), reason, { text: WHY[reason] || "", name: "quiet wrap" }, num(count(n)), num(percent(n / all))]));
    },
    update(stats) {
      const part = (share) => percent(share);
      rules.update((stats.routing || []).map((r) => {
        const kept = r.quality_kept, labels = Object.entries(r.labels).map(([source, n]) => `${count(n)} ${source}`).join(", ") || "none";
        return [head(r.route), `${r.rule}: ${r.asked}`, num(figure(r.threshold)), num(part(r.large_share)),
          kept.part === null ? "no misses yet" : `${part(kept.part)} (${part(kept.low)} to ${part(kept.high)})`, r.learning ? labels : `${labels}; frozen`];
      }));
    },
  };
}

function overall(trend, tier) {
  const reasons = trend.reasons(), of = (name) => sum(Object.values(reasons[name] || {}));
  const all = sum(trend.tiers().map(of));
  return all ? of(tier) / all : null;
}

/* The colour of a tier. Tiers between light and large share a row of colours. */
const keyOf = (tier, i) => (["light", "large", "none"].includes(tier) ? tier : `c${1 + (i % 5)}`);
