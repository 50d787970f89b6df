/* The history of policies, with rollback. */

import { get, post } from "../api.js";
import { announce, card, confirmed, el, head, recovered, table } from "../dom.js";
import { moment } from "../format.js";
import { diffed } from "./editor.js";

const VIA = { file: "a file was saved", api: "applied", rollback: "taken back", fleet: "by another gateway" };

export function versions({ fail, signal, may, params, remember, changed, editable }) {
  const list = table("Versions", ["Version", "When", "By", "How", { title: "Comment", wide: true }, "Lines", "Policy", "Change", "Return"], "There is no history yet.");
  const shown = el("div", { id: "version-diff" });
  const node = card("History", { span: 12, note: "the last 100", id: "history" }, list.node, shown);

  async function load() {
    try {
      const told = await get("/admin/policy/history", { signal });
      recovered(node);
      list.update(told.versions.map((v) => {
        const now = v.hash === told.hash;
        return [head(v.version), moment(v.at), v.author, VIA[v.via] || v.via, { text: v.comment || "–", name: "wrap" }, `+${v.added} −${v.removed}`, { text: v.hash, name: "mono" },
          { id: `diff${v.version}`, node: () => el("button", { type: "button", "aria-label": `What version ${v.version} changed`, on: { click: () => show(v.version) } }, "Diff") },
          { id: `back${v.version}${now}`, node: () => (now ? el("span", { class: "state good" }, "in force") : el("button", { type: "button", disabled: !may("admin") || !editable(), "aria-label": `Roll back to version ${v.version}`, on: { click: () => back(v, told.hash) } }, "Roll back")) }];
      }));
    } catch (error) { fail(error, node); }
  }

  async function show(version) {
    remember({ version });
    try {
      const found = await get(`/admin/policy/history/${version}`, { signal });
      shown.replaceChildren(el("h3", { tabindex: "-1" }, `What version ${version} changed`), found.diff ? diffed(found.diff) : el("p", { class: "empty" }, "Nothing: it was the first version, or equal to the one before."));
      shown.querySelector("h3").focus();
    } catch (error) { fail(error, node); }
  }

  async function back(version, hash) {
    if (!(await confirmed(`Roll back to version ${version.version}?`, [el("p", {}, `Its files become a new version, in force at once. Files that it did not have are removed. It is from ${moment(version.at)}, by ${version.author}.`)], "Roll back"))) return;
    try {
      const done = await post("/admin/policy/rollback", { version: version.version }, { signal, headers: { "If-Match": `"${hash}"`, "x-nearhit-author": "dashboard" } });
      announce(`Policy ${done.hash} is in force again`);
      await changed();
    } catch (error) { fail(error, node); }
  }

  if (params.get("version")) show(params.get("version"));
  return { node, load };
}
