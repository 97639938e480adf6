// One worker: its record, its instance, CML, sessions, license and notes, what happened to it, and what can be done.

import { config, get, post, segment } from "./api.js";
import { ask, askOperation, attempt, confirm, copy } from "./dialogs.js";
import { button, card, facts, fill, h, select, setText } from "./dom.js";
import { concern, drawLane, laneText, rowOf } from "./fleet.js";
import { ago, chip, chipClass, clockTime, dateTime, duration, millis, reasonCode, text } from "./format.js";
import { instanceActions } from "./instances.js";
import { placeOf } from "./queue.js";
import { outcomeText, isFailure } from "./requests.js";
import { now, state, subscribe } from "./store.js";

export const title = "Worker";

/** Time between two reads of the details, while the worker changes. */
const PAUSE = 1000;
/** Time from the begin of a reconcile in which its change is noticed. */
const OWN_CHANGE = 30_000;
const filters = { kind: "" };

export function mount(root, [id]) {
  const isFake = config.server === "fake-cloud";
  const heading = h("h1");
  const status = h("span");
  const problem = h("span.bad");
  const lane = h("canvas.lane.tall", { role: "img" });
  const actions = h("div.actions");
  const left = h("div.column");
  const timeline = h("ol.timeline", { "aria-label": "Timeline" });
  const asOf = h("input", { type: "datetime-local", step: 1, "aria-label": "Explain the status at", title: "In UTC: shows what led to the status at this time, from the recording of the controller if there is one", onchange: (event) => explainAt(event.target.value) });
  const forecast = h("div.forecast", { "aria-live": "polite" });
  const kinds = isFake ? [["", "Everything"], ["record", "Record"], ["request", "Requests"], ["audit", "Audit and events"]] : [["", "Everything"], ["change", "Changes only"], ["failure", "Failures only"]];
  fill(root,
    h("nav.crumbs", { "aria-label": "Path" }, h("a", { href: "#/fleet" }, "Fleet"), " / ", h("span", null, id)),
    h("div.title", null, heading, status, problem, h("span.grow"), actions),
    h("div.lane-box", null, lane),
    forecast,
    h("div.columns", null, left, h("section.card", { "aria-label": "Timeline" },
      h("div.controls", null, h("h2", null, "Timeline"), h("span.grow"), select(kinds, filters.kind, (value) => { filters.kind = value; showTimeline(); }, { "aria-label": "Entries shown" }), !isFake && asOf),
      timeline)));

  let detail = null;
  let missing = "";
  let instanceButtons = null;
  let past = null;
  let seen = "";
  let offered = "";
  let due = 0;
  let timer = 0;
  let isOver = false;

  const current = () => state.workers.get(id);
  const path = isFake ? `${config.api}ui/workers/${segment(id)}` : `${config.api}workers/${segment(id)}`;

  async function load() {
    timer = 0;
    due = performance.now() + PAUSE;
    try {
      detail = await get(path);
      missing = "";
    } catch (error) {
      missing = error.message;
      if (error.status === 404) detail = null;
    }
    if (!isOver) showAll();
  }

  function request() {
    if (!timer && !isOver) timer = setTimeout(load, Math.max(0, due - performance.now()));
  }

  function showHead() {
    const worker = current();
    const row = worker && rowOf(worker);
    setText(heading, worker?.name || detail?.record?.name || id);
    const word = row?.status ?? detail?.record?.status;
    setText(status, word ?? "");
    status.className = word ? chipClass(word) : "";
    setText(problem, missing || (row ? concern(row) : ""));
    if (row) {
      const span = spanOf(row);
      drawLane(lane, row, span);
      lane.setAttribute("aria-label", laneText(row, span));
    }
  }

  function showActions() {
    const worker = current();
    const isKnown = Boolean(worker || detail);
    const word = worker?.status ?? detail?.record?.status;
    const desired = worker?.desired_status ?? detail?.record?.desired_status;
    // Buttons that are replaced lose the focus, and a click that has begun.
    const next = JSON.stringify([isKnown, word, desired, detail?.can_cancel_drain, state.stats?.role, state.stats?.control_plane]);
    if (next === offered) return;
    offered = next;
    if (!isKnown) {
      fill(actions);
      return;
    }
    fill(actions, isFake ? fakeActions(word, desired) : controllerActions(word));
  }

  function fakeActions(word, desired) {
    const want = (status, name, danger) => button(name, async () => {
      if (await confirm(`${name} ${id}?`, `The record's desired status becomes ${status}. A controller carries it out.`, name, danger)) {
        await attempt(() => post(`${config.api}console/worker/${segment(id)}`, { desired_status: status }), `${id} is to be ${status}`);
      }
    }, { class: danger ? "danger" : "", disabled: desired === status });
    return [
      want("running", "Run"), want("stopped", "Stop"), want("terminated", "Terminate", true),
      button("Drain", async () => {
        const values = await askOperation({ title: `Drain ${id}?`, text: "As through the control plane: it takes no new sessions, waits for those that run, and stops.", action: "Drain" });
        if (values) await attempt(() => post(`${config.api}ui/workers/${segment(id)}/drain`, values), `${id} drains`);
      }, { disabled: word !== "running" }),
      button("Cancel the drain", async () => {
        const values = await askOperation({ title: `Cancel the drain of ${id}?`, text: "It is back in service.", action: "Cancel the drain" });
        if (values) await attempt(() => post(`${config.api}ui/workers/${segment(id)}/cancel-drain`, values), `${id} is back in service`);
      }, detail && !detail.can_cancel_drain ? { disabled: true, title: "This control plane cannot cancel a drain. Run brings the worker back." } : { disabled: word !== "draining" }),
      button("Edit", async () => {
        const values = await ask({ title: `Edit the record of ${id}`, text: "Fields as JSON, without a check of the transition, as an operator does in the database.", fields: [{ name: "fields", label: "Fields", lines: 5, value: '{"status": "running"}' }], action: "Write" });
        if (values) await attempt(() => post(`${config.api}console/worker/${segment(id)}`, JSON.parse(values.fields)), "Written");
      }),
    ];
  }

  function controllerActions(word) {
    const { role, control_plane: supports } = state.stats ?? {};
    const isStandby = role === "standby" && "This controller stands by; the leader carries out operations.";
    const cannotCancel = supports?.cancel_drain === "no" && "The control plane cannot cancel a drain.";
    const operate = (operation, name, explanation, options = {}) => button(name, async () => {
      const values = await askOperation({ title: `${name}: ${id}?`, text: explanation, action: name, danger: options.danger });
      if (!values) return;
      await attempt(() => operation(values), `${name}: accepted`);
      request();
    }, { disabled: Boolean(options.disabled), title: typeof options.disabled === "string" ? options.disabled : undefined, class: options.danger ? "danger" : "" });
    const isNot = (status) => Boolean(word) && word !== status && `The worker is ${word}.`;
    return [
      button("Dry run", explain, { class: "primary" }),
      operate((values) => post(`${config.api}trigger-reconcile`, { worker_id: id, ...values }), "Reconcile now", "The controller reconciles it at once, before the others in the queue.", { disabled: isStandby }),
      operate((values) => post(`${config.api}workers/${segment(id)}/drain`, values), "Drain", "It takes no new sessions, waits for those that run, and stops.", { danger: true, disabled: isStandby || isNot("running") }),
      operate((values) => post(`${config.api}workers/${segment(id)}/cancel-drain`, values), "Cancel the drain", "It is back in service.", { disabled: isStandby || cannotCancel || isNot("draining") }),
    ];
  }

  async function explainAt(value) {
    past = value ? { entries: [], nothing: "Reading" } : null;
    const asked = past;
    showTimeline();
    if (!asked) return;
    try {
      const { source, steps } = await get(`${path}/history?at=${encodeURIComponent(new Date(`${value}Z`).toISOString())}`);
      asked.entries = steps.map(historyEntry).reverse();
      asked.nothing = source === "recording" ? "Nothing was recorded up to this time." : "This controller knows of nothing up to this time, and keeps no recording.";
    } catch (error) {
      asked.nothing = error.message;
    }
    if (past === asked) showTimeline();
  }

  async function explain() {
    fill(forecast, h("p.empty", null, "Asking the controller"));
    try {
      const value = await post(`${config.api}workers/${segment(id)}/explain`);
      fill(forecast, forecastCard(value, () => fill(forecast)));
    } catch (error) {
      fill(forecast, card("Dry run", h("p.bad", null, error.message), h("div.actions", null, button("Close", () => fill(forecast)))));
    }
  }

  function showAll() {
    showHead();
    showActions();
    showLeft();
    showTimeline();
  }

  function showLeft() {
    if (!detail) {
      fill(left, h("p.empty", null, missing || "Loading"));
      return;
    }
    instanceButtons = null;
    fill(left, isFake ? fakeCards() : controllerCards());
  }

  function fakeCards() {
    const { record, instance, sessions, cml, keys } = detail;
    const { state_history: _history, license, metadata, ...fields } = record;
    const cards = [card("Record", facts(Object.entries(fields).map(([name, value]) => [name, name.endsWith("status") && typeof value === "string" ? chip(value) : value === null ? null : shown(name, value)])))];
    if (instance) {
      instanceButtons = instanceActions(() => state.instances.get(instance.id));
      const tags = Object.entries(instance.tags);
      cards.push(card("Instance", facts([["id", instance.id], ["state", chip(instance.state)], ["region", instance.region], ["type", instance.type], ["image", instance.image], ["public address", instance.public_ip], ["private address", instance.private_ip], ["launched", shown("at", instance.launched_at)], ["client token", instance.client_token], ["tags", tags.length > 0 && h("ul.plain", null, tags.map(([key, value]) => h("li", null, `${key} = ${value}`)))]]), instanceButtons.element));
    } else {
      cards.push(card("Instance", h("p.empty", null, record.ec2_instance_id ? `EC2 does not describe ${record.ec2_instance_id}.` : "The record names no instance.")));
    }
    cards.push(card("CML", cml ? facts(Object.entries(cml).map(([name, value]) => [name, value === null ? null : text(value)])) : h("p.empty", null, "The instance has no CML server: it has not run yet.")));
    cards.push(card("Sessions", sessions.length ? h("ul.plain", null, sessions.map((session) => h("li", null, h("b", null, session.id), " ", chip(session.status), " ", h("span.dim", null, `${dateTime(session.timeslot_start)} to ${clockTime(session.timeslot_end)}`)))) : h("p.empty", null, "No session.")));
    if (license) cards.push(card("License", facts(Object.entries(license).map(([name, value]) => [name, value === null ? null : text(value)]))));
    if (metadata && Object.keys(metadata).length) cards.push(card("Metadata", facts(Object.entries(metadata).map(([name, value]) => [name, text(value)]))));
    cards.push(card("Notes and keys in etcd", keys.length ? facts(keys.map(({ key, value }) => [key, h("code", null, value)])) : h("p.empty", null, "etcd has no key of this worker.")));
    return cards;
  }

  function controllerCards() {
    const worker = current() ?? {};
    const { record, known, sessions } = detail;
    const next = worker.next_retry_at;
    const place = placeOf(worker);
    const cards = [card("Reconciles", facts([
      ["in the queue", place && `${place.text}: ${place.why}`], ["last outcome", worker.outcome && chip(worker.outcome)], ["reason", worker.reason && [reasonCode(worker.reason.code), " ", worker.reason.sentence]],
      ["last reconcile", worker.at && `${dateTime(worker.at)} (${ago(worker.at, now())})`],
      ["failures in a row", worker.retry_count || null],
      ["next attempt", next && `${dateTime(next)} (${ago(next, now())})`]]))];
    if (!record) return [...cards, card("Record", h("p.empty", null, missing || "The record does not exist any more."))];
    const groups = { Instance: ["ec2_instance_id", "aws_region"], License: ["license_status", "license_operation"], Notes: ["launched_at", "launch_generation", "launch_under_way", "drain_started_at"] };
    const grouped = new Set(Object.values(groups).flat());
    const rows = (names, ...first) => facts([...first, ...names.map((name) => [name.replaceAll("_", " "), name.endsWith("status") && record[name] && !name.startsWith("license") ? chip(record[name]) : shown(name, record[name])])]);
    cards.push(card("Record", rows(Object.keys(record).filter((name) => !grouped.has(name) && name !== "warnings"))));
    const { instance, cml } = known ?? {};
    const isOurs = instance && (!record.ec2_instance_id || instance.id === record.ec2_instance_id);
    cards.push(card("Instance", !record.ec2_instance_id && h("p.empty", null, "The record names no instance."), rows(groups.Instance,
      ["state", worker.instance_state && chip(worker.instance_state)], ...(isOurs ? Object.entries(instance).filter(([name]) => name !== "id" && name !== "state").map(([name, value]) => [`${name.replaceAll("_", " ")} in EC2`, shown(name, value)]) : [])),
    record.ec2_instance_id && !isOurs && h("p.empty", null, "No reconcile of this controller has described it yet.")));
    cards.push(card("CML", cml ? facts([["version", cml.version], ["ready", shown("ready", cml.ready)], ["labs", cml.labs], ["nodes", cml.nodes], ["responded", shown("at", cml.at)]]) : h("p.empty", null, "CML has not responded to this controller yet: it is called on running workers.")));
    cards.push(card("Sessions", detail.sessions_error ? h("p.bad", null, `The sessions could not be listed: ${detail.sessions_error}`)
      : sessions.length ? h("ul.plain", null, sessions.map((session) => h("li", null, h("b", null, session.id), " ", chip(session.state), " ", session.timeslot_start && h("span.dim", null, `from ${dateTime(session.timeslot_start)}`)))) : h("p.empty", null, "No session.")));
    cards.push(card("License", record.license_status || record.license_operation ? rows(groups.License) : h("p.empty", null, "The record says nothing about a license.")));
    cards.push(card("Notes", rows(groups.Notes)));
    if (record.warnings?.length) cards.push(card("Fields without effect", listOf(record.warnings)));
    return cards;
  }

  function listOf(values) {
    return values.length ? h("ul.plain", null, values.map((value) => h("li", null, text(value)))) : h("p.empty", null, "None.");
  }

  function showTimeline() {
    const entries = (past?.entries ?? (isFake ? fakeTimeline() : controllerTimeline())).filter((entry) => !filters.kind || entry.kinds.includes(filters.kind));
    const nothing = past ? past.nothing : detail ? "Nothing has happened yet." : missing || "Loading";
    const key = JSON.stringify([nothing, entries.map((entry) => [entry.at, entry.title, entry.count])]);
    if (timeline.dataset.key === key) return;
    timeline.dataset.key = key;
    const open = new Set([...timeline.querySelectorAll("details[open]")].map((one) => one.dataset.at));
    fill(timeline, entries.slice(0, 400).map((entry) => h("li", { class: entry.tone },
      h("time", { title: dateTime(entry.at) }, clockTime(entry.at)),
      h("div", null, h("div.entry", null, entry.title, entry.count > 1 && h("span.dim", null, ` ×${entry.count}`)), entry.detail && h("div.dim", null, entry.detail),
        entry.more && h("details", { "data-at": String(entry.at), open: open.has(String(entry.at)) }, h("summary", null, "Details"), entry.more)))),
    entries.length === 0 && h("li.empty", null, nothing));
  }

  function fakeTimeline() {
    if (!detail) return [];
    const entries = [];
    for (const change of detail.record.state_history ?? []) {
      entries.push({ at: millis(change.at), kinds: ["record"], tone: "change", title: [chip(change.from), " → ", chip(change.to)], detail: change.reason });
    }
    for (const request of detail.requests) {
      entries.push({ at: millis(request.at), kinds: ["request"], tone: isFailure(request) ? "failure" : "call", title: `${request.service} ${request.operation}`, detail: `${outcomeText(request)}${request.faults.length ? `, fault ${request.faults.join(", ")}` : ""}`, key: `${request.service} ${request.operation} ${outcomeText(request)}`, more: request.parameters.length > 0 && facts(request.parameters) });
    }
    for (const entry of detail.audit) entries.push({ at: millis(entry.recorded_at), kinds: ["audit"], tone: "audit", title: `audit: ${entry.action}`, detail: entry.reason ?? entry.details?.reason });
    for (const event of detail.events) entries.push({ at: millis(event.time ?? event.at), kinds: ["audit"], tone: "audit", title: event.type, detail: text(event.data) });
    entries.sort((a, b) => b.at - a.at);
    // Clients poll: equal requests in a row become one entry.
    const joined = [];
    for (const entry of entries) {
      const before = joined.at(-1);
      if (entry.key && before?.key === entry.key) before.count += 1;
      else joined.push({ ...entry, count: 1 });
    }
    return joined;
  }

  function controllerTimeline() {
    const requested = state.operations.filter((one) => one.resource_id === id).map(operationEntry);
    const reconciles = detail?.history ?? [];
    const worker = current();
    return [...reconciles.map(historyEntry), ...requested, ...(worker ? noticed(worker, reconciles) : [])].sort((a, b) => b.at - a.at);
  }

  const stop = subscribe((parts) => {
    if (!isFake && (parts.has("operations") || parts.has("stats"))) {
      showActions();
      showTimeline();
    }
    if (!parts.has("workers") && !parts.has("instances") && !parts.has("link")) return;
    const worker = current();
    const instance = worker?.ec2_instance_id ? state.instances.get(worker.ec2_instance_id) : null;
    const next = JSON.stringify([worker, instance, state.link === "live"]);
    if (next !== seen) {
      seen = next;
      request();
    }
    showHead();
    instanceButtons?.show();
  });
  const tick = setInterval(showHead, 500);
  // Requests about the worker arrive without a change of its record.
  const poll = isFake ? setInterval(() => { if (!document.hidden && state.link === "live" && state.clock.pace !== "manual") request(); }, 5000) : 0;
  load();
  return {
    end() {
      isOver = true;
      stop();
      clearInterval(tick);
      clearInterval(poll);
      clearTimeout(timer);
    },
  };
}

