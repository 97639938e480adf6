// The fleet: a lane per worker over time, the record above the instance.

import { config } from "./api.js";
import { button, fill, h, select, setText, tile } from "./dom.js";
import { ago, chipClass, clockTime, count, duration, millis } from "./format.js";
import { List } from "./list.js";
import { color, STATUSES } from "./palette.js";
import { now, state, subscribe } from "./store.js";

export const title = "Fleet";

const MINUTE = 60_000;
const WINDOWS = [[5, "5 min"], [15, "15 min"], [60, "1 h"], [360, "6 h"], [1440, "24 h"]];
/** Settings of the view, kept while another view is shown. */
const view = { search: "", statuses: new Set(), window: 15, sort: "id", only: "" };

const isFake = () => config.server === "fake-cloud";

/** What one row shows, from the parts that the server sends. */
export function rowOf(worker) {
  const instance = worker.ec2_instance_id ? state.instances.get(worker.ec2_instance_id) : undefined;
  const past = !instance && worker.ec2_instance_id ? state.past.get(worker.ec2_instance_id) : undefined;
  return {
    id: worker.id,
    worker,
    status: worker.status ?? "unknown",
    instance: instance ?? past,
    instanceState: isFake() ? instance?.state ?? (worker.ec2_instance_id ? "gone" : "") : worker.instance_state ?? "",
  };
}

/** Whether a row needs a look: its states differ, or its reconcile fails. */
export function concern({ worker, status, instanceState }) {
  if (worker.retry_count > 0) return worker.reason?.sentence || `${worker.retry_count} failures in a row`;
  if (status === "failed" || status === "unknown") return `the record is ${status}`;
  if (instanceState === "gone" && status !== "terminated") return "the instance is gone";
  if (status === "running" && instanceState && instanceState !== "running") return `the instance is ${instanceState}`;
  if (status === "stopped" && instanceState && !["stopped", "gone"].includes(instanceState)) return `the instance is ${instanceState}`;
  return "";
}

function matches(row, search) {
  if (!search) return true;
  const { worker } = row;
  const words = [row.id, worker.name, worker.ec2_instance_id, worker.aws_region, worker.template_name, row.status, row.instanceState, worker.reason?.code, worker.reason?.sentence];
  const found = words.filter(Boolean).join("\n").toLowerCase();
  return search.toLowerCase().split(/\s+/).every((part) => found.includes(part));
}

const collator = new Intl.Collator("en", { numeric: true });
const SORTS = {
  id: (a, b) => collator.compare(a.id, b.id),
  status: (a, b) => STATUSES.indexOf(a.status) - STATUSES.indexOf(b.status) || collator.compare(a.id, b.id),
  changed: (a, b) => lastChange(b) - lastChange(a) || collator.compare(a.id, b.id),
  concern: (a, b) => (concern(b) ? 1 : 0) - (concern(a) ? 1 : 0) || collator.compare(a.id, b.id),
};

function lastChange(row) {
  const record = row.worker.statuses?.at(-1)?.[0] ?? 0;
  const instance = row.instance?.history?.at(-1)?.[0] ?? 0;
  return Math.max(record, instance, row.worker.at ?? 0);
}

