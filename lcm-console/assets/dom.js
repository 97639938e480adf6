// Builds elements. Every value becomes text or an attribute; markup is never parsed.

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "tabIndex", "selected", "open", "autofocus"]);

/** Creates an element: `h("button.primary", {onclick: f, "aria-label": "Stop"}, "Stop")`. */
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length > 0) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.classList.add(...String(value).split(" ").filter(Boolean));
    else if (PROPERTIES.has(key)) element[key] = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replaces the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Sets the text of an element, without a change if it is the same. */
export function setText(element, text) {
  const value = text === undefined || text === null ? "" : String(text);
  if (element.textContent !== value) element.textContent = value;
}

/** A button with a text. */
export function button(text, onclick, attributes) {
  return h("button", { type: "button", onclick, ...attributes }, text);
}

/** A list of terms and values; values that are missing are left out. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false);
  return h("dl.facts", null, shown.map(([term, value]) => [h("dt", null, term), h("dd", null, value)]));
}

/** A box with a heading. */
export function card(title, ...children) {
  return h("section.card", { "aria-label": title }, h("h2", null, title), children);
}

/** A small box with a name, a value and a detail. */
export function tile([name, value, detail]) {
  return h("div.tile", { title: detail }, h("span.dim", null, name), h("b", null, value), h("span.dim.cut", null, detail));
}

/** A table from rows of cells. Returns a sentence if there are no rows. */
export function table(headings, rows, nothing, attributes) {
  if (rows.length === 0) return h("p.empty", null, nothing);
  return h("div.scroll", null, h("table", attributes,
    h("thead", null, h("tr", null, headings.map((heading) => h("th", { scope: "col" }, heading)))),
    h("tbody", null, rows)));
}

/** A control with its label. */
export function field(label, control) {
  // The name of a control is its label alone, without the texts of its options.
  const named = control.matches("input, select, textarea") ? control : control.querySelector("input, select, textarea");
  named?.setAttribute("aria-label", label);
  return h("label.field", null, h("span", null, label), control);
}

/** A select element from values or pairs of value and text. */
export function select(options, value, onchange, attributes) {
  const element = h("select", { onchange: onchange && ((event) => onchange(event.target.value)), ...attributes },
    options.map((option) => {
      const [key, text] = Array.isArray(option) ? option : [option, option];
      return h("option", { value: key }, text);
    }));
  if (value !== undefined) element.value = value;
  return element;
}