/** The time that the lane shows: from five minutes to an hour, as much as is known. */
function spanOf({ worker, instance }) {
  const began = [worker.statuses, worker.instance_states, instance?.history].map((history) => history?.[0]?.[0]).filter(Boolean);
  const known = began.length ? now() - Math.min(...began.map(millis)) : 0;
  return Math.min(3_600_000, Math.max(300_000, Math.ceil((known * 1.05) / 60_000) * 60_000));
}

/** One reconcile of the history, as an entry of the timeline. */
function historyEntry(one) {
  const moved = one.to_status && one.from_status !== one.to_status;
  const failed = one.outcome === "retry";
  const effects = asList(one.effects);
  const results = asList(one.results);
  const fields = Object.entries(one.changes ?? {});
  const isChange = moved || effects.length > 0 || fields.length > 0;
  return {
    at: millis(one.last_at ?? one.at),
    kinds: ["", isChange ? "change" : "", failed ? "failure" : ""],
    tone: failed ? "failure" : moved ? "change" : isChange ? "call" : "audit",
    title: [moved ? [chip(one.from_status), " → ", chip(one.to_status), " "] : [chip(one.outcome), " "], reasonCode(one.reason?.code)],
    detail: one.reason?.sentence,
    count: (one.repeats ?? 0) + 1,
    more: h("div", null, facts([["outcome", one.outcome], ["first", one.repeats > 0 && dateTime(one.at)], ["took", one.duration_ms !== undefined && `${Math.round(one.duration_ms)} ms`],
      ["requested by", one.requested_by],
      ["observed", one.observed?.length > 0 && h("ul.plain", null, one.observed.map((part) => h("li", null, h("span.dim", null, `${queryText(part.query)}: `), part.found)))],
      ["effects", effects.length > 0 && h("ol.plain", null, effects.map((effect) => h("li", null, text(effect))))],
      ["results", results.length > 0 && h("ol.plain", null, results.map((result) => h("li", null, text(result))))],
      ["fields", fieldsOf(fields)]])),
  };
}

