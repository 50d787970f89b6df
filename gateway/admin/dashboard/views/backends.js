/* The backends, their state, and the sizes of the caches. */

import { card, el, head, num, say, state, table } from "../dom.js";
import { bytes, count, latency, percent, short, sum } from "../format.js";
import { breaker } from "../troubles.js";

export const title = "Backends";
const CACHES = { front: "front, in process", store: "store, shared", index: "index, of questions" };
const modelName = (fingerprint) => fingerprint.split("/").slice(0, 2).join(" ");

export function mount(root) {
  const tiles = el("dl", { class: "tiles" });
  const backends = table("Backends", ["Backend", { title: "Circuit breaker", wide: true }, { title: "In flight", n: true }, { title: "Places", n: true }, "Load", { title: "Queue", n: true }, { title: "Answered", n: true }, { title: "Failed", n: true }], "No backends.");
  const upstreams = table("Upstreams", ["Backend", "Address", { title: "State", wide: true }, { title: "In flight", n: true }, { title: "Latency", n: true }, { title: "Predicted, whole", n: true }, { title: "Predicted, first token", n: true }, "Models"], "No upstreams.");
  const caches = table("Caches", [{ title: "Cache", wide: true }, { title: "Entries", n: true }, { title: "Size", n: true }], "No caches.");
  const admissions = table("What became of answers", [{ title: "Outcome", wide: true }, { title: "Answers", n: true }, { title: "Share", n: true }], "No backend has answered yet.");
  const migration = el("p", { class: "empty", id: "migration", role: "status", hidden: true });
  const embedder = card("Caches", { span: 6, id: "caches" }, caches.node, migration);
  root.append(el("div", { class: "grid" }, tiles,
    card("Backends", { span: 12, id: "backends" }, backends.node),
    card("Upstreams", { span: 12, note: "predictions are for a call of medium size, with the confidence of the policy", id: "upstreams" }, upstreams.node),
    embedder, card("What became of answers", { span: 6, note: "since the start", id: "admissions" }, admissions.node)));

  function drawTiles(stats) {
    const all = Object.values(stats.backends), open = all.filter((b) => b.breaker !== "closed").length;
    const items = [
      ["Backends in service", `${all.length - open} of ${all.length}`, open ? "a breaker is not closed" : "every breaker is closed"],
      ["In flight", count(sum(all.map((b) => b.inflight))), `of ${count(sum(all.map((b) => b.limit)))} places`],
      ["Queued", count(sum(all.map((b) => b.queued))), "wait for a place"],
      ["Answers stored", count(stats.cache.entries.store ?? 0), `${bytes(stats.cache.bytes.store ?? 0)} in the store`],
      ["Store errors", count(stats.store_errors), "since the start"],
      ["Refused under load", count(stats.shed), "since the start"],
    ];
    items.forEach(([name, value, note], i) => {
      const tile = tiles.children[i] || tiles.appendChild(el("div", { class: "tile" }, el("dt"), el("dd", { class: "figure" }), el("dd")));
      [name, value, note].forEach((text, k) => say(tile.children[k], text));
    });
  }

  function drawMigration(stats) {
    const { left, done, skipped } = stats.migration, next = stats.embedder_to_come;
    migration.hidden = !(left + done + skipped) && !next;
    say(migration, next
      ? `Lookups go by this model until all is embedded anew for ${modelName(next)}: ${count(done)} done, ${count(left)} left, ${count(skipped)} skipped.`
      : `Embedded again for this model: ${count(done)} done, ${count(left)} left, ${count(skipped)} skipped.`);
    embedder.note(modelName(stats.embedder));
  }

  return {
    update(stats) {
      drawTiles(stats);
      backends.update(Object.entries(stats.backends).map(([name, b]) => {
        const calls = stats.backend_outcomes.filter((o) => o.backend === name), good = sum(calls.filter((o) => o.outcome.startsWith("2")).map((o) => o.count));
        return [head(name), stated(...breaker(b.breaker)), num(count(b.inflight)), num(count(b.limit)), meter(b.inflight / (b.limit || 1)), num(count(b.queued)), num(short(good)), num(short(sum(calls.map((o) => o.count)) - good))];
      }));
      upstreams.update(Object.entries(stats.backends).flatMap(([name, b]) => b.upstreams.map((u) =>
        [head(name), { text: u.address, name: "mono" }, stated(...breaker(u.state)), num(count(u.inflight)), num(latency(u.latency_ewma_ms)), num(latency(u.predicted_ms.whole)), num(latency(u.predicted_ms.first_token)),
          Object.entries(u.models).map(([model, is]) => `${model}: ${is}`).join(", ") || "–"])));
      caches.update(Object.keys(stats.cache.entries).sort().map((kind) => [head(CACHES[kind] || kind), num(count(stats.cache.entries[kind])), num(bytes(stats.cache.bytes[kind] ?? 0))]));
      const outcomes = Object.entries(stats.admissions).sort((a, b) => b[1] - a[1]), all = sum(outcomes.map(([, n]) => n));
      admissions.update(outcomes.map(([outcome, n]) => [head(outcome), num(count(n)), num(percent(n / all))]));
      drawMigration(stats);
    },
  };
}

const stated = (text, level) => ({ id: text + level, node: () => state(text, level) });

/* A bar for the fill level; the figures are next to it. */
function meter(part) {
  const full = Math.min(1, part);
  return { id: full.toFixed(3), name: "load", node: () => el("i", { class: "meter", "aria-hidden": "true", vars: { part: `${100 * full}%` } }) };
}
