/* Calls to the admin port. A token stays in this tab (sessionStorage), is sent in a header, and is never in a URL. */

const KEY = "nearhit.token";
const TIMEOUT_MS = 15000;
let token = null;
try { token = sessionStorage.getItem(KEY); } catch { /* it holds until the page is left */ }

export class Failure extends Error {
  constructor(status, message, body) { super(message); this.status = status; this.body = body; }
}
export const isUnauthorized = (error) => error instanceof Failure && error.status === 401;
export const isForbidden = (error) => error instanceof Failure && error.status === 403;

export const hasToken = () => token !== null;
export function keepToken(value) {
  token = value;
  try { value === null ? sessionStorage.removeItem(KEY) : sessionStorage.setItem(KEY, value); } catch { /* as above */ }
}

function encoded(text) { // a header has bytes: those of the text in UTF-8
  return String.fromCharCode(...new TextEncoder().encode(text));
}

export function ask(path, { headers, signal, ...options } = {}) {
  // Without credentials of its own, the browser opens no dialog.
  return fetch(path, { credentials: "omit", cache: "no-store", redirect: "error", ...options, signal,
    headers: { ...(token !== null && { Authorization: `Bearer ${encoded(token)}` }), ...headers } });
}

async function answered(path, options) {
  const timeout = AbortSignal.timeout(options.patience || TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  let response;
  try {
    response = await ask(path, { ...options, signal });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Failure(0, timeout.aborted ? "no answer in time" : "the gateway cannot be reached");
  }
  const text = await response.text();
  let body = null;
  try { body = text ? JSON.parse(text) : null; } catch { /* said below */ }
  if (!response.ok) throw new Failure(response.status, body?.error || `${path} answered with status ${response.status}`, body);
  if (body === null) throw new Failure(response.status, `${path} did not answer with JSON`);
  return { body, headers: response.headers };
}

export const get = async (path, options = {}) => (await answered(path, options)).body;
export const getWithHeaders = (path, options = {}) => answered(path, options);

export async function post(path, value, { headers, ...options } = {}) {
  const raw = typeof value === "string";
  const type = raw ? "application/yaml" : "application/json";
  return (await answered(path, { method: "POST", body: raw ? value : JSON.stringify(value), ...options,
    headers: { "Content-Type": type, ...headers } })).body;
}

/* Server-sent events by `fetch`, because EventSource cannot send the token. Ends with the stream. */
export async function events(path, onevent, signal) {
  const response = await ask(path, { signal, headers: { Accept: "text/event-stream" } });
  if (!response.ok) {
    let said = null;
    try { said = (await response.json()).error; } catch { /* said below */ }
    throw new Failure(response.status, said || `${path} answered with status ${response.status}`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  onevent("open", null);
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (held + value).split("\n\n");
    held = blocks.pop();
    for (const block of blocks) {
      let name = "message", data = "";
      for (const line of block.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) onevent(name, JSON.parse(data));
    }
  }
}