/** Fields of a record that a reconcile writes. */
function fieldsOf(fields) {
  return fields.length > 0 && h("ul.plain", null, fields.map(([name, value]) => h("li", null, value === null ? `${name} cleared` : `${name} = ${text(value)}`)));
}

/** Changes that a controller noticed and did not make: of the record by other clients, and of the instance. */
function noticed(worker, reconciles) {
  const entries = [];
  const changes = (history) => (history ?? []).map(([at, word], index) => [at, word, history[index - 1]?.[1]]).slice(1);
  const isOurs = (at, status) => reconciles.some((one) => one.to_status === status && one.from_status !== status && Math.abs(millis(one.at) - at) < OWN_CHANGE);
  for (const [at, status, before] of changes(worker.statuses)) {
    if (!isOurs(at, status)) entries.push({ at, kinds: ["", "change"], tone: "change", title: [chip(before), " → ", chip(status)], detail: "Changed by another client of the control plane, and noticed here." });
  }
  for (const [at, word, before] of changes(worker.instance_states)) {
    entries.push({ at, kinds: ["", "change"], tone: "call", title: ["instance ", chip(before ?? "gone"), " → ", chip(word ?? "gone")], detail: "Seen in EC2." });
  }
  return entries;
}

/** An operation that was requested over the server, as an entry of the timeline. */
function operationEntry(one) {
  return {
    at: millis(one.at),
    kinds: ["", one.refused ? "failure" : ""],
    tone: one.refused ? "failure" : "audit",
    title: `requested: ${one.operation.replaceAll("-", " ")}`,
    detail: `by ${one.requested_by}: ${one.reason}${one.refused ? `. Refused: ${one.refused}` : ""}`,
  };
}

