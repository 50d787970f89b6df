/* The policy: editor with faults, simulation, application and rollback. */

import { getWithHeaders } from "../api.js";
import { card, el, say } from "../dom.js";
import { editing } from "./editor.js";
import { trying } from "./simulate.js";
import { versions } from "./versions.js";

export const title = "Policy";

export function mount(root, context) {
  const { params, may, fail, remember } = context;
  const ended = new AbortController();
  const names = el("select", { "aria-label": "File", on: { change: () => { editor.open(names.value, files[names.value]); remember({ file: names.value }); } } });
  const warnings = el("ul", { class: "notes", "aria-label": "Warnings" });
  let files = {}, hash = "", editable = true;
  const editor = editing({ fail, signal: ended.signal, editable: () => editable && may("admin"), etag: () => hash, applied: load });
  const meanwhile = el("div", { class: "alert warn", role: "alert", hidden: true }, el("strong", {}, "Another policy has come into force meanwhile"), el("p", {}, "Your draft is based on the former policy and cannot be applied. Copy your text, then discard the draft to see the new policy."));
  const trial = trying({ fail, signal: ended.signal, content: () => [names.value, editor.content()] });
  const past = versions({ fail, signal: ended.signal, may, params, remember, changed: load, editable: () => editable });
  const box = card("Rules", { span: 12, id: "policy", actions: names }, warnings, editor.node);
  box.insertBefore(meanwhile, editor.node);
  root.append(el("div", { class: "grid" }, box, trial.node, past.node));

  async function load() {
    try {
      const { body } = await getWithHeaders("/admin/policy", { signal: ended.signal });
      hash = body.hash;
      editable = body.editable;
      files = Object.fromEntries(body.files.map((file) => [file.name, file.content]));
      const chosen = names.value || params.get("file");
      names.replaceChildren(...Object.keys(files).map((name) => el("option", { value: name, selected: name === chosen }, name)));
      names.hidden = Object.keys(files).length < 2;
      box.note(`${Object.keys(files).length === 1 ? `${names.value}, ` : ""}in force: ${hash}${editable ? "" : "; this gateway runs without policy files, so nothing can be changed here"}`);
      warnings.replaceChildren(...[...body.warnings, ...body.unmet_budgets.map((doubt) => `${doubt.file}:${doubt.line}: ${doubt.path}: ${doubt.message}`)].map((text) => say(el("li"), text)));
      editor.open(names.value, files[names.value] ?? "");
      past.load();
    } catch (error) { fail(error); }
  }
  load();
  return {
    /* Shows a policy that has come into force, unless there is a draft for the former one. */
    update(stats) {
      const other = hash && stats.policy.hash !== hash;
      if (other && !editor.dirty()) load();
      meanwhile.hidden = !other || !editor.dirty();
    },
    unmount() { ended.abort(); editor.end(); },
  };
}
