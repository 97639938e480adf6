// Requests to all services as they arrive, and what came back.

import { config, post, remove } from "./api.js";
import { ask, attempt, confirm } from "./dialogs.js";
import { button, facts, fill, h, select, setText } from "./dom.js";
import { clockTime, count, dateTime } from "./format.js";
import { List } from "./list.js";
import { state, subscribe } from "./store.js";

export const title = "Requests";

const SERVICES = ["ec2", "cloudwatch", "sts", "cml", "etcd", "control-plane"];
const view = { search: "", service: "", result: "", paused: false };

/** What came back, in a few words. */
export function outcomeText({ outcome }) {
  const texts = { served: outcome.status, refused: `${outcome.status} ${outcome.code}`, reset: "connection reset", "response-dropped": "response dropped", abandoned: "client left" };
  return String(texts[outcome.result] ?? outcome.result);
}

/** Whether a request failed. */
export const isFailure = ({ outcome }) => outcome.result !== "served" || outcome.status >= 400;

const SUGGESTED = {
  ec2: [["error:RequestLimitExceeded", "Error RequestLimitExceeded"], ["error:InternalError", "Error InternalError"], ["error:UnauthorizedOperation", "Error UnauthorizedOperation"]],
  cloudwatch: [["error:Throttling", "Error Throttling"]],
  sts: [["error:Throttling", "Error Throttling"]],
  cml: [["error:bad-request", "Error 400"], ["custom:bad-gateway", "502 from the web server"]],
  "control-plane": [["error:unavailable", "Error 503 unavailable"], ["custom:bad-gateway", "502 from the web server"]],
  etcd: [["error:unavailable", "Error unavailable"]],
};

/** The actions that a service offers, for a choice. */
export function actionOptions(service) {
  return [...(SUGGESTED[service] ?? []), ["reset", "Reset the connection before it is handled"], ["drop-response", "Handle it and drop the response"], ["latency:5", "5 s of delay"]];
}

/** An action of a fault rule from a choice. */
export function actionOf(choice) {
  const [kind, value] = choice.split(":");
  if (kind === "error") return value === "unavailable" ? { kind, code: value, status: 503 } : { kind, code: value };
  if (kind === "latency") return { kind, seconds: Number(value), on: "real" };
  if (kind === "custom") return { kind, name: value };
  return { kind };
}

/** Asks how a request should fail next time, and adds the rule. */
export async function failNextTime(request) {
  const values = await ask({
    title: "Make this fail next time",
    text: `The next ${request.service} ${request.operation}${request.region ? ` in ${request.region}` : ""} fails once.`,
    fields: [
      { name: "action", label: "How", options: actionOptions(request.service) },
      { name: "times", label: "How many times", type: "number", value: "1", min: 1, required: true },
      ...(request.subject && !request.subject.includes(",") ? [{ name: "scope", label: "Which", options: [["any", "Any request of this kind"], ["same", `Only for ${request.subject}`]] }] : []),
    ],
    action: "Add the fault",
  });
  if (!values) return;
  const rule = { service: request.service, operation: request.operation, times: Number(values.times), action: actionOf(values.action) };
  if (request.region) rule.region = request.region;
  if (values.scope === "same") rule.instance = request.subject;
  await attempt(() => post(`${config.api}faults`, rule), (result) => `Fault ${result.id} waits for the next ${request.operation}`);
}

