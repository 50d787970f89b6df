/* Explains why a stored answer would be served or not, and where a request would go. Neither sends a request. */

import { post } from "../api.js";
import { announce, card, choice, el, recovered } from "../dom.js";
import { figure, percent } from "../format.js";

const REQUEST = '{"model": "demo", "messages": [{"role": "user", "content": "What is a scope?"}]}';

export function explaining({ fail }) {
  let kind = "pair";
  const stored = el("textarea", { rows: 2 }), asked = el("textarea", { rows: 2 });
  const route = el("input", { type: "text", placeholder: "the last one", size: 14 });
  const request = el("textarea", { rows: 5, class: "mono", spellcheck: "false" });
  request.value = REQUEST;
  const pair = el("div", { class: "form two" }, el("label", { class: "field" }, "Stored question", stored), el("label", { class: "field" }, "Asked question", asked), el("label", { class: "field" }, "Route", route));
  const whole = el("div", { class: "form two", hidden: true }, el("label", { class: "field" }, "Request, as a client would send it", request));
  const answer = el("div", { role: "status" });
  const pick = choice("What to explain", [["pair", "Two questions"], ["request", "A request"]], kind, (value) => { kind = value; pair.hidden = value !== "pair"; whole.hidden = value === "pair"; answer.replaceChildren(); });
  const form = el("form", { on: { submit: (event) => { event.preventDefault(); explain(); } } }, pair, whole, el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Explain")));
  const node = card("Explain", { span: 12, note: "nothing is sent, and nothing is stored", id: "explain", actions: pick }, form, answer);
  const explain = async () => {
    recovered(node);
    try { kind === "pair" ? await ofPair() : await ofRequest(); } catch (error) { answer.replaceChildren(); fail(error, node); }
  };

  async function ofPair() {
    const found = await post("/admin/cache/explain", { stored: stored.value, asked: asked.value, ...(route.value.trim() && { route: route.value.trim() }) });
    const facts = [["Route", `${found.route}: ${found.promise}`], ["Similarity", figure(found.similarity, 4)], ["Score", `${figure(found.score, 4)}, ${figure(found.threshold, 4)} is asked for`], ["Chance to be right", percent(found.probability)], ["Veto", found.veto || "none"], ["Doubt", found.doubt || "none"], ["Verifier", found.verifier],
      ["What sets them apart", Object.entries(found.features).map(([name, value]) => `${name} ${Number(value).toPrecision(3)}`).join(", ") || "nothing"]];
    tell(found.served ? "Served" : "Not served", found.served ? "good" : "warn", found.why, facts);
  }

  async function ofRequest() {
    let value;
    try { value = JSON.parse(request.value); } catch (error) { throw new Error(`The request is not JSON: ${error.message}`); }
    const found = await post("/admin/explain", value);
    const shown = Object.entries(found).filter(([, each]) => each !== null && each !== "" && !(Array.isArray(each) && !each.length));
    tell(`To ${found.backend}`, "good", found.reason, shown.map(([name, each]) => [name.replaceAll("_", " "), typeof each === "object" ? JSON.stringify(each) : String(each)]));
  }

  function tell(word, level, why, facts) {
    answer.replaceChildren(el("div", { class: `alert ${level}` }, el("strong", {}, word), el("p", {}, why)),
      el("dl", { class: "facts" }, facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))));
    announce(`${word}: ${why}`);
  }

  return { node, about(question, name) { stored.value = question; route.value = name; pick.querySelector("input").click(); asked.focus(); } };
}
