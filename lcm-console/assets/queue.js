// The work queue of a controller: what is at work, what waits and why, and what was requested by operators.

import { config, post } from "./api.js";
import { askOperation, attempt } from "./dialogs.js";
import { button, card, fill, h, select, setText, table } from "./dom.js";
import { ago, chip, count, dateTime, duration } from "./format.js";
import { rowOf } from "./fleet.js";
import { now, state, subscribe } from "./store.js";

export const title = "Queue";

/** Most rows of the table. */
const MAX_ROWS = 300;
const view = { stage: "", search: "" };

const WHY = {
  changed: "a change of its record was reported",
  due: "its delay is over",
  resync: "the last listing contained it",
};
const STAGES = [["", "Everything"], ["work", "At work"], ["waiting", "Waiting for a turn"], ["delayed", "Delayed"], ["retry", "Retrying"]];
const URGENCY = ["changed", "due", "resync"];

/** The place of a worker in the queue, and why. Null if it waits for a change only. */
export function placeOf(worker) {
  if (worker.state === "IN_PROGRESS") return { stage: "work", order: 0, text: "at work", why: "its reconcile is in progress", since: worker.waiting?.since };
  if (worker.waiting) {
    const { priority, requested, since } = worker.waiting;
    const why = requested ? "a reconcile was requested" : WHY[priority] ?? priority;
    return { stage: "waiting", order: 1 + URGENCY.indexOf(priority) / 10, text: `waits as ${priority}`, why, since };
  }
  if (worker.next_retry_at) {
    const isRetry = worker.outcome === "retry" || worker.retry_count > 0;
    const sentence = worker.reason?.sentence ?? "";
    const why = isRetry ? `${count(worker.retry_count || 1, "failure")} in a row: ${sentence}` : sentence;
    return { stage: isRetry ? "retry" : "delayed", order: 2, text: isRetry ? "backs off" : "delayed", why, due: worker.next_retry_at };
  }
  return null;
}

export function mount(root) {
  const shown = h("span.dim", { "aria-live": "polite" });
  const waiting = h("div");
  const requested = h("div");
  const search = h("input", { type: "search", placeholder: "Search: id, name, reason", "aria-label": "Search the queue", value: view.search, spellcheck: "false", oninput: () => { view.search = search.value; show(); } });
  const operate = (path, name, text, done, danger) => button(name, async () => {
    const values = await askOperation({ title: `${name}?`, text, action: name, danger });
    if (values) await attempt(() => post(`${config.api}${path}`, values), done);
  }, { class: danger ? "danger" : "" });
  const all = operate("trigger-reconcile", "Reconcile all", "Every worker that this controller leads is reconciled at once.", (value) => `${count(value.queued, "worker")} queued`);
  const resign = operate("resign-leadership", "Resign the lead", "Reconciles in progress are finished, and another controller takes over. If there is none, this one leads again.", "The lead is given up", true);
  fill(root, h("div.controls", null, h("h1", null, title), shown, h("span.grow"), all, resign,
    select(STAGES, view.stage, (value) => { view.stage = value; show(); }, { "aria-label": "Stage" }), search),
  waiting, card("Requested by operators", requested));

  function show() {
    const places = [...state.workers.values()].map((worker) => ({ worker, place: placeOf(worker) })).filter(({ place }) => place);
    const words = view.search.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = places.filter(({ worker, place }) => {
      if (view.stage && place.stage !== view.stage) return false;
      const text = `${worker.id}\n${worker.name ?? ""}\n${place.text}\n${place.why}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    rows.sort((a, b) => a.place.order - b.place.order || (a.place.since ?? a.place.due ?? 0) - (b.place.since ?? b.place.due ?? 0));
    const counts = (stage) => places.filter(({ place }) => place.stage === stage).length;
    setText(shown, `${counts("work")} at work, ${counts("waiting")} waiting, ${counts("retry")} retrying, ${counts("delayed")} delayed`);
    const time = now();
    fill(waiting, table(["Worker", "Status", "In the queue", "Why", "Since or due"], rows.slice(0, MAX_ROWS).map(({ worker, place }) => h("tr", null,
      h("td", null, h("a", { href: `#/worker/${encodeURIComponent(worker.id)}` }, worker.name || worker.id)),
      h("td", null, chip(rowOf(worker).status)),
      h("td", null, place.text),
      h("td", null, place.why),
      h("td.number", { title: dateTime(place.due ?? place.since) }, place.due ? (place.due > time ? `in ${duration(place.due - time)}` : "now") : place.since ? `for ${duration(time - place.since)}` : ""))),
    places.length === 0 ? "Nothing is at work, waits or is delayed: every worker waits for a change or the next cycle." : "Nothing matches.", { id: "queue" }),
    rows.length > MAX_ROWS && h("p.dim", null, `${rows.length - MAX_ROWS} more are not shown; search to see them.`));
  }

  function showOperations() {
    fill(requested, operationsTable(state.operations, true));
  }

  function showButtons() {
    const isStandby = state.stats?.role !== "leader";
    for (const one of [all, resign]) {
      one.disabled = isStandby;
      one.title = isStandby ? "This controller stands by." : "";
    }
  }

  const stop = subscribe((parts) => {
    if (parts.has("stats")) showButtons();
    if (parts.has("workers")) show();
    if (parts.has("operations")) showOperations();
  });
  const timer = setInterval(show, 1000);
  show();
  showButtons();
  showOperations();
  return { search, end() { stop(); clearInterval(timer); } };
}

/** The operations that were requested over the server: the audit of the console. */
export function operationsTable(operations, withWorker) {
  const headings = ["Time", "Operation", withWorker && "Worker", "By", "Reason", "Result"].filter(Boolean);
  return table(headings, operations.map((one) => h("tr", null,
    h("td.number", { title: ago(one.at, now()) }, dateTime(one.at)), h("td", null, one.operation.replaceAll("-", " ")),
    withWorker && h("td", null, one.resource_id ? h("a", { href: `#/worker/${encodeURIComponent(one.resource_id)}` }, one.resource_id) : "the controller"),
    h("td", null, one.requested_by), h("td", null, one.reason), h("td", { class: one.refused ? "bad" : "good" }, one.refused ?? "accepted"))),
  "Nothing was requested since the controller started.");
}