function asList(value) {
  if (value === null || value === undefined) return [];
  if (Array.isArray(value)) return value;
  return typeof value === "object" ? Object.entries(value).map(([name, one]) => `${name}: ${text(one)}`) : [value];
}

/** The explanation of a controller: what it saw, what it would do, and what would change that. */
function forecastCard(value, close) {
  const { plan, observed = [], what_if: others = [], next } = value;
  const moved = plan.to_status !== plan.from_status;
  return card("Dry run",
    h("p", null, moved ? [chip(plan.from_status), " → ", chip(plan.to_status), " "] : [chip(plan.outcome), " "], reasonCode(plan.reason.code), " ", plan.reason.sentence),
    facts([
      ["effects", plan.effects?.length ? h("ol.plain", null, plan.effects.map((effect) => h("li", null, effectText(effect)))) : "none"],
      ["fields", fieldsOf(Object.entries(plan.changes ?? {}))],
      ["failed call", plan.error && text(plan.error.message ?? plan.error)],
      ["then", next && `${next.when}${next.at ? `, at ${dateTime(next.at)}` : ""}${next.awaits ? `; waits for ${next.awaits}` : ""}`],
      ["observed", observed.length > 0 && h("ul.plain", null, observed.map((one) => h("li", null, h("span.dim", null, `${queryText(one.query)}: `), one.found)))],
      ["what if", others.length > 0 && h("ul.plain", null, others.map((one) => h("li", null, h("span.dim", null, `If ${one.if}: `), one.then)))]]),
    h("p.dim", null, "A dry run: nothing was changed."),
    h("div.actions", null, button("Copy as JSON", () => copy(JSON.stringify(value, null, 2))), button("Close", close)));
}

const queryText = (query) => (typeof query === "string" ? query : query?.query ?? query?.kind ?? text(query)).replaceAll("_", " ");

function effectText(effect) {
  if (typeof effect === "string") return effect;
  const { effect: name, result: _result, ...rest } = effect;
  const details = Object.entries(rest).filter(([, one]) => one !== null && one !== undefined).map(([key, one]) => `${key.replaceAll("_", " ")} ${text(one)}`);
  return [String(name ?? "effect").replaceAll("_", " "), details.join(", ")].filter(Boolean).join(": ");
}

function shown(name, value) {
  if (value === null || value === undefined) return null;
  if (typeof value === "string" && /^\d{4}-\d\d-\d\dT/.test(value)) return `${dateTime(value)} (${ago(value, now())})`;
  if (typeof value === "object") return Object.keys(value).length ? h("code", null, JSON.stringify(value)) : null;
  if (name.endsWith("_ms")) return duration(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  return String(value);
}