export function mount(root) {
  let selected = null;
  const shown = h("span.dim", { "aria-live": "polite" });
  const detail = h("aside.detail", { "aria-label": "The selected request" });
  const search = h("input", { type: "search", placeholder: "Search: operation, subject, code, region", "aria-label": "Search requests", value: view.search, spellcheck: "false", oninput: () => { view.search = search.value; refresh(); } });
  const pause = button("Pause", () => { view.paused = !view.paused; refresh(); }, { class: "toggle" });
  const list = new List({
    label: "Requests", height: 28, key: (row) => row.number, kind: "requests", headings: ["Time", "Service", "Operation", "Region, subject", "Result", "Fault"],
    make() {
      const row = { at: h("span"), service: h("span"), operation: h("b"), subject: h("span"), result: h("span"), fault: h("span") };
      row.element = h("div.request", null, ["at", "service", "operation", "subject", "result", "fault"].map((name) => h("div.cell", { role: "gridcell" }, row[name])));
      return row;
    },
    show(row, item) {
      setText(row.at, clockTime(item.at));
      setText(row.service, item.service);
      setText(row.operation, item.operation);
      setText(row.subject, [item.region, item.subject].filter(Boolean).join(" · "));
      setText(row.result, outcomeText(item));
      row.result.className = isFailure(item) ? "bad" : "good";
      setText(row.fault, item.faults.length ? `fault ${item.faults.join(", ")}` : "");
    },
    open(item) { selected = item; showDetail(); },
    empty: "No request has arrived yet, or none matches.",
  });
  fill(root, h("div.controls", null, h("h1", null, title), shown, h("span.grow"),
    select([["", "All services"], ...SERVICES.map((name) => [name, name])], view.service, (value) => { view.service = value; refresh(); }, { "aria-label": "Service" }),
    select([["", "All results"], ["failed", "Failed only"], ["faulted", "With a fault"]], view.result, (value) => { view.result = value; refresh(); }, { "aria-label": "Result" }),
    search, pause,
    button("Clear", async () => { if (await confirm("Clear the request log?", "The log of all services is emptied for every client.", "Clear", true)) await attempt(() => remove(`${config.api}requests`), "Cleared"); })),
  h("div.split", null, list.element, detail));
  root.classList.add("fills");

  function refresh() {
    const words = view.search.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [];
    for (let index = state.requests.length - 1; index >= 0; index -= 1) {
      const request = state.requests[index];
      if (view.service && request.service !== view.service) continue;
      if (view.result === "failed" && !isFailure(request)) continue;
      if (view.result === "faulted" && request.faults.length === 0) continue;
      if (words.length) {
        const text = `${request.operation}\n${request.subject ?? ""}\n${request.region ?? ""}\n${outcomeText(request)}\n${request.client ?? ""}`.toLowerCase();
        if (!words.every((word) => text.includes(word))) continue;
      }
      rows.push(request);
    }
    setText(shown, `${count(state.total, "request")}, ${rows.length} shown`);
    setText(pause, view.paused ? "Continue" : "Pause");
    pause.classList.toggle("on", view.paused);
    // The rows stay below the eyes of a reader who has scrolled down.
    const { scrollTop } = list.body;
    const added = rows.length - list.items.length;
    list.set(rows);
    if (scrollTop > list.height && added > 0) list.body.scrollTop = scrollTop + added * list.height;
  }

  function showDetail() {
    if (!selected) {
      fill(detail, h("p.empty", null, "Select a request to see its parameters, its response and its client."));
      return;
    }
    const one = selected;
    fill(detail,
      h("h2", null, `${one.service} ${one.operation}`),
      facts([["Number", one.number], ["Time", dateTime(one.at)], ["Region", one.region], ["Subject", one.subject],
        ["Response", h("span", { class: isFailure(one) ? "bad" : "good" }, outcomeText(one))],
        ["Faults", one.faults.join(", ")], ["Attempt", one.attempt], ["Call", one.call], ["Client", one.client]]),
      one.parameters.length > 0 && [h("h3", null, "Parameters"), facts(one.parameters)],
      h("div.actions", null, button("Make this fail next time", () => failNextTime(one), { class: "primary" })));
  }

  const stop = subscribe((parts) => { if (parts.has("requests") && !view.paused) refresh(); });
  refresh();
  showDetail();
  return { search, end() { stop(); list.end(); root.classList.remove("fills"); } };
}
