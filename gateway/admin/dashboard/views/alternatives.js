/* What other light models and thresholds would have cost and kept on the recorded traffic. */

import { get } from "../api.js";
import { announce, card, el, head, num, recovered, table } from "../dom.js";
import { count, dollars, moment, percent, plural } from "../format.js";

const PATIENCE_MS = 180000;
const usd = (n) => (n === null ? "not priced" : dollars(n));

/* `span` returns the time of the page, such as 7d. */
export function alternatives({ fail, signal, span }) {
  const run = el("button", { type: "button", on: { click: estimate } }, "Try other choices");
  const said = el("p", { class: "empty", role: "status" }, "Routes with record: on store what each decision depends on. Audits and shadows say how good the answers of a model are. Nothing is sent.");
  const rows = table("Other choices", [{ title: "Route", wide: true }, "Light model", { title: "Up to", n: true }, { title: "Its requests", n: true }, { title: "Cost", n: true }, { title: "95 %", n: true }, { title: "Kept", n: true }, { title: "95 %", n: true }, { title: "Compared", n: true }],
    "No route with recorded calls has a light model or a shadow.");
  const results = el("div", { hidden: true }, rows.node);
  const node = card("Other choices", { span: 12, id: "alternatives" }, el("div", { class: "form" }, run), said, results);

  async function estimate() {
    recovered(node);
    run.disabled = true;
    said.textContent = "Reading the recorded traffic …";
    try {
      tell(await get(`/admin/report/alternatives?traffic=last-${span()}`, { signal, patience: PATIENCE_MS }));
    } catch (error) {
      said.textContent = "";
      results.hidden = true;
      fail(error, node);
    }
    run.disabled = false;
  }

  function tell({ traffic, routes }) {
    results.hidden = false;
    const best = routes.flatMap((route) => [sentence(route), ...single(route)]);
    said.textContent = [`${plural(traffic.requests, "request", "requests")} of ${moment(traffic.since)} to ${moment(traffic.until)}.`, ...best, ...traffic.notes].join(" ");
    rows.update(routes.flatMap(({ route, present, others }) => [present, ...others].map((each) => row(route, each))));
    announce(best.join(" ") || "There is nothing to compare");
  }

  return node;
}

function single({ single: one }) {
  if (!one) return [];
  const name = one.light_requests ? one.light : "the best model";
  return [`One model would do as well: ${name} alone for ${usd(one.cost.value)}, with ${percent(one.kept.low)} to ${percent(one.kept.high)} kept.`];
}

function sentence({ route, best, present }) {
  if (best === null) return `${route}: no other choice is known to cost less and keep as much.`;
  const reach = best.light_requests === best.requests ? "for all requests" : `up to a complexity of ${limit(best)}`;
  return `${route}: ${best.light} ${reach} would have cost ${usd(best.cost.value)} in place of ${usd(present.cost.value)}, and kept ${percent(best.kept.low)} to ${percent(best.kept.high)}.`;
}

function row(route, each) {
  const { cost, kept } = each, compared = each.as_good + each.worse + each.undecided + each.failed;
  return [head(route), each.threshold === null ? `${each.light}, as it was` : each.light, num(limit(each)),
    num(`${count(each.light_requests)} of ${count(each.requests)}`), num(usd(cost.value)),
    num(cost.low === null ? "not known" : cost.low === cost.high ? "" : `${dollars(cost.low)} to ${dollars(cost.high)}`),
    num(percent(kept.value)), num(`${percent(kept.low)} to ${percent(kept.high)}`), num(count(compared))];
}

const limit = ({ threshold }) => (threshold === null ? "" : Math.max(0, threshold).toFixed(2));
