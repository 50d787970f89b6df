/* Stored answers: search, details, explanation and removal. */

import { get, post } from "../api.js";
import { announce, card, confirmed, el, head, num, recovered, table } from "../dom.js";
import { bytes, count, dollars, duration, latency, plural } from "../format.js";
import { explaining } from "./explain.js";

export const title = "Entries";
const FIELDS = [["tag", "Tag", "doc-17"], ["route", "Route", "default"], ["model", "Model", "gpt-4o"], ["tenant", "Tenant", "acme, a3f1…"], ["backend", "Backend", "light"], ["older_than", "Older than", "1d"], ["like", "Like this question", "words, compared by meaning"]];
const FOUND = 50;
const noted = (sentence, notes = []) => [sentence, ...notes.map((note) => `Note: ${note}.`)].join(" ");

export function mount(root, { params, may, fail, remember }) {
  const ended = new AbortController();
  const inputs = Object.fromEntries(FIELDS.map(([name, label, hint]) => [name, el("input", { type: "search", name, value: params.get(name) || "", placeholder: hint, autocomplete: "off", size: 11 })]));
  let counted = null; // the conditions that were counted, as they were sent
  const results = table("Entries", [{ title: "Question", wide: true }, "Route", "Model", "Tenant", "Tags", { title: "Age", n: true }, "Entry"], "No stored answer meets all of these.");
  const box = card("Stored answers", { span: 12, id: "found" }, results.node);
  const entry = el("div", { class: "span-12", id: "entry", hidden: true });
  const said = el("p", { class: "empty", role: "status", id: "purge-said" }, "Counting changes nothing. A removed answer is never served again.");
  const remove = el("button", { type: "button", class: "danger", disabled: true, on: { click: purge } }, "Remove");
  const reckon = el("button", { type: "button", on: { click: dryRun } }, "Count what would go");
  const everything = el("input", { type: "checkbox", id: "all", on: { change: stale } });
  const form = el("form", { class: "form", role: "search", "aria-label": "Stored answers", on: { submit: (event) => { event.preventDefault(); search(); }, input: stale } },
    FIELDS.map(([name, label]) => el("label", { class: name === "like" ? "field grow" : "field" }, label, inputs[name])), el("button", { type: "submit", class: "primary" }, "Search"));
  const removal = card("Remove", { span: 12, note: "what meets all of the conditions above", id: "purge" },
    el("div", { class: "form" }, reckon, remove, el("label", { for: "all", class: "quiet" }, everything, " everything, whatever the conditions")), said);
  const explain = explaining({ fail });
  root.append(el("div", { class: "grid" }, card("Search", { span: 12, id: "search" }, form), box, entry, may("operate") && removal, explain.node));

  const given = () => Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]).filter(([, value]) => value));

  function conditions() {
    if (everything.checked) return { all: true };
    const { tag, ...rest } = given();
    return { ...rest, ...(tag && { tags: tag.split(/\s*,\s*/) }) };
  }

  /* The conditions differ from those that were counted, so nothing can be removed yet. */
  function stale() {
    counted = null;
    remove.disabled = true;
    remove.textContent = "Remove";
  }

  async function search() {
    remember(given());
    recovered(box);
    const wanted = given();
    try {
      // Only a purge searches by meaning and by age, so this is a dry run of one.
      const found = wanted.like || wanted.older_than
        ? (await post("/admin/cache/purge", { ...conditions(), dry_run: true }, { signal: ended.signal }))
        : await get(`/admin/cache/entries?${new URLSearchParams({ limit: FOUND, ...wanted })}`, { signal: ended.signal });
      show(found.entries || found.samples, found.matched);
    } catch (error) { fail(error, box); }
  }

  function show(entries, matched) {
    box.note(matched === undefined ? (entries.length === FOUND ? `${FOUND} of them, in no order` : plural(entries.length, "entry", "entries")) : `${count(matched)}, of which ${count(entries.length)} are shown`);
    results.update(entries.map((e) => [{ text: e.question ?? "no text", head: true, name: e.question === null ? "clip quiet" : "clip" }, e.route, e.model, { text: e.tenant, name: "mono" }, e.tags.join(", ") || "–", num(duration(e.age_s)),
      { id: e.fingerprint, node: () => el("button", { type: "button", class: "plain mono", "aria-label": `Look at ${e.fingerprint.slice(0, 12)}`, on: { click: () => look(e.fingerprint) } }, e.fingerprint.slice(0, 12)) }]));
    announce(`${plural(entries.length, "entry", "entries")} shown`);
  }

  async function look(fingerprint) {
    remember({ ...given(), fingerprint });
    entry.hidden = false;
    try {
      const e = await get(`/admin/cache/entries/${encodeURIComponent(fingerprint)}`, { signal: ended.signal });
      entry.replaceChildren(inspected(e));
      entry.querySelector("h2").focus();
    } catch (error) { entry.replaceChildren(); fail(error, entry); }
  }

  function inspected(e) {
    const facts = [["Fingerprint", e.fingerprint], ["Scope", e.scope], ["Route", e.route], ["Model", e.model], ["Backend", e.backend], ["Tenant", e.tenant], ["Tags", e.tags.join(", ") || "none"], ["Dialect", `${e.dialect}, ${e.operation}${e.streamed ? ", streamed" : ""}`],
      ["Age", duration(e.age_s)], ["Expires in", duration(e.expires_in_s)], ["Size", bytes(e.bytes)], ["Tokens", `${count(e.input_tokens)} in, ${count(e.output_tokens)} out`], ["Took the backend", latency(1000 * e.upstream_s)], ["Cost", dollars(e.cost_dollars)], ["Brought by an import", e.imported ? "yes" : "no"]];
    const close = el("button", { type: "button", on: { click: () => { entry.hidden = true; remember(given()); } } }, "Close");
    const drop = may("operate") && el("button", { type: "button", class: "danger", on: { click: () => removeOne(e) } }, "Remove this answer");
    const texts = e.prompts
      ? [["Question", e.question], ["Answer", e.answer]].flatMap(([name, text]) => [el("h3", {}, name), el("pre", { class: "text", tabindex: "0", "aria-label": name }, text ?? "no text")])
      : [el("p", { class: "empty" }, `The policy does not allow prompts of route ${e.route} to be shown (record: {prompts: on}).`)];
    const node = card(`Entry ${e.fingerprint.slice(0, 12)}`, { span: 12, id: "inspected", actions: el("div", { class: "form" }, e.question && el("button", { type: "button", on: { click: () => explain.about(e.question, e.route) } }, "Explain a question against it"), drop, close) },
      el("dl", { class: "facts" }, facts.map(([name, text]) => el("div", {}, el("dt", {}, name), el("dd", {}, text)))), ...texts);
    node.querySelector("h2").tabIndex = -1;
    return node;
  }

  async function dryRun() {
    const wanted = conditions();
    recovered(removal);
    try {
      const found = await post("/admin/cache/purge", { ...wanted, dry_run: true }, { signal: ended.signal });
      counted = JSON.stringify(wanted);
      said.textContent = noted(found.matched ? `${plural(found.matched, "answer", "answers")} would go.` : "Nothing meets all of these.", found.notes);
      remove.disabled = !found.matched;
      remove.textContent = found.matched ? `Remove ${plural(found.matched, "answer", "answers")}` : "Remove";
      show(found.samples, found.matched);
    } catch (error) { fail(error, removal); }
  }

  async function purge() {
    const wanted = conditions();
    if (JSON.stringify(wanted) !== counted) { stale(); return; }
    const list = Object.entries(wanted).map(([name, value]) => el("li", {}, `${name}: ${value}`));
    if (!(await confirmed(`${remove.textContent}?`, [el("p", {}, "No gateway on this store will serve them again. This cannot be undone."), el("ul", {}, list)], "Remove them"))) { reckon.focus(); return; }
    await done(wanted);
    stale();
    await search();
  }

  async function removeOne(e) {
    if (!(await confirmed("Remove this answer?", [el("p", {}, e.question ?? e.fingerprint)], "Remove it"))) return;
    await done({ fingerprint: e.fingerprint });
    entry.hidden = true;
    await search();
  }

  async function done(wanted) {
    try {
      const outcome = await post("/admin/cache/purge", wanted, { signal: ended.signal, patience: 120000 });
      said.textContent = noted(`${plural(outcome.removed, "answer was", "answers were")} removed${outcome.durable ? ", and the store has it on disk" : ""}.`, outcome.notes);
    } catch (error) { fail(error, removal); }
  }

  search();
  if (params.get("fingerprint")) look(params.get("fingerprint"));
  return { unmount() { ended.abort(); } };
}
