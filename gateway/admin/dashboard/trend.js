/* The series of /admin/history in the form of the charts. Values are null if nothing is known. */

import { sum } from "./format.js";

const HITS = ["exact", "semantic", "stale"], LOOKED_UP = [...HITS, "coalesced", "miss"];
const PARTS = [1 / 6, 1 / 3, 1 / 2]; // share of the requested time; a gateway that has run for less gets a shorter chart

export class Trend {
  constructor(told) {
    const first = told.watched_s.findIndex((s) => s > 0), all = told.at.length;
    const part = PARTS.find((p) => first < 0 || all - first <= p * all - 1) || 1;
    const from = all - Math.round(part * all);
    const cut = (value) => (Array.isArray(value) ? value.slice(from)
      : value && typeof value === "object" ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, cut(v)])) : value);
    Object.assign(this, cut(told));
    this.step = told.step_s;
    this.now = told.now;
  }

  get length() { return this.at.length * this.step; }

  /* Seconds of each slot that were watched: the last slot is not over, and several gateways add up. */
  seconds(i) { return Math.max(1, Math.min(this.step, this.watched_s[i], this.now - this.at[i] + 1)); }

  /* A slot that has just begun has no reliable rate. It is left out, unless it is the only one. */
  perSecond(values) {
    const enough = this.watched_s.map((s) => s >= this.step / 10), any = enough.some(Boolean);
    return values.map((v, i) => (v === null || (any && !enough[i]) ? null : v / this.seconds(i)));
  }

  recent(n) { const all = sum(this.at.map((_, i) => (this.watched_s[i] > 0 ? this.seconds(i) : 0))); return all ? n / all : null; }

  /* Hits per lookup. A request that was refused before it met a route counts as a miss, but had no lookup. */
  hitRates() {
    return this.at.map((_, i) => {
      const asked = sum(LOOKED_UP.map((v) => this.verdicts[v][i])) - this.unrouted[i];
      return asked ? sum(HITS.map((v) => this.verdicts[v][i])) / asked : null;
    });
  }

  hitRate() {
    const asked = sum(LOOKED_UP.map((v) => sum(this.verdicts[v]))) - sum(this.unrouted);
    return asked ? sum(HITS.map((v) => sum(this.verdicts[v]))) / asked : null;
  }

  latency(kind, name, quantile) { return this[kind][name]?.[quantile] || this.at.map(() => null); }

  stages() { return Object.keys(this.stage_ms); }

  /* {tier: {reason: total}} */
  reasons() {
    const found = {};
    for (const [name, values] of Object.entries(this.routed)) {
      const [tier, reason] = parted(name), total = sum(values);
      if (total) (found[tier] ||= {})[reason] = total;
    }
    return found;
  }

  /* From the lightest to the best; tiers in between have the names of their backends. */
  tiers() {
    const found = Object.keys(this.reasons()).filter((tier) => tier !== "none"), rank = (tier) => ({ light: 0, large: 2 }[tier] ?? 1);
    return found.sort((a, b) => rank(a) - rank(b));
  }

  /* The share of a tier among the requests that could go to any tier, per slot. */
  share(tier) {
    const at = (wanted, i) => sum(Object.entries(this.routed).filter(([name]) => parted(name)[0] === wanted).map(([, values]) => values[i]));
    const tiers = this.tiers();
    return this.at.map((_, i) => { const all = sum(tiers.map((each) => at(each, i))); return all ? at(tier, i) / all : null; });
  }
}

const parted = (name) => [name.slice(0, name.lastIndexOf(".")), name.slice(name.lastIndexOf(".") + 1)];
