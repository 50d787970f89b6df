/* The limits, how much of each is left, and the API keys. */

import { get } from "../api.js";
import { card, el, head, num, recovered, table } from "../dom.js";
import { clock, count, moment, percent } from "../format.js";

export const title = "Tenants and limits";
const EVERY_MS = 3000;

export function mount(root, { params, may, fail, remember }) {
  const ended = new AbortController();
  let timer = null, again = null, seen = [];
  const wanted = { subject: params.get("subject") || "" };
  const limits = table("Limits", ["Route", "Per", "Subject", "Limit", { title: "As the policy says", wide: true }, { title: "Left", n: true }, { title: "Refused", n: true }, { title: "Last asked", n: true }],
    "No limit has been used lately. A policy sets them under limits; each appears here with its first request.");
  const filter = el("input", { type: "search", value: wanted.subject, placeholder: "a tenant, key or user", on: { input: () => { wanted.subject = filter.value.trim(); remember(wanted); draw(); } } });
  const box = card("Limits", { span: 12, id: "limits" }, limits.node);
  const keys = table("Keys", [{ title: "Name", wide: true }, "Tenant", "Role", "Models", "Limits", { title: "Made", n: true }, { title: "Expires", n: true }, "Ends in"], "No key is in force. nearhit keys create makes one.");
  const ring = card("Keys", { span: 12, note: "active keys; their texts cannot be shown", id: "keys" }, keys.node);
  root.append(el("div", { class: "bar" }, el("label", { class: "field" }, "Subject", filter)), el("div", { class: "grid" }, box, may("admin") && ring));

  function draw() {
    const shown = seen.filter((one) => one.subject.includes(wanted.subject));
    limits.update(shown.map((one) => Object.assign([head(one.route), one.per, { text: one.subject.length > 24 ? one.subject.slice(0, 12) : one.subject || "all", name: "mono" }, one.limit, one.said,
      num(one.limit === "large_share" ? percent(one.left) : one.limit === "cost" ? `$${one.left.toFixed(2)}` : count(Math.max(0, Math.round(one.left)))),
      { text: count(one.refused), name: one.refused ? "n bad" : "n" }, num(clock(one.at, true))], {})));
  }

  async function open() {
    try {
      const told = await get("/admin/keys", { signal: ended.signal });
      recovered(ring);
      keys.update(told.keys.map((key) => [head(key.name), key.tenant, key.role, key.models.join(", ") || "all", key.limits.map(written).join("; ") || "–",
        num(moment(key.created)), num(key.expires === null ? "never" : moment(key.expires)), { text: key.secrets.map((secret) => `…${secret.hint}`).join(", "), name: "mono" }]));
    } catch (error) {
      fail(error, ring);
      if (!ended.signal.aborted) again = setTimeout(open, EVERY_MS);
    }
  }

  async function load() {
    try {
      const told = await get("/admin/limits?top=1000", { signal: ended.signal });
      seen = told.limits;
      box.note(`${told.gateways === 1 ? "held by this gateway" : `held by ${count(told.gateways)} gateways together`}${told.waiting ? `; ${count(told.waiting)} corrections wait for the store` : ""}`);
      draw();
      recovered(root);
    } catch (error) { fail(error); }
    if (!ended.signal.aborted) timer = setTimeout(load, EVERY_MS);
  }
  load();
  if (may("admin")) open();
  return { unmount() { ended.abort(); clearTimeout(timer); clearTimeout(again); } };
}

/* {requests: "600/min"} -> "requests 600/min" */
const written = (rule) => Object.entries(rule).map(([name, value]) => `${name.replaceAll("_", " ")} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");