export function mount(root) {
  const chips = h("div.chips", { role: "group", "aria-label": "Filter by status" });
  const summary = h("div.summary");
  const shown = h("span.dim", { "aria-live": "polite" });
  const search = h("input", {
    type: "search", placeholder: "Search: id, name, instance, region, status", "aria-label": "Search workers", value: view.search, spellcheck: "false",
    oninput: () => { view.search = search.value; refresh(); },
  });
  const axis = h("canvas.axis", { "aria-label": "Timeline" });
  const concerns = button("Only with a concern", () => {
    view.only = view.only ? "" : "concern";
    refresh();
  }, { class: "toggle" });
  const list = new List({
    label: "Workers", height: 46, key: (row) => row.id, make: makeRow, show: showRow,
    open: (row) => { location.hash = `#/worker/${encodeURIComponent(row.id)}`; },
    empty: "No worker matches.",
    headings: ["Worker", "Record", "Instance", axis, isFake() ? "In this status" : "Last reconcile"],
  });
  fill(root,
    summary,
    h("div.controls", null, h("h1", null, title), chips, concerns, h("span.grow"), shown, search,
      select(Object.keys(SORTS).map((key) => [key, { id: "By id", status: "By status", changed: "By last change", concern: "Concerns first" }[key]]), view.sort, (value) => { view.sort = value; refresh(); }, { "aria-label": "Order" }),
      select(WINDOWS.map(([minutes, text]) => [String(minutes), text]), String(view.window), (value) => { view.window = Number(value); paint(); }, { "aria-label": "Time shown" })),
    list.element);
  root.classList.add("fills");

  let rows = [];
  let numbers = "";

  function refresh() {
    const all = [...state.workers.values()].map(rowOf);
    const counts = new Map();
    let concerning = 0;
    for (const row of all) {
      counts.set(row.status, (counts.get(row.status) ?? 0) + 1);
      if (concern(row)) concerning += 1;
    }
    rows = all.filter((row) => (view.statuses.size === 0 || view.statuses.has(row.status)) && (!view.only || concern(row)) && matches(row, view.search));
    rows.sort(SORTS[view.sort]);
    showChips(counts);
    setText(concerns, concerning ? `Concerns: ${concerning}` : "No concern");
    concerns.classList.toggle("on", Boolean(view.only));
    concerns.setAttribute("aria-pressed", Boolean(view.only));
    setText(shown, rows.length === all.length ? count(all.length, "worker") : `${rows.length} of ${count(all.length, "worker")}`);
    list.nothing.textContent = all.length === 0 ? emptyText() : "No worker matches the search and the filters.";
    list.set(rows);
    showSummary(summary);
    paintAxis();
  }

  function showChips(counts) {
    const present = [...STATUSES, ...counts.keys()].filter((status, index, list) => counts.has(status) && list.indexOf(status) === index);
    const next = JSON.stringify([present.map((status) => [status, counts.get(status)]), [...view.statuses]]);
    if (next === numbers) return;
    numbers = next;
    const focused = chips.contains(document.activeElement) ? document.activeElement.dataset.status : null;
    fill(chips, present.map((status) => {
      const isOn = view.statuses.has(status);
      return button([h("span", { class: `dot s-${STATUSES.includes(status) ? status : "stopped"}` }), `${status} `, h("b", null, counts.get(status))], () => {
        if (isOn) view.statuses.delete(status);
        else view.statuses.add(status);
        refresh();
      }, { class: isOn ? "toggle on" : "toggle", "aria-pressed": isOn, "data-status": status });
    }), view.statuses.size > 0 && button("All", () => { view.statuses.clear(); refresh(); }, { class: "toggle" }));
    if (focused) chips.querySelector(`[data-status="${CSS.escape(focused)}"]`)?.focus();
  }

  /** Draws what moves with the time: the lanes, the axis and the ages. */
  function paint() {
    for (const row of list.rows) paintRow(row);
    paintAxis();
    showSummary(summary);
  }

  function paintAxis() {
    drawAxis(axis, view.window * MINUTE);
  }

  function makeRow() {
    const name = h("b");
    const id = h("span.id");
    const record = h("span");
    const desired = h("span.desired");
    const instance = h("span");
    const instanceId = h("span.id");
    const lane = h("canvas.lane", { role: "img" });
    const why = h("span.why");
    const element = h("div", null,
      h("div.cell.two", { role: "gridcell" }, name, id),
      h("div.cell.two", { role: "gridcell" }, record, desired),
      h("div.cell.two", { role: "gridcell" }, instance, instanceId),
      h("div.cell.band", { role: "gridcell" }, lane),
      h("div.cell", { role: "gridcell" }, why));
    return { element, name, id, record, desired, instance, instanceId, lane, why };
  }

  function showRow(row, item) {
    const { worker } = item;
    setText(row.name, worker.name || item.id);
    setText(row.id, worker.name && worker.name !== item.id ? item.id : worker.aws_region ?? "");
    setText(row.record, item.status);
    row.record.className = chipClass(item.status);
    setText(row.desired, worker.desired_status && worker.desired_status !== item.status ? `→ ${worker.desired_status}` : "");
    setText(row.instance, item.instanceState || (worker.ec2_instance_id ? "" : "none"));
    row.instance.className = item.instanceState && item.instanceState !== "gone" ? chipClass(item.instanceState) : "chip none";
    setText(row.instanceId, worker.ec2_instance_id ?? "");
    row.element.classList.toggle("concern", Boolean(concern(item)));
    paintRow(row);
  }

  function paintRow(row) {
    const item = row.item;
    if (!item) return;
    drawLane(row.lane, item, view.window * MINUTE);
    setText(row.why, lastText(item));
    row.why.title = row.why.textContent;
    const label = laneText(item, view.window * MINUTE);
    if (row.lane.getAttribute("aria-label") !== label) row.lane.setAttribute("aria-label", label);
  }

  const stop = subscribe((parts) => {
    if (["workers", "instances", "stats", "faults", "link"].some((part) => parts.has(part))) refresh();
    else if (parts.has("clock")) paint();
  });
  let drawnAt = 0;
  let drawnTime = 0;
  let frame = requestAnimationFrame(function tick(time) {
    frame = requestAnimationFrame(tick);
    // A step of less than half a pixel cannot be seen.
    const step = (view.window * MINUTE) / Math.max(200, axis.clientWidth) / 2;
    if (time - drawnAt < 90 || (Math.abs(now() - drawnTime) < step && time - drawnAt < 1000)) return;
    drawnAt = time;
    drawnTime = now();
    paint();
  });
  refresh();
  return {
    search,
    end() {
      stop();
      cancelAnimationFrame(frame);
      list.end();
      root.classList.remove("fills");
    },
  };
}

