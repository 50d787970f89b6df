/* The frame: user, navigation and alerts. A view is a module in views/ with a title and
   `mount(root, context)`; its result may have `update(stats)`, called with each report, and `unmount()`. */

import { get, hasToken, isForbidden, isUnauthorized, keepToken } from "./api.js";
import { $, announce, el, mark, recovered, say } from "./dom.js";
import { duration, plural } from "./format.js";
import { troubles } from "./troubles.js";
import * as backends from "./views/backends.js";
import * as entries from "./views/entries.js";
import * as light from "./views/light.js";
import * as live from "./views/live.js";
import * as overview from "./views/overview.js";
import * as policy from "./views/policy.js";
import * as questions from "./views/questions.js";
import * as spend from "./views/spend.js";
import * as tenants from "./views/tenants.js";

const VIEWS = { overview, spend, backends, light, tenants, questions, entries, policy, live };
const POLL_MS = 2000, PATIENCE_MS = 6000;
let shown = null; // the view that is mounted: {name, parts}
let stats = null, who = null, lost = 0, signed = false;

/* `#/entries?tag=doc-17` -> ["entries", URLSearchParams] */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = path.split("/")[0];
  return [name in VIEWS ? name : "overview", new URLSearchParams(query || "")];
}

/* Puts the state of the view into the address, without a new entry in the tab's history. */
function remember(name, values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
}

/* Without /admin/whoami the page offers every action, and the admin port decides. */
const ROLES = ["use", "operate", "admin"];
const may = (role) => !ROLES.includes(who?.role) || ROLES.indexOf(who.role) >= ROLES.indexOf(role);

function show({ focus = false } = {}) {
  if (!signed) return;
  const [name, params] = place();
  const view = VIEWS[name];
  shown?.parts?.unmount?.();
  const root = $("main");
  root.replaceChildren();
  say($("title"), view.title);
  for (const link of $("nav").querySelectorAll("a")) {
    if (link.dataset.view !== name) { link.removeAttribute("aria-current"); continue; }
    link.setAttribute("aria-current", "page");
    link.scrollIntoView({ block: "nearest", inline: "center" }); // a narrow window shows some of them
  }
  const context = { params, may, stats, fail: (error, where) => fail(error, where || root), remember: (values) => remember(name, values) };
  shown = { name, parts: view.mount(root, context) };
  if (stats) shown.parts?.update?.(stats);
  retitle();
  if (focus) { $("title").focus(); scrollTo(0, 0); announce(view.title); }
}

/* Shows a failed call: a sign-in, a missing role, or the gateway's own sentence. */
function fail(error, where) {
  if (error?.name === "AbortError") return;
  if (isUnauthorized(error)) { signIn(hasToken() ? "This token is wrong or no longer valid." : ""); return; }
  const box = el("div", { class: `failure alert ${isForbidden(error) ? "warn" : "bad"}`, role: "alert" },
    el("strong", {}, isForbidden(error) ? "Not for your role" : "That did not work"), el("p", {}, error.message));
  recovered(where);
  where.prepend(box);
}

function signIn(why) {
  signed = false;
  shown?.parts?.unmount?.();
  shown = null;
  say($("title"), "Sign in");
  document.title = "Sign in · nearhit";
  for (const id of ["states", "sign-out", "who"]) $(id).hidden = true;
  $("nav").hidden = true;
  $("alerts").replaceChildren();
  mark($("live"), "signed out", "idle");
  const field = el("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const form = el("form", { on: { submit: (event) => { event.preventDefault(); keepToken(field.value.trim()); begin(); } } },
    el("input", { type: "text", autocomplete: "username", value: "nearhit admin", hidden: true }), // for password managers
    el("label", { class: "field", for: "token" }, "Token of the admin port", field),
    el("button", { type: "submit", class: "primary" }, "Sign in"));
  const box = el("section", { class: "card login", "aria-label": "Sign in" },
    el("p", { class: "quiet" }, "This gateway's admin port requires a token (auth.admin_token_env). The token stays in this tab and is deleted when you close it."),
    why && el("div", { class: "alert bad", role: "alert" }, el("strong", {}, why)), form);
  $("main").replaceChildren(box);
  field.focus();
}

