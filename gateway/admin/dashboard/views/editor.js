/* The editor of one policy file: it shows faults by line, and the difference from the policy in force, and applies the file. */

import { isForbidden, isUnauthorized, post } from "../api.js";
import { announce, confirmed, el, mark, recovered } from "../dom.js";
import { plural } from "../format.js";

const WAIT_MS = 350;

/* A unified diff. Colours repeat the signs. */
export function diffed(text) {
  const kind = (line) => (/^(\+\+\+|---|@@)/.test(line) ? "at" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "");
  return el("pre", { class: "diff", tabindex: "0", "aria-label": "Difference" }, text.split("\n").map((line) => el("span", { class: kind(line) || null }, `${line}\n`)));
}

export function editing({ fail, signal, editable, etag, applied }) {
  let file = "", original = "", timer = null, asking = null, faults = [];
  const drafts = new Map(); // drafts of files
  const gutter = el("div", { class: "gutter", "aria-hidden": "true" });
  const area = el("textarea", { class: "code", spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off", "aria-label": "Policy file", "aria-describedby": "editor-verdict",
    on: { input: () => { number(); later(); }, scroll: () => { gutter.scrollTop = area.scrollTop; } } });
  const verdict = el("p", { id: "editor-verdict", role: "status", class: "state idle" }, "not checked yet");
  const list = el("ul", { class: "faults", "aria-label": "Faults" });
  const change = el("div", { id: "editor-diff" });
  const comment = el("input", { type: "text", maxlength: 500, placeholder: "why, for the history", size: 34 });
  const apply = el("button", { type: "button", class: "primary", disabled: true, on: { click: put } }, "Apply");
  const revert = el("button", { type: "button", disabled: true, on: { click: () => { area.value = original; applied(); } } }, "Discard");
  const bar = el("div", { class: "form" }, apply, revert, el("label", { class: "field" }, "Comment", comment));
  const node = el("div", { class: "editing" }, el("div", { class: "editor" }, gutter, area), el("div", { class: "beside" }, verdict, list, change), bar);

  function number() {
    const lines = area.value.split("\n").length, bad = new Set(faults.map((fault) => fault.line));
    while (gutter.children.length > lines) gutter.lastChild.remove();
    while (gutter.children.length < lines) gutter.append(el("span", {}, String(gutter.children.length + 1)));
    [...gutter.children].forEach((line, i) => { line.className = bad.has(i + 1) ? "bad" : ""; });
    gutter.scrollTop = area.scrollTop;
  }

  function later() {
    clearTimeout(timer);
    revert.disabled = area.value === original;
    apply.disabled = true;
    timer = setTimeout(check, WAIT_MS);
  }

  async function check() {
    asking?.abort();
    const mine = asking = new AbortController();
    try {
      const found = await post(`/admin/policy/validate?file=${encodeURIComponent(file)}`, area.value, { signal: AbortSignal.any([mine.signal, signal]) });
      tell([], found);
    } catch (error) {
      if (mine.signal.aborted || signal.aborted) return;
      if (error.status === 422 && error.body?.faults) tell(error.body.faults, null);
      else if (isUnauthorized(error) || isForbidden(error)) fail(error);
      else mark(verdict, error.message, "bad");
    }
  }

  function tell(found, staged) {
    const here = (fault) => fault.file.split("/").pop() === file;
    faults = found.filter(here);
    number();
    area.setAttribute("aria-invalid", String(found.length > 0));
    const changed = area.value !== original;
    if (found.length) mark(verdict, `${plural(found.length, "fault", "faults")}: the policy in force stays`, "bad");
    else mark(verdict, changed ? `no faults; it would be ${staged.hash}` : "no faults; as it is in force", "good");
    list.replaceChildren(...found.map((fault) => el("li", {}, here(fault)
      ? el("button", { type: "button", class: "plain", on: { click: () => go(fault.line) } }, `line ${fault.line}`)
      : el("span", { class: "mono" }, `${fault.file.split("/").pop()}:${fault.line}`), " ", el("code", {}, fault.path), ` ${fault.message}`)));
    change.replaceChildren(...(staged && staged.diff ? [diffed(staged.diff)] : []),
      ...(staged?.warnings.length && changed ? [el("ul", { class: "notes", "aria-label": "Warnings of the change" }, staged.warnings.map((w) => el("li", {}, `${w.file.split("/").pop()}:${w.line}: ${w.path}: ${w.message}`)))] : []));
    apply.disabled = !changed || found.length > 0 || !editable();
    if (changed && !found.length && !editable()) mark(verdict, "no faults; Apply is not for this role, or the gateway has no policy files", "warn");
  }

  function go(line) {
    const lines = area.value.split("\n"), from = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(from, from + (lines[line - 1] ?? "").length);
    area.scrollTop = Math.max(0, (line - 6) * parseFloat(getComputedStyle(area).lineHeight));
  }

  async function put() {
    const content = [el("p", {}, `${file} will be written and in force for all requests from then on. You can roll it back.`), ...[...change.children].map((each) => each.cloneNode(true))];
    if (!(await confirmed("Put this policy in force?", content, "Apply"))) { apply.focus(); return; }
    recovered(node);
    try {
      // A header has bytes: those of the text in UTF-8.
      const note = String.fromCharCode(...new TextEncoder().encode(comment.value.trim()));
      const done = await post(`/admin/policy?file=${encodeURIComponent(file)}`, area.value, { signal, headers: { "If-Match": `"${etag()}"`, "x-nearhit-author": "dashboard", ...(note && { "x-nearhit-comment": note }) } });
      comment.value = "";
      announce(`Policy ${done.hash} is in force`);
      await applied();
    } catch (error) {
      if (error.status === 422 && error.body?.faults) tell(error.body.faults, null);
      else fail(error, node);
    }
  }

  /* A draft stays when another policy comes into force. */
  function open(name, content) {
    if (name === file) {
      if (!dirty()) area.value = content;
    } else {
      if (dirty()) drafts.set(file, area.value); else drafts.delete(file);
      area.value = drafts.get(name) ?? content;
    }
    file = name;
    original = content;
    area.setAttribute("aria-label", `Policy file ${name}`);
    revert.disabled = area.value === original;
    faults = [];
    number();
    check();
  }

  const dirty = () => area.value !== original;

  return { node, dirty, content: () => area.value, open, end() { clearTimeout(timer); asking?.abort(); } };
}
