// Fault rules: put together by choices, with how often each one matched.

import { config, post, remove } from "./api.js";
import { attempt, confirm, copy } from "./dialogs.js";
import { button, card, field, fill, h, select, table } from "./dom.js";
import { count, text } from "./format.js";
import { state, subscribe } from "./store.js";

export const title = "Faults";

const AWS = ["ec2", "cloudwatch", "sts"];
const OPERATIONS = {
  ec2: ["RunInstances", "StartInstances", "StopInstances", "TerminateInstances", "DescribeInstances", "DescribeInstanceStatus", "DescribeImages", "CreateTags", "Describe*"],
  cloudwatch: ["GetMetricData", "GetMetricStatistics"],
  sts: ["GetCallerIdentity"],
  cml: ["system_information", "authenticate", "licensing", "register", "renew_registration", "deregister", "system_stats", "labs"],
  etcd: ["Put", "Range", "Txn", "DeleteRange", "LeaseGrant", "LeaseKeepAlive", "Watch"],
  "control-plane": ["list_workers", "get_worker", "write_status", "terminate_worker", "drain_worker", "cancel_drain", "list_sessions", "get_template", "detect_idle", "report_metrics", "get_discovery_settings"],
};
const ERRORS = {
  ec2: ["RequestLimitExceeded", "InternalError", "UnauthorizedOperation", "InsufficientInstanceCapacity", "InvalidInstanceID.NotFound"],
  cloudwatch: ["Throttling", "InternalServiceFault"],
  sts: ["Throttling", "ExpiredToken"],
  cml: ["unauthorized", "internal"],
  etcd: ["unavailable", "deadline-exceeded"],
  "control-plane": ["unavailable", "conflict"],
};
const CUSTOM = { cml: ["not-ready", "unauthorized", "bad-gateway"], "control-plane": ["bad-gateway"], etcd: ["lease-lost", "compact", "watch-stall", "watch-resume", "watch-cut", "tokens-lost", "unavailable", "available"] };

/** The kinds of actions that a service supports, with the fields of each. */
function actions(service) {
  const all = [["error", "Return an error"], ["latency", "Delay"], ["reset", "Reset the connection"], ["drop-response", "Drop the response"]];
  if (!service || AWS.includes(service)) all.push(["credentials", "Reject the credentials"]);
  if (service === "ec2") all.push(["visibility-lag", "Hide new instances"], ["omit", "Omit instances from lists"], ["shuffle", "Shuffle lists"]);
  if (service === "ec2" || service === "cloudwatch") all.push(["empty-page", "Return an empty page"], ["partial-page", "Return a short page"]);
  if (CUSTOM[service]) all.push(["custom", "Special to the service"]);
  return all;
}

/** A rule in a few words. */
export function ruleText(rule) {
  const { action } = rule;
  const what = { error: () => `error ${action.code}`, credentials: () => `credentials ${action.problem}`, latency: () => `${action.seconds} s of delay`, omit: () => `omits ${Math.round(action.fraction * 100)} % of the instances`, "visibility-lag": () => `hides instances for ${action.seconds} s`, "partial-page": () => `pages of ${action.limit}`, custom: () => action.name };
  return (what[action.kind] ?? (() => action.kind))();
}

