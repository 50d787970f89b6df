/* The alerts that every view shows. */

import { count, plural } from "./format.js";

const RELEARNED = 1000; // labels after which a route has learned its new answers
const MOST_ALIKE = 0.2; // share of one text among a route's answers

export const BREAKER = { closed: ["closed", "good"], half_open: ["half-open: a few calls probe it", "warn"], open: ["open: it is not called", "bad"], waits: ["asked us to wait", "warn"] };
export const breaker = (name) => BREAKER[name] || [name, "warn"];

export function troubles(stats) {
  const found = [], faults = stats.policy.faults;
  if (faults.length) found.push({ id: "alert-policy", level: "bad", title: "The policy on disk was rejected", text: `${plural(faults.length, "fault", "faults")}. Policy ${stats.policy.hash}, the last good one, stays in force until the files are valid. Run nearhit check to see every fault.`, list: faults });
  if (stats.store_breaker === "half_open") found.push({ id: "alert-store-tried", level: "warn", title: "The store is being tried again", text: "It did not answer. Requests continued without it." });
  else if (stats.store_breaker !== "closed") found.push({ id: "alert-store", level: "bad", title: "The store does not answer", text: "Requests continue without it; only answers in the memory of the process are hits. The gateway tries again by itself. Check that store.url can be reached." });
  const steps = Object.entries(stats.step_failures || {}).filter(([, n]) => n > 0);
  if (steps.length) found.push({ id: "alert-steps", level: "warn", title: "Steps failed unexpectedly", text: "No request failed by it: each went on without the step. The log has the place in the code; please report it.",
    list: steps.map(([step, n]) => `${step}: ${plural(n, "failure", "failures")} since the start`) });
  const failing = Object.entries(stats.backends).filter(([, b]) => b.breaker !== "closed");
  if (failing.length) found.push({ id: "alert-backends", level: "warn", title: "Backends keep failing", text: "If a route has another tier, that tier takes over.",
    list: failing.map(([name, b]) => `${name}: its circuit breaker is ${breaker(b.breaker)[0]}`) });
  const refusing = Object.entries(stats.backends).flatMap(([name, b]) => b.upstreams.filter((u) => u.refusal).map((u) => [name, u]));
  if (refusing.length) found.push({ id: "alert-refusals", level: "bad", title: "Upstreams refuse the gateway", text: "Calls go to other upstreams and backends, if there are any. Check the keys, the accounts and the names of models.",
    list: refusing.map(([name, u]) => `${name}, ${u.address}: ${u.refusal.status}, ${u.refusal.refused === "key" ? "its key or account" : `the ${u.refusal.refused} ${u.refusal.scope}`}, ${Math.round(u.refusal.ago_s)} s ago`) });
  const drifted = (stats.quality || []).filter((r) => r.labels_since_drift !== null && r.labels_since_drift < RELEARNED);
  if (drifted.length) found.push({ id: "alert-drift", level: "warn", title: "Answers changed: stored ones prove wrong more often than learned", text: "A drift alarm made these routes forget their labels. Their thresholds begin at the calibration and follow new labels.",
    list: drifted.map((r) => `${r.route}: ${plural(r.labels_since_drift, "label", "labels")} since the alarm, shown until ${count(RELEARNED)}`) });
  const alike = (stats.quality || []).filter((r) => r.answer_share > MOST_ALIKE);
  if (alike.length) found.push({ id: "alert-alike", level: "warn", title: "Unlike questions get the same answer", text: "So equal answers say little about the questions: these routes learn little, and audits find few wrong hits. Before a classifier this is usual. Otherwise look whether the backend answers with an error text.",
    list: alike.map((r) => `${r.route}: one text is ${Math.round(100 * r.answer_share)} % of its answers`) });
  return found;
}