function retitle() {
  const faulty = stats?.policy.faults.length;
  const name = VIEWS[shown?.name]?.title || "nearhit";
  document.title = lost ? "No connection · nearhit" : `${faulty ? "Policy rejected · " : ""}${name} · nearhit`;
}

/* An alert keeps its element while it lasts, so that a screen reader says it once. */
function alerts(wanted) {
  const area = $("alerts");
  for (const old of [...area.children]) if (!wanted.some((w) => w.id === old.id)) old.remove();
  for (const { id, level, title, text, list } of wanted) {
    let box = $(id);
    if (!box) { box = el("div", { class: `alert ${level}`, id }, el("strong", {}, title), el("p"), el("ul")); area.append(box); }
    say(box.children[1], text);
    const lines = list || [], items = box.children[2];
    lines.forEach((line, i) => say(items.children[i] || items.appendChild(el("li")), line));
    while (items.children.length > lines.length) items.lastChild.remove();
    items.hidden = !lines.length;
  }
}

function frame() {
  const { hash, warnings, faults } = stats.policy;
  say($("policy-hash"), hash);
  if (faults.length) mark($("policy-state"), "change rejected", "bad");
  else if (warnings.length) mark($("policy-state"), plural(warnings.length, "warning", "warnings"), "warn");
  else mark($("policy-state"), "in force", "good");
  mark($("store-state"), ...({ closed: ["answering", "good"], half_open: ["recovering", "warn"] }[stats.store_breaker] || ["not answering", "bad"]));
  mark($("index-state"), ...(stats.index_ready ? ["ready", "good"] : ["filling", "warn"]));
  $("fleet").hidden = stats.gateways === 1;
  say($("gateways"), `${stats.gateways}, figures of all`);
  say($("uptime"), duration(stats.now - stats.started));
}

function connection(error) {
  lost = error ? lost + 1 : 0;
  document.body.classList.toggle("lost", lost > 0);
  if (error) mark($("live"), "connection lost", "bad");
  else mark($("live"), "live", "good");
  const gone = error ? [{ id: "alert-lost", level: "bad", title: "No connection to the gateway",
    text: `${error.message[0].toUpperCase()}${error.message.slice(1)}. The figures are old; the page tries again every ${POLL_MS / 1000} seconds.` }] : [];
  alerts(error ? gone : troubles(stats)); // the former alerts may no longer be true
  retitle();
}

async function poll() {
  if (!signed) return;
  if (!document.hidden) {
    try {
      stats = await get("/admin/stats", { patience: PATIENCE_MS });
      connection(null);
      frame();
      shown?.parts?.update?.(stats);
    } catch (error) {
      if (isUnauthorized(error)) { signIn("This token is no longer valid."); return; }
      connection(error);
    }
  }
  setTimeout(poll, POLL_MS);
}

async function begin() {
  // With a token, the second call waits for the first, so that a wrong token counts as one guess.
  const whoami = () => get("/admin/whoami").catch(() => null);
  const asked = hasToken() ? null : whoami();
  try {
    stats = await get("/admin/stats", { patience: PATIENCE_MS });
  } catch (error) {
    if (isUnauthorized(error)) { signIn(hasToken() ? "This is not the token." : ""); return; }
    if (error.status === 429) { signIn(error.message); return; }
    signed = true;
    $("nav").hidden = false;
    if (isForbidden(error)) {
      fail(error, $("main"));
      mark($("live"), "not for this role", "warn");
      $("sign-out").hidden = !hasToken();
      return;
    }
    connection(error);
    setTimeout(begin, POLL_MS);
    return;
  }
  who = await (asked || whoami());
  signed = true;
  $("nav").hidden = $("states").hidden = false;
  $("sign-out").hidden = !hasToken();
  $("who").hidden = !who?.name;
  if (who?.name) say($("who"), `${who.name}${who.role ? `, ${who.role}` : ""}`);
  frame();
  connection(null);
  show();
  setTimeout(poll, POLL_MS);
}

for (const [name, view] of Object.entries(VIEWS)) $("nav").append(el("li", {}, el("a", { href: `#/${name}`, "data-view": name }, view.title)));
addEventListener("hashchange", () => { if (location.hash.startsWith("#/") || !location.hash) show({ focus: true }); });
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
$("sign-out").addEventListener("click", () => { keepToken(null); signIn(""); });
begin();
