// EC2 instances, with the changes that the AWS console offers.

import { config, post } from "./api.js";
import { ask, attempt, confirm } from "./dialogs.js";
import { button, fill, h, setText } from "./dom.js";
import { chipClass, count, dateTime, duration } from "./format.js";
import { List } from "./list.js";
import { now, state, subscribe } from "./store.js";

export const title = "Instances";

let query = "";

const ACTIONS = {
  start: { states: ["stopped"], text: "Start" },
  stop: { states: ["pending", "running"], text: "Stop" },
  reboot: { states: ["running"], text: "Reboot" },
  terminate: { states: ["pending", "running", "stopping", "stopped"], text: "Terminate", danger: true },
};

/** Buttons for an instance: start, stop, reboot, terminate and tag. */
export function instanceActions(current) {
  const buttons = Object.entries(ACTIONS).map(([action, { text, danger }]) => [action, button(text, async () => {
    const instance = current();
    const agreed = await confirm(`${text} ${instance.id}?`, `As in the AWS console: the instance is ${instance.state}, in ${instance.region}. Controllers get no event: they notice the change when they describe the instance.`, text, danger);
    if (agreed) await attempt(() => post(`${config.api}console/${action}`, { region: instance.region, instance: instance.id }), (result) => `${instance.id}: ${result.previous} to ${result.current}`);
  }, { class: danger ? "small danger" : "small" })]);
  const tag = button("Tag", async () => {
    const instance = current();
    const values = await ask({ title: `Tag ${instance.id}`, fields: [{ name: "key", label: "Key", required: true }, { name: "value", label: "Value" }], action: "Set the tag" });
    if (values) await attempt(() => post(`${config.api}console/tag`, { region: instance.region, instance: instance.id, ...values }), "Tagged");
  }, { class: "small" });
  const element = h("div.group", null, buttons.map(([, one]) => one), tag);
  const show = () => {
    const instance = current();
    for (const [action, one] of buttons) one.disabled = !instance || !ACTIONS[action].states.includes(instance.state);
    tag.disabled = !instance;
  };
  show();
  return { element, show };
}

function owner(instance) {
  const tagged = instance.tags["lcm:worker_id"];
  if (tagged && state.workers.has(tagged)) return tagged;
  return instance.owner ?? "";
}

export function mount(root) {
  const shown = h("span.dim", { "aria-live": "polite" });
  const search = h("input", { type: "search", placeholder: "Search: id, region, state, tag", "aria-label": "Search instances", value: query, spellcheck: "false", oninput: () => { query = search.value; refresh(); } });
  const list = new List({
    label: "Instances", height: 46, key: (row) => row.id, kind: "instances", headings: ["Instance", "State", "Type", "Worker", "Tags", "As in the AWS console"],
    make() {
      const row = { id: h("b"), region: h("span.id"), state: h("span"), type: h("span"), address: h("span.id"), worker: h("a"), tags: h("span.tags"), age: h("span.id") };
      row.actions = instanceActions(() => row.item);
      row.element = h("div.instance", null, h("div.cell.two", { role: "gridcell" }, row.id, row.region), h("div.cell.two", { role: "gridcell" }, row.state, row.age), h("div.cell.two", { role: "gridcell" }, row.type, row.address), h("div.cell", { role: "gridcell" }, row.worker), h("div.cell", { role: "gridcell" }, row.tags), h("div.cell.end", { role: "gridcell" }, row.actions.element));
      return row;
    },
    show(row, item) {
      setText(row.id, item.id);
      setText(row.region, item.region);
      setText(row.state, item.state);
      row.state.className = chipClass(item.state);
      const since = item.history?.at(-1)?.[0];
      setText(row.age, since ? `for ${duration(now() - since)}` : "");
      row.age.title = since ? `since ${dateTime(since)}` : "";
      setText(row.type, item.type);
      setText(row.address, item.public_ip ?? item.private_ip ?? "");
      const id = owner(item);
      setText(row.worker, id || "no record");
      if (id) row.worker.href = `#/worker/${encodeURIComponent(id)}`;
      else row.worker.removeAttribute("href");
      setText(row.tags, Object.entries(item.tags).map(([key, value]) => `${key}=${value}`).join("  "));
      row.tags.title = row.tags.textContent;
      row.actions.show();
    },
    empty: "There is no instance.",
  });
  fill(root, h("div.controls", null, h("h1", null, title), shown, h("span.grow"), search),
    list.element);
  root.classList.add("fills");

  function refresh() {
    const owners = new Map();
    for (const worker of state.workers.values()) if (worker.ec2_instance_id) owners.set(worker.ec2_instance_id, worker.id);
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    const rows = [...state.instances.values()].map((instance) => ({ ...instance, owner: owners.get(instance.id) }))
      .filter((instance) => {
        const text = [instance.id, instance.region, instance.state, instance.type, instance.public_ip, instance.owner, ...Object.entries(instance.tags).flat()].join("\n").toLowerCase();
        return words.every((word) => text.includes(word));
      });
    setText(shown, rows.length === state.instances.size ? count(rows.length, "instance") : `${rows.length} of ${count(state.instances.size, "instance")}`);
    list.set(rows);
  }

  const stop = subscribe((parts) => { if (parts.has("instances") || parts.has("workers")) refresh(); });
  const timer = setInterval(() => list.draw(), 1000);
  refresh();
  return { search, end() { stop(); clearInterval(timer); list.end(); root.classList.remove("fills"); } };
}
