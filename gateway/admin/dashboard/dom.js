/* Elements from data. Text only ever becomes a text node: the policy of the page forbids everything else. */

export const $ = (id) => document.getElementById(id);

/* el("p", {class: "quiet", on: {click}}, "text", node, ...); null and false are left out. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "vars") for (const [key, v] of Object.entries(value)) node.style.setProperty("--" + key, v);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const name in attributes) node.setAttribute(name, attributes[name]);
  node.append(...children);
  return node;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
  return node;
}

/* Removes the message of `fail` (app.js) at the top of `where`. */
export const recovered = (where) => where.querySelector(":scope > .failure")?.remove();

/* Announces a text to screen readers, once and politely. */
export function announce(text) {
  const place = $("said");
  place.textContent = "";
  setTimeout(() => { place.textContent = text; }, 30);
}

export function mark(node, text, level) {
  say(node, text);
  node.className = "state " + level;
  return node;
}

export const state = (text, level) => mark(el("span"), text, level);

/* Rows are changed in place, so that the focus and a selection survive an update. A cell is a text, or
   {text, name, key}, or {node, id}: a node is replaced when its id changes. */
export function fill(body, items) {
  items.forEach((cells, r) => {
    const row = body.rows[r] || body.insertRow();
    row.className = cells.quiet ? "quiet" : "";
    cells.forEach((cell, c) => {
      const given = cell !== null && typeof cell === "object" ? cell : { text: String(cell ?? "–") };
      let at = row.cells[c];
      if (!at) {
        at = document.createElement(given.head ? "th" : "td");
        if (given.head) at.scope = "row";
        row.append(at);
      }
      const name = given.name || "";
      if (at.className !== name) at.className = name;
      if (given.key) at.style.setProperty("--key", `var(--${given.key})`);
      if (given.node) {
        if (at.dataset.id !== String(given.id)) { at.replaceChildren(given.node()); at.dataset.id = given.id; }
      } else {
        delete at.dataset.id;
        say(at, given.text);
      }
    });
    while (row.cells.length > cells.length) row.deleteCell(-1);
  });
  while (body.rows.length > items.length) body.deleteRow(-1);
}

export const head = (text, key) => ({ text: String(text), head: true, ...(key && { key, name: "swatch" }) });
export const num = (text) => ({ text: String(text), name: "n" });

/* columns: ["Name", {title: "Count", n: true}, ...]. An empty table is replaced by a sentence. */
export function table(label, columns, empty) {
  const titles = columns.map((column) => (typeof column === "string" ? { title: column } : column));
  const body = el("tbody");
  const node = el("table", { "aria-label": label }, el("thead", {}, el("tr", {}, titles.map((column) =>
    el("th", { scope: "col", class: [column.n && "n", column.wide && "wide"].filter(Boolean).join(" ") || null }, column.title),
  ))), body);
  const nothing = el("p", { class: "empty", hidden: true }, empty || "Nothing yet.");
  const frame = el("div", { class: "table" }, node, nothing);
  new ResizeObserver(() => { // makes a scrollable part reachable by keyboard
    if (frame.scrollWidth > frame.clientWidth + 1) frame.tabIndex = 0;
    else frame.removeAttribute("tabindex");
  }).observe(frame);
  return {
    node: frame,
    update(items) {
      fill(body, items);
      node.hidden = !items.length;
      nothing.hidden = items.length > 0;
    },
  };
}

export function card(title, { note, span = 4, id, actions } = {}, ...children) {
  const label = `card-${id || title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}`;
  const small = el("small", {}, note || "");
  const node = el("section", { class: `card span-${span}`, "aria-labelledby": label, id: id || null },
    el("div", { class: "card-head" }, el("h2", { id: label }, title), small, actions || null), ...children);
  return Object.assign(node, { note: (text) => say(small, text) });
}

/* A group of buttons with one chosen. */
export function choice(label, options, chosen, onchange) {
  const name = "choice-" + label.toLowerCase().replace(/[^a-z0-9]+/g, "-");
  return el("fieldset", { class: "choice" }, el("legend", { class: "hidden" }, label), options.map(([value, text]) =>
    el("label", {}, el("input", { type: "radio", name, value, checked: value === chosen, on: { change: () => onchange(value) } }), el("span", {}, text)),
  ));
}

/* Asks before an action that cannot be undone. Resolves to true if it is confirmed. */
export function confirmed(title, content, yes) {
  return new Promise((resolve) => {
    const dialog = el("dialog", { "aria-labelledby": "dialog-title" },
      el("h2", { id: "dialog-title" }, title), ...content,
      el("div", { class: "buttons" },
        el("button", { type: "button", autofocus: true, on: { click: () => dialog.close("no") } }, "Cancel"),
        el("button", { type: "button", class: "danger", on: { click: () => dialog.close("yes") } }, yes)));
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
