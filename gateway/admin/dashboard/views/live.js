/* The decision on each request as it happens, without prompts. */

import { events } from "../api.js";
import { announce, card, el, recovered } from "../dom.js";
import { clock, count, figure, latency } from "../format.js";

export const title = "Live";
const KEPT = 200, AGAIN_MS = 2000;
const VERDICTS = ["exact", "semantic", "stale", "coalesced", "miss", "bypass"];

export function mount(root, { params, fail, remember }) {
  const wanted = { verdict: params.get("verdict") || "", route: params.get("route") || "" };
  let ended = new AbortController(), paused = false, timer = null, dropped = 0, gone = false;
  const body = el("tbody");
  const columns = ["Time", "Verdict", "Route", "Tenant", "Status", "Took", "Backend", "Why", "Request"];
  const numbers = new Set(["Took", "Status"]);
  const frame = el("div", { class: "table tail", tabindex: "0", role: "region", "aria-label": "Decisions, the latest first" },
    el("table", { "aria-label": "Decisions" }, el("thead", {}, el("tr", {}, columns.map((c) => el("th", { scope: "col", class: numbers.has(c) ? "n" : c === "Why" ? "wide" : null }, c)))), body));
  const nothing = el("p", { class: "empty" }, "Waiting for a request.");
  const pause = el("button", { type: "button", "aria-pressed": "false", on: { click: () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    announce(paused ? "Paused" : "Going on");
    paused ? ended.abort() : begin();
  } } }, "Pause");
  const verdict = el("select", { on: { change: () => { wanted.verdict = verdict.value; again(); } } }, el("option", { value: "" }, "all"), VERDICTS.map((v) => el("option", { value: v, selected: v === wanted.verdict }, v)));
  const route = el("input", { type: "search", value: wanted.route, placeholder: "all", on: { change: () => { wanted.route = route.value.trim(); again(); } } });
  const box = card("Decisions", { span: 12, note: "while this page is open; the last 200 are kept here", actions: pause, id: "decisions" }, nothing, frame);
  root.append(el("div", { class: "bar" }, el("div", { class: "form" }, el("label", { class: "field" }, "Verdict", verdict), el("label", { class: "field" }, "Route", route))), el("div", { class: "grid" }, box));

  function again() { remember(wanted); body.replaceChildren(); nothing.hidden = false; ended.abort(); if (!paused) begin(); }

  async function begin() {
    const mine = ended = new AbortController();
    clearTimeout(timer);
    const query = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    try {
      await events(`/admin/decisions${query.size ? `?${query}` : ""}`, (name, told) => {
        if (name === "open") recovered(root);
        if (name === "decision") add(told);
        if (name === "dropped") { dropped += told; box.note(`${count(dropped)} came too fast to be shown`); }
      }, mine.signal);
    } catch (error) {
      if (mine.signal.aborted) return;
      if (error.status !== undefined) fail(error);
    }
    if (!mine.signal.aborted && !gone) timer = setTimeout(begin, AGAIN_MS);
  }

  function add(d) {
    nothing.hidden = true;
    const judged = d.judged ? `similarity ${figure(d.judged.similarity)}, p ${figure(d.judged.probability)}` : d.similarity !== undefined ? `similarity ${figure(d.similarity)}` : "";
    const why = [d.reason, d.note, d.complexity !== undefined && `complexity ${figure(d.complexity)}`, judged].filter(Boolean).join(", ");
    const timing = Object.entries(d.timing_ms || {}).map(([stage, t]) => `${stage} ${latency(t)}`).join(", ");
    const verdictCell = el("td", { class: "swatch", vars: { key: `var(--${VERDICTS.includes(d.verdict) ? d.verdict : "bypass"})` } }, d.verdict || "–");
    body.prepend(el("tr", {}, el("th", { scope: "row" }, clock(d.time, true)), verdictCell, el("td", {}, d.route || "–"), el("td", { class: "mono" }, d.tenant || "–"),
      el("td", { class: d.status >= 400 ? "n bad" : "n" }, String(d.status)), el("td", { class: "n", title: timing }, latency(d.ms)), el("td", {}, d.backend || "–"), el("td", { class: "wrap" }, why || "–"), el("td", { class: "mono quiet" }, d.id)));
    while (body.rows.length > KEPT) body.deleteRow(-1);
  }

  begin();
  return { unmount() { gone = true; ended.abort(); clearTimeout(timer); } };
}