export function mount(root) {
  const rules = h("div");
  const form = h("form.form", { onsubmit: (event) => { event.preventDefault(); add(); } });
  const preview = h("pre.code", { tabIndex: 0 });
  const values = { service: "ec2", operation: "", action: "error", times: "1", after: "0", probability: "1", per: "attempt", region: "", instance: "", key_prefix: "", code: "", seconds: "5", on: "real", problem: "expired", fraction: "0.5", limit: "1", name: "" };
  fill(root, h("div.controls", null, h("h1", null, title), h("span.grow"),
    button("Remove all", async () => { if (await confirm("Remove all faults?", "Every service responds without a fault.", "Remove", true)) await attempt(() => remove(`${config.api}faults`), "All faults are removed"); }, { class: "danger" })),
  rules, h("div.columns", null, card("A new fault", form), card("As JSON", preview, h("div.actions", null, button("Copy", () => copy(preview.textContent))))));

  function rule() {
    const built = { action: { kind: values.action } };
    for (const name of ["service", "operation", "region", "instance"]) if (values[name]) built[name] = values[name];
    if (values.key_prefix && values.service === "etcd") built.key_prefix = values.key_prefix;
    if (values.times) built.times = Number(values.times);
    if (Number(values.after)) built.after = Number(values.after);
    if (Number(values.probability) !== 1) built.probability = Number(values.probability);
    if (values.per === "call") built.per = "call";
    const { action } = built;
    if (action.kind === "error") {
      action.code = values.code || ERRORS[values.service]?.[0] || "InternalError";
      if (action.code === "unavailable" && values.service === "control-plane") action.status = 503;
    }
    if (action.kind === "latency") Object.assign(action, { seconds: Number(values.seconds), on: values.on });
    if (action.kind === "visibility-lag") action.seconds = Number(values.seconds);
    if (action.kind === "credentials") action.problem = values.problem;
    if (action.kind === "omit") action.fraction = Number(values.fraction);
    if (action.kind === "partial-page") action.limit = Number(values.limit);
    if (action.kind === "custom") action.name = values.name || CUSTOM[values.service]?.[0];
    return built;
  }

  async function add() {
    await attempt(() => post(`${config.api}faults`, rule()), (result) => `Fault ${result.id} is in place`);
  }

  function input(name, attributes) {
    return h("input", { name, value: values[name], spellcheck: "false", autocomplete: "off", oninput: (event) => { values[name] = event.target.value; showPreview(); }, ...attributes });
  }

  const choose = (name, options) => select(options, values[name], (value) => { values[name] = value; showForm(name); }, { name });
  const number = (name, min, max, step) => input(name, { type: "number", min, max, step: step ?? "any", required: name !== "times" });

  function showForm(focus) {
    const kinds = actions(values.service);
    if (!kinds.some(([kind]) => kind === values.action)) values.action = "error";
    const known = OPERATIONS[values.service] ?? [];
    const suggest = (name, list) => [input(name, { list: `known-${name}`, placeholder: name === "operation" ? "any; * and ? are wildcards" : list[0] }), h("datalist", { id: `known-${name}` }, list.map((one) => h("option", { value: one })))];
    const parameters = {
      error: () => field("Error code", h("span", null, suggest("code", ERRORS[values.service] ?? []))),
      latency: () => [field("Seconds", number("seconds", 0)), field("On the clock", choose("on", [["real", "of real time"], ["world", "of the world"]]))],
      "visibility-lag": () => field("Seconds after the launch", number("seconds", 0)),
      credentials: () => field("Problem", choose("problem", ["expired", "invalid"])),
      omit: () => field("Fraction, 0 to 1", number("fraction", 0, 1)),
      "partial-page": () => field("Items of a page", number("limit", 0, 1000, 1)),
      custom: () => field("Fault", choose("name", CUSTOM[values.service] ?? [])),
    }[values.action];
    fill(form,
      h("fieldset", null, h("legend", null, "Which requests"),
        field("Service", choose("service", [["", "any"], "ec2", "cloudwatch", "sts", "cml", "etcd", "control-plane"])),
        field("Operation", h("span", null, suggest("operation", known))),
        (!values.service || AWS.includes(values.service)) && field("Region", input("region", { placeholder: "any" })),
        field("Instance or worker", input("instance", { placeholder: "any" })),
        values.service === "etcd" && field("Key prefix", input("key_prefix", { placeholder: "any" }))),
      h("fieldset", null, h("legend", null, "Which fault"), field("Action", choose("action", kinds)), parameters && parameters()),
      h("fieldset", null, h("legend", null, "How often"),
        field("Times, empty for always", number("times", 1, undefined, 1)), field("After so many that succeed", number("after", 0, undefined, 1)),
        field("Probability, 0 to 1", number("probability", 0, 1)), field("Counted per", choose("per", [["attempt", "attempt"], ["call", "call with its retries"]]))),
      h("div.actions", null, h("button.primary", { type: "submit" }, "Add the fault")));
    if (focus) form.querySelector(`[name="${focus}"]`)?.focus();
    showPreview();
  }

  function showPreview() {
    preview.textContent = JSON.stringify(rule(), null, 2);
  }

  function showRules() {
    fill(rules, table(["Id", "Service", "Operation", "Fault", "Only for", "Limits", "Matched", "Applied", ""], state.faults.map(({ id, rule: one, matched, applied }) => h("tr", null,
      h("td", null, id), h("td", null, one.service ?? "any"), h("td", null, one.operation ?? "any"), h("td", { title: text(one.action) }, ruleText(one)),
      h("td", null, [one.region, one.instance, one.key_prefix].filter(Boolean).join(", ")),
      h("td", null, [one.times && `${count(one.times, "time")}`, one.after > 0 && `after ${one.after}`, one.probability < 1 && `${Math.round(one.probability * 100)} %`, one.per === "call" && "per call"].filter(Boolean).join(", ") || "always"),
      h("td.number", null, matched), h("td.number", { class: one.times && applied >= one.times ? "dim" : "" }, one.times ? `${applied} of ${one.times}` : applied),
      h("td.number", null, button("Remove", () => attempt(() => remove(`${config.api}faults/${id}`), `Fault ${id} is removed`), { class: "small", "aria-label": `Remove fault ${id}` })))),
    "No fault is in place.", { id: "rules" }));
  }

  const stop = subscribe((parts) => { if (parts.has("faults")) showRules(); });
  showForm();
  showRules();
  return { end: stop };
}
