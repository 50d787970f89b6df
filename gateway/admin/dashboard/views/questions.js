/* The stored answers with the most hits. Questions are shown if the policy allows it. */

import { get } from "../api.js";
import { card, el, head, num, recovered, table } from "../dom.js";
import { count, duration, short } from "../format.js";

export const title = "Top questions";
const EVERY_MS = 5000;

export function mount(root, { fail }) {
  const ended = new AbortController();
  let timer = null;
  const top = table("Top questions", [{ title: "Question", wide: true }, "Route", "Model", { title: "Hits", n: true }, { title: "Tokens saved", n: true }, { title: "Age", n: true }, "Entry"],
    "No stored answer has been hit yet since the gateway started.");
  const why = el("p", { class: "empty" });
  const box = card("Top questions", { span: 12, note: "by hits of this gateway since its start", id: "questions" }, top.node, why);
  root.append(el("div", { class: "grid" }, box));

  async function load() {
    try {
      const told = await get("/admin/cache/top?limit=50", { signal: ended.signal });
      top.update(told.entries.map((e) => [
        e.question === null ? { text: e.prompts ? "no text" : "hidden by the policy", name: "quiet clip", head: true } : { ...head(e.question), name: "clip" },
        e.route, e.model, num(count(e.hits)), num(short(e.hits * (e.input_tokens + e.output_tokens))), num(duration(e.age_s)),
        { id: e.fingerprint, node: () => el("a", { class: "mono", href: `#/entries?fingerprint=${e.fingerprint}`, "aria-label": `Entry ${e.fingerprint.slice(0, 12)}` }, e.fingerprint.slice(0, 12)) },
      ]));
      recovered(root);
      why.textContent = told.prompts_of.length
        ? `Questions of these routes may be shown: ${told.prompts_of.join(", ")}.`
        : "No route allows its prompts to be shown. To allow it, set record: {prompts: on} in the policy.";
    } catch (error) { fail(error); }
    if (!ended.signal.aborted) timer = setTimeout(load, EVERY_MS);
  }
  load();
  return { unmount() { ended.abort(); clearTimeout(timer); } };
}
