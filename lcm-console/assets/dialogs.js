// Dialogs, and messages about the result of an action.

import { button, field, h } from "./dom.js";

/** Shows a message for a few seconds. */
export function toast(message, kind = "ok") {
  const element = h("div.toast", { class: kind }, message);
  document.getElementById("toasts").append(element);
  setTimeout(() => element.remove(), kind === "bad" ? 9000 : 4500);
}

/** Runs an action and reports its result. Returns its value, or undefined after a failure. */
export async function attempt(action, done) {
  try {
    const value = await action();
    if (done) toast(typeof done === "function" ? done(value) : done);
    return value ?? true;
  } catch (error) {
    toast(error.message, "bad");
    return undefined;
  }
}

function show(dialog) {
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.showModal();
}

/** Asks a question with fields. Returns their values, or null if it is canceled. */
export function ask({ title, text, fields = [], action = "OK", danger = false }) {
  return new Promise((resolve) => {
    const controls = fields.map((one) => {
      const control = one.options
        ? h("select", { name: one.name }, one.options.map((option) => h("option", { value: option[0] ?? option }, option[1] ?? option)))
        : h(one.lines ? "textarea" : "input", { name: one.name, type: one.lines ? null : one.type ?? "text", required: one.required, rows: one.lines, min: one.min, max: one.max, step: one.step, autocomplete: "off", spellcheck: "false" });
      if (one.value !== undefined) control.value = one.value;
      return field(one.label, control);
    });
    let result = null;
    const form = h("form", {
      method: "dialog",
      onsubmit: (event) => {
        event.preventDefault();
        result = Object.fromEntries([...new FormData(form)]);
        dialog.close();
      },
    },
    h("h2", null, title), text && h("p", null, text), controls,
    h("div.actions", null,
      button("Cancel", () => dialog.close()),
      h("button", { type: "submit", class: danger ? "danger" : "primary", autofocus: fields.length === 0 }, action)));
    const dialog = h("dialog", { "aria-label": title, onclose: () => resolve(result) }, form);
    show(dialog);
  });
}

/** Asks for a confirmation. Returns whether it was given. */
export async function confirm(title, text, action, danger = false) {
  return await ask({ title, text, action, danger }) !== null;
}

/** Asks for the reason and the author of an operation, for the audit. Returns them, or null if it is canceled. */
export async function askOperation({ title, text, action, danger }) {
  const values = await ask({ title, text, fields: [{ name: "reason", label: "Reason, for the audit", value: "", required: true }, { name: "requested_by", label: "Requested by", value: sessionStorage.getItem("lcm-name") ?? "console", required: true }], action, danger });
  if (values) sessionStorage.setItem("lcm-name", values.requested_by);
  return values;
}

/** Shows a value as JSON, to read and to copy. */
export function showText(title, value) {
  const area = h("pre.code", { tabIndex: 0 }, value);
  const close = button("Close", () => dialog.close(), { autofocus: true });
  const dialog = h("dialog.wide", { "aria-label": title }, h("h2", null, title), area,
    h("div.actions", null, button("Copy", () => copy(value)), close));
  show(dialog);
}

/** Copies a text. A page over plain HTTP from another host has no clipboard, but may copy a selection. */
export async function copy(value) {
  try {
    if (navigator.clipboard) await navigator.clipboard.writeText(value);
    else copySelection(value);
    toast("Copied");
  } catch {
    toast("The browser does not allow copying here; select the text instead", "bad");
  }
}

function copySelection(value) {
  const area = h("textarea", { "aria-hidden": "true", tabIndex: -1, value, class: "unseen" });
  const before = document.activeElement;
  // Below a modal dialog nothing can be selected.
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  before?.focus({ preventScroll: true });
  if (!isCopied) throw new Error("the browser refuses to copy");
}
