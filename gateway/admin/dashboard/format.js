/* Numbers and times as text. */

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const pad = (n) => String(n).padStart(2, "0");
const known = (n) => n !== null && n !== undefined && !Number.isNaN(n);

export const count = (n) => (!known(n) ? "–" : n < 1e6 ? whole.format(Math.round(n)) : compact.format(n));
export const short = (n) => (!known(n) ? "–" : n < 1 && n % 1 ? String(Number(n.toFixed(2))) : n < 10 && n % 1 ? n.toFixed(1) : compact.format(n));
export const percent = (part, digits = 1) => (known(part) ? `${(100 * part).toFixed(digits)} %` : "–");
export const dollars = (n) => (known(n) ? "$" + (n < 10 && n > 0 ? n.toFixed(n < 0.1 ? 4 : 2) : whole.format(Math.round(n))) : "–");
export const ms = (n) => (!known(n) ? "–" : n < 10 ? n.toFixed(2) : n < 100 ? n.toFixed(1) : whole.format(Math.round(n)));
export const latency = (n) => (!known(n) ? "–" : n >= 1000 ? `${(n / 1000).toFixed(n < 10000 ? 1 : 0)} s` : `${n < 1 ? n.toFixed(2) : n < 10 ? n.toFixed(1) : Math.round(n)} ms`);
export const rate = (n) => (!known(n) ? "–" : n === 0 ? "0" : n < 0.1 ? n.toFixed(2) : n < 10 ? n.toFixed(1) : count(Math.round(n)));
export const figure = (n, digits = 2) => (known(n) ? n.toFixed(digits) : "–");
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;

export function bytes(n) {
  if (!known(n)) return "–";
  const step = n < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(n) / 10));
  return `${(n / 1024 ** step).toFixed(step && n / 1024 ** step < 100 ? 1 : 0)} ${["B", "KiB", "MiB", "GiB", "TiB"][step]}`;
}

const trimmed = (n) => n.toFixed(1).replace(/\.0$/, "");

export function duration(s) {
  if (!known(s)) return "–";
  if (s < 10 && s % 1) return `${s.toFixed(1)} s`;
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400 && s % 3600) return `${Math.round(s / 60)} min`;
  if (s < 172800 && s % 86400) return `${trimmed(s / 3600)} h`;
  return `${s < 864000 ? trimmed(s / 86400) : Math.round(s / 86400)} d`;
}

export function clock(at, seconds = false) {
  const date = new Date(1000 * at);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}${seconds ? `:${pad(date.getSeconds())}` : ""}`;
}

export function day(at) {
  return new Date(1000 * at).toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}

export const moment = (at) => `${day(at)} ${clock(at)}`;

export const sum = (values) => values.reduce((a, b) => a + (b || 0), 0);
