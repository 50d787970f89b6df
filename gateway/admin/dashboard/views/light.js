/* The light models: which version answers, which one is being rolled out, and what has happened. */

import { get, post } from "../api.js";
import { card, confirmed, el, head, num, recovered, table } from "../dom.js";
import { count, latency, moment, percent } from "../format.js";

export const title = "Light models";
const EVERY_MS = 3000;
const LEVELS = { promoted: "good", started: "", advanced: "", "rolled-back": "bad", withdrawn: "bad", refused: "warn" };

export function mount(root, { may, fail }) {
  const ended = new AbortController();
  let timer = null, seen = [];
  const versions = table("Versions", [{ title: "Route", wide: true }, "Model", "In force", "Rolled out", { title: "Share", n: true }, "Before", "Verdict", ...(may("admin") ? ["Change"] : [])],
    "No route rolls versions out. Set rollout: on in the section route of the policy.");
  const evidence = table("Evidence", [{ title: "Route", wide: true }, "Version", { title: "Audits", n: true }, { title: "Agrees", n: true }, { title: "Better", n: true }, { title: "Worse", n: true }, { title: "Calls", n: true }, { title: "Errors", n: true }, { title: "p95", n: true }, { title: "p95 before", n: true }],
    "No version is judged.");
  const changes = table("Changes", [{ title: "Time", n: true }, "Route", "Version", "Change", { title: "Reason", wide: true }, "By"], "Nothing has changed yet. nearhit light --route NAME trains a version and begins its rollout.");
  root.append(el("div", { class: "grid" }, card("Versions", { span: 12, id: "versions", note: "agreement with the large model decides" }, versions.node),
    card("Evidence", { span: 12, id: "evidence", note: "of the version that is judged, since its step began" }, evidence.node), card("Changes", { span: 12, id: "changes" }, changes.node)));

  async function load() {
    clearTimeout(timer);
    try {
      seen = (await get("/admin/light", { signal: ended.signal })).rollouts;
      draw();
      recovered(root);
    } catch (error) { fail(error); }
    if (!ended.signal.aborted) { clearTimeout(timer); timer = setTimeout(load, EVERY_MS); }
  }

  function draw() {
    versions.update(seen.map((one) => [head(one.route), { text: one.model, name: "mono" }, one.stable ?? (one.managed ? "none: the large model answers" : "as the server chooses"),
      one.candidate ?? "–", num(one.share === null ? "–" : percent(one.share, 0)), one.previous ?? "–", one.verdict, ...(may("admin") ? [buttons(one)] : [])]));
    evidence.update(seen.filter((one) => one.judged !== null).map(({ route, judged, evidence: e }) => [head(route), judged, num(count(e.audits)), num(e.audits ? percent(e.right / e.audits) : "–"),
      num(count(e.won)), num(count(e.lost)), num(count(e.calls)), { text: count(e.errors), name: e.errors ? "n bad" : "n" }, num(e.p95_ms === null ? "–" : latency(e.p95_ms)), num(e.p95_ms_before === null ? "–" : latency(e.p95_ms_before))]));
    const all = seen.flatMap((one) => one.events.map((event) => ({ ...event, route: one.route }))).sort((a, b) => b.at - a.at);
    changes.update(all.map((event) => [num(moment(event.at)), head(event.route), event.version || "–", { text: event.change, name: LEVELS[event.change] || "" }, event.why, event.by]));
  }

  function buttons(one) {
    const actions = [...(one.candidate === null ? [] : [["promote", "Promote"]]), ...(one.judged === null ? [] : [["rollback", "Roll back"]])];
    return { id: `${one.route} ${one.judged} ${actions.length}`, node: () => el("span", { class: "bar" }, ...actions.map(([action, label]) =>
      el("button", { type: "button", class: "plain", on: { click: () => change(one, action, label) } }, label))) };
  }

  async function change(one, action, label) {
    const text = action === "promote" ? `Version ${one.candidate} gets all calls of the light model of ${one.route} now.` : `Version ${one.judged} gets no more calls of ${one.route}.`;
    if (!(await confirmed(`${label}?`, [el("p", {}, text)], label))) return;
    try { await post("/admin/light", { route: one.route, action }); } catch (error) { fail(error); }
    load();
  }

  load();
  return { unmount() { ended.abort(); clearTimeout(timer); } };
}