function emptyText() {
  if (state.generation === 0) return "Waiting for the server.";
  if (isFake()) return "This cloud has no worker yet. A scenario brings some, or a controller creates them.";
  const { role, leader } = state.stats ?? {};
  if (role === "standby") return `This controller stands by and shows no worker. ${leader ? `${leader} leads.` : "The leader is not known."}`;
  return "This controller leads no worker yet.";
}

function lastText(item) {
  const { worker } = item;
  const time = now();
  if (worker.at) return `${worker.reason?.code ?? worker.outcome ?? ""} · ${ago(worker.at, time)}`;
  const problem = concern(item);
  const since = worker.statuses?.at(-1)?.[0];
  const age = since ? duration(time - since) : "";
  return problem ? `${problem} · ${age}` : age;
}

function showSummary(summary) {
  const { stats } = state;
  summary.hidden = !stats && state.leaders.length === 0;
  if (summary.hidden) return;
  if (!stats) {
    // The fake cloud knows the leaders from their keys in its etcd.
    showTiles(summary, state.leaders.map((one) => [one.shard ? `Leader of ${one.shard}` : "Leader", one.leader, `token ${one.token}, lease ${one.lease} of ${one.seconds} s`]));
    return;
  }
  const queue = stats.queue ?? { active: 0, waiting: {} };
  const waiting = Object.entries(queue.waiting).filter(([, depth]) => depth > 0);
  const outages = (stats.services ?? []).filter((service) => service.reachable === false);
  const tiles = [
    ["Role", stats.role, stats.role === "leader" ? `token ${stats.fencing_token ?? "none"}` : `leader ${stats.leader ?? "unknown"}`],
    ["Leader", stats.leader ?? (stats.role === "leader" ? stats.instance_id : "unknown"), stats.lease_valid_until ? `lease lasts ${duration(stats.lease_valid_until - now())}` : `this is ${stats.instance_id}`],
    ["Shards", stats.shards ? `${stats.shards.length} held` : "one fleet", stats.shards ? stats.shards.map((shard) => `${shard.shard} (lease renewed ${ago(shard.renewed_at, now())})`).join(", ") || "none" : "not divided"],
    ["Queue", `${queue.active} at work`, waiting.length ? waiting.map(([lane, depth]) => `${lane} ${depth}`).join(", ") : "nothing waits"],
    ...(stats.ready ? [["Not ready", "no", stats.ready]] : []),
    ["Last sweep", stats.last_sweep ? ago(stats.last_sweep.finished_at, now()) : "none yet", stats.last_sweep ? `${stats.last_sweep.resources} listed, ${stats.last_sweep.failed} failed` : ""],
    ["Untrusted regions", stats.untrusted_regions?.length || "none", (stats.untrusted_regions ?? []).map((region) => `${region.region}: ${region.doubt}`).join("; ") || "every absence is proved"],
  ];
  const frozen = stats.discovery?.frozen_regions ?? [];
  if (frozen.length) tiles.push(["Frozen regions", frozen.length, frozen.join(", ")]);
  for (const service of outages) tiles.push([service.service, "unreachable", `${service.last_error ?? ""}${service.since ? `, ${ago(service.since, now())}` : ""}`]);
  showTiles(summary, tiles);
}

function showTiles(summary, tiles) {
  const shownTiles = JSON.stringify(tiles);
  if (summary.dataset.shown === shownTiles) return;
  summary.dataset.shown = shownTiles;
  fill(summary, tiles.map(tile));
}

