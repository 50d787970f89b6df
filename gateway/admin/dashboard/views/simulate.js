/* A simulation of recorded traffic under the policy in the editor, compared with the one in force. */

import { post } from "../api.js";
import { announce, card, el, head, num, recovered, table } from "../dom.js";
import { count, dollars, latency, moment, percent, plural } from "../format.js";

const PATIENCE_MS = 180000;
const SPANS = [["last-1h", "last hour"], ["last-24h", "last 24 hours"], ["last-7d", "last 7 days"]];

export function trying({ fail, signal, content }) {
  const span = el("select", {}, SPANS.map(([value, text]) => el("option", { value, selected: value === "last-24h" }, text)));
  const run = el("button", { type: "button", on: { click: simulate } }, "Try this policy");
  const said = el("p", { class: "empty", role: "status" }, "Routes with record: on store the inputs of each decision. The simulation decides again with the policy in the editor. Nothing is sent.");
  const sides = table("In force against tried", [{ title: "Figure", wide: true }, { title: "In force", n: true }, { title: "Tried", n: true }, { title: "Difference", n: true }], "");
  const examples = table("Requests that would change", ["When", "Route", "In force", "Tried", { title: "Question", wide: true }], "No request would change.");
  const heading = el("h3", {}, "Requests that would change");
  const results = el("div", { hidden: true }, sides.node, heading, examples.node);
  const node = card("Try this policy", { span: 12, id: "simulate" }, el("div", { class: "form" }, el("label", { class: "field" }, "Recorded traffic", span), run), said, results);

  async function simulate() {
    const [file, text] = content();
    recovered(node);
    run.disabled = true;
    said.textContent = "Trying it on the recorded traffic …";
    try {
      const found = await post(`/admin/simulate?${new URLSearchParams({ file, traffic: span.value })}`, text, { signal, patience: PATIENCE_MS });
      tell(found);
    } catch (error) {
      said.textContent = "";
      results.hidden = true;
      fail(error.status === 404 ? new Error("This gateway cannot try policies yet.") : error, node);
    }
    run.disabled = false;
  }

  function tell({ traffic, present, new: tried, recorded, changed }) {
    results.hidden = false;
    said.textContent = [`${plural(traffic.requests, "request", "requests")} of ${moment(traffic.from)} to ${moment(traffic.to)}, in ${traffic.seconds.toFixed(1)} s; ${plural(changed.requests, "would change", "would change")}. Recorded: hit rate ${percent(recorded.hit_rate)}, p95 ${latency(recorded.p95_ms)}.`, ...traffic.notes].join(" ");
    const wrong = (side) => side.wrong_hits?.of_requests ?? null;
    const verdicts = [...new Set([...Object.keys(present.verdicts), ...Object.keys(tried.verdicts)])].filter((v) => present.verdicts[v] || tried.verdicts[v]);
    const timed = !(present.unknown_latency || tried.unknown_latency), priced = !(present.unknown_cost || tried.unknown_cost);
    const rows = [
      ["Hit rate", (s) => s.hit_rate, percent, points],
      ...verdicts.map((v) => [`– ${v}`, (s) => s.verdicts[v] ?? 0, percent, points]),
      ["Wrong hits, of requests", wrong, (x) => percent(x, 2), points],
      ["Large model's share", (s) => s.large_share, percent, points],
      ["Cost", (s) => s.cost_dollars, dollars, (d) => `${d > 0 ? "+" : "−"}${dollars(Math.abs(d))}`, priced],
      ...["p50", "p95", "p99"].map((q) => [q, (s) => s[`${q}_ms`], latency, lasting, timed]),
    ];
    sides.update(rows.map(([name, of, shown, difference, alike = true]) => {
      const [a, b] = [of(present), of(tried)], known = alike && a !== null && a !== undefined && b !== null && b !== undefined;
      return [head(name), num(shown(a)), num(shown(b)), num(known ? (a === b ? "0" : difference(b - a)) : "–")];
    }));
    examples.update(changed.examples.map((e) => [head(moment(e.at)), e.route, outcome(e.present), outcome(e.new), e.prompt === null ? { text: `${e.question} (a hash)`, name: "mono quiet" } : { text: e.prompt, name: "clip" }]));
    announce(`Hit rate ${percent(present.hit_rate)} in force, ${percent(tried.hit_rate)} tried; ${count(changed.requests)} requests would change`);
  }

  return { node };
}

const outcome = (side) => [side.verdict, side.reason, side.backend].filter(Boolean).join(", ");
const points = (d) => `${d > 0 ? "+" : "−"}${(100 * Math.abs(d)).toFixed(2)} points`;
const lasting = (d) => `${d > 0 ? "+" : "−"}${latency(Math.abs(d))}`;
