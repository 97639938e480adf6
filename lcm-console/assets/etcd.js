// Keys, leases and watchers of etcd, and its faults.

import { config, get, post } from "./api.js";
import { attempt, confirm, showText } from "./dialogs.js";
import { button, card, fill, h, setText, table } from "./dom.js";
import { count } from "./format.js";
import { now, subscribe } from "./store.js";

export const title = "etcd";

/** Shortest time between two reads, while keys change. */
const PAUSE = 800;
let query = "";

const FAULTS = [["lease-lost", "Lose all leases", true], ["watch-cut", "Cut the watches"], ["watch-stall", "Stall the watches"], ["watch-resume", "Resume the watches"], ["compact", "Compact"], ["unavailable", "Unavailable", true], ["available", "Available"]];

export function mount(root) {
  const summary = h("span.dim", { "aria-live": "polite" });
  const keys = h("div");
  const leases = h("div");
  const watchers = h("div");
  const search = h("input", { type: "search", placeholder: "Search keys and values", "aria-label": "Search keys", value: query, spellcheck: "false", oninput: () => { query = search.value; show(); } });
  fill(root, h("div.controls", null, h("h1", null, title), summary, h("span.grow"), search),
    h("div.controls", { role: "group", "aria-label": "Faults of etcd" }, FAULTS.map(([name, text, danger]) => button(text, async () => {
      if (danger && !await confirm(`${text}?`, "Every client of this etcd notices.", text, true)) return;
      await attempt(() => post(`${config.api}etcd/${name}`), `${text}: done`);
    }, { class: danger ? "danger" : "" }))),
    h("div.columns.wide-left", null, card("Keys", keys), h("div.column", null, card("Leases", leases), card("Watchers", watchers))));
  let value = null;
  let timer = 0;
  let due = 0;
  let isOver = false;

  async function load() {
    timer = 0;
    due = performance.now() + PAUSE;
    const read = await attempt(() => get(`${config.api}ui/etcd`));
    if (!read || isOver) return;
    value = { ...read, at: now(), read: performance.now() };
    show();
  }

  /** Seconds that a lease has left, on the clock that it follows. */
  function left(lease) {
    const passed = value.on_world_clock ? now() - value.at : performance.now() - value.read;
    return Math.max(0, Math.ceil(lease.seconds_left - passed / 1000));
  }

  function request() {
    if (!timer && !isOver) timer = setTimeout(load, Math.max(0, due - performance.now()));
  }

  function show() {
    if (!value) return;
    setText(summary, `revision ${value.revision}, ${count(value.count, "key")}${value.available ? "" : ", unavailable"}`);
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const found = value.keys.filter((one) => words.every((word) => `${one.key}\n${one.value}`.toLowerCase().includes(word)));
    fill(keys, table(["Key", "Value", "Revision", "Version", "Lease"], found.slice(0, 500).map((one) => h("tr", null,
      h("td.key", null, one.key), h("td.value", null, h("button.text", { type: "button", onclick: () => showText(one.key, one.value) }, one.value || "empty")),
      h("td.number", null, one.mod_revision), h("td.number", null, one.version), h("td", null, one.lease))),
    value.count === 0 ? "etcd is empty." : "No key matches."), found.length > 500 && h("p.dim", null, `${found.length - 500} more match; search to see them.`),
    value.count > value.keys.length && h("p.dim", null, `The first ${value.keys.length} of ${value.count} keys are read.`));
    fill(leases, table(["Lease", "Left", "Keys", ""], value.leases.map((one) => h("tr", null, h("td", null, one.id), h("td.number", null, h("span.left", null, `${left(one)} of ${one.granted_seconds} s`)), h("td.key", null, one.keys.join(", ")),
      h("td", null, button("Revoke", () => attempt(() => post(`${config.api}etcd/lease-lost`, { lease: one.id }), `Lease ${one.id} is gone`), { class: "small danger", "aria-label": `Revoke lease ${one.id}` })))), "No lease."));
    fill(watchers, table(["Watched", "Stream", "From revision"], value.watchers.map((one) => h("tr", null, h("td.key", null, one.range), h("td.number", null, one.stream), h("td.number", null, one.revision))), "Nothing is watched."));
  }

  function tick() {
    const shown = leases.querySelectorAll(".left");
    value?.leases.forEach((one, index) => { if (shown[index]) setText(shown[index], `${left(one)} of ${one.granted_seconds} s`); });
  }

  const stop = subscribe((parts) => { if (parts.has("etcd")) request(); });
  const ticking = setInterval(tick, 500);
  load();
  return { search, end() { isOver = true; stop(); clearTimeout(timer); clearInterval(ticking); } };
}