/** Prepares a canvas for its size on the screen. Returns its context and size, or null if it is not visible. */
function prepare(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  if (width === 0) return null;
  const ratio = devicePixelRatio || 1;
  const [w, h2] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h2) {
    canvas.width = w;
    canvas.height = h2;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

let grid;

/** Colors of lines and texts in the theme that is shown. */
export function forgetColors() {
  grid = undefined;
}

function colors() {
  if (!grid) {
    // A variable is a text; only a property of an element has the color of the theme.
    const probe = h("span", { hidden: true });
    document.body.append(probe);
    const value = (name) => {
      probe.style.color = `var(${name})`;
      return getComputedStyle(probe).color;
    };
    grid = { line: value("--line"), text: value("--dim"), edge: value("--edge") };
    probe.remove();
  }
  return grid;
}

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600].map((seconds) => seconds * 1000);

function ticks(span, width) {
  const step = STEPS.find((one) => (one / span) * width >= 78) ?? STEPS.at(-1);
  const end = now();
  const found = [];
  for (let at = Math.ceil((end - span) / step) * step; at <= end; at += step) found.push([at, ((at - end + span) / span) * width]);
  return found;
}

function drawAxis(canvas, span) {
  const size = prepare(canvas);
  if (!size) return;
  const { context, width, height } = size;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = colors().text;
  context.textBaseline = "middle";
  for (const [at, x] of ticks(span, width)) {
    if (x < 24 || x > width - 60) continue;
    context.textAlign = "center";
    context.fillText(clockTime(at), x, height / 2);
  }
  context.textAlign = "right";
  context.fillText("now", width - 1, height / 2);
}

/** The states of a history in a span, in words. */
function statesIn(history, from) {
  const first = Math.max(0, history.findLastIndex(([at]) => millis(at) <= from));
  return history.slice(first).map(([, state]) => state ?? "gone").join(" → ");
}

/** The two bands of a worker in words: what they show, for a screen reader. */
export function laneText(item, span) {
  const from = now() - span;
  const record = statesIn(item.worker.statuses ?? [], from) || item.status;
  const instance = statesIn(item.worker.instance_states ?? item.instance?.history ?? [], from) || item.instanceState || "none";
  return `the last ${duration(span)}: record ${record}, instance ${instance}`;
}

/** Draws the two bands of a worker: its record and its instance. */
export function drawLane(canvas, item, span) {
  const size = prepare(canvas);
  if (!size) return;
  const { context, width, height } = size;
  const end = now();
  const start = end - span;
  const place = (at) => ((at - start) / span) * width;
  context.fillStyle = colors().line;
  for (const [, x] of ticks(span, width)) context.fillRect(Math.round(x), 0, 1, height);
  const top = Math.floor((height - 31) / 2);
  drawBand(context, item.worker.statuses, undefined, place, width, top, 16, end);
  const bands = new Map();
  if (item.instance) bands.set(item.instance.id, item.instance);
  for (const past of state.past.values()) if (past.owner === item.id) bands.set(past.id, past);
  if (item.worker.instance_states) drawBand(context, item.worker.instance_states, undefined, place, width, top + 18, 13, end);
  else for (const instance of bands.values()) drawBand(context, instance.history, instance.until, place, width, top + 18, 13, end);
}

function drawBand(context, history, until, place, width, top, height, end) {
  if (!history) return;
  context.font = `${Math.min(11, height - 2)}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (let index = 0; index < history.length; index += 1) {
    const [at, status] = history[index];
    if (!status) continue;
    const to = Math.min(history[index + 1]?.[0] ?? until ?? end, end);
    const from = Math.max(0, place(millis(at)));
    const stop = Math.min(width, place(millis(to)));
    if (stop <= 0 || from >= width || stop <= from) continue;
    const [back, ink] = color(status);
    const long = Math.max(1, stop - from);
    context.fillStyle = back;
    context.fillRect(from, top, long, height);
    context.strokeStyle = colors().edge;
    context.lineWidth = 1;
    if (long > 2) context.strokeRect(from + 0.5, top + 0.5, long - 1, height - 1);
    if (long > 46) {
      context.fillStyle = ink;
      context.save();
      context.beginPath();
      context.rect(from, top, long - 4, height);
      context.clip();
      context.fillText(status, from + 5, top + height / 2 + 0.5);
      context.restore();
    }
  }
}
