// Scenarios, snapshots, and the settings that clients need.

import { call, config, get, post } from "./api.js";
import { attempt, confirm, copy } from "./dialogs.js";
import { button, card, fill, h } from "./dom.js";
import { state, subscribe } from "./store.js";

export const title = "Setup";

export async function mount(root) {
  const list = h("div.tiles");
  const snapshots = h("div");
  const exports = h("div");
  const notices = h("div");
  fill(root, h("h1", null, "Scenarios, snapshots and settings"), card("Scenarios", list), snapshots, exports, notices);

  const replace = (name, run) => async () => {
    if (await confirm(`Load ${name}?`, "Instances, records, keys, faults and the request log of this cloud are replaced.", "Load", true)) {
      await attempt(run, `${name} is loaded`);
    }
  };

  const setup = await attempt(() => get(`${config.api}ui/setup`));
  if (!setup) return { end() {} };
  fill(list, setup.scenarios.map((one) => h("div.tile.tall", null, h("b", null, one.name), h("p.dim", null, one.about), button("Load", replace(one.name, () => post(`${config.api}ui/scenario`, { name: one.name })), { "aria-label": `Load ${one.name}` }))),
    h("div.tile.tall", null, h("b", null, "As at startup"), h("p.dim", null, "The scenario that the program was started with; empty if there was none."), button("Reset", replace("the start", () => post(`${config.api}reset`)))),
    h("div.tile.tall", null, h("b", null, "Empty"), h("p.dim", null, "No instances, records or keys."), button("Empty", replace("an empty cloud", () => post(`${config.api}reset`, { to: "empty" })))));
  if (setup.routes.includes("POST /_fake/snapshot") && setup.routes.includes("POST /_fake/restore")) showSnapshots(snapshots);
  const lines = Object.entries(setup.environment).map(([name, value]) => `export ${name}=${/^[\w\-.:/]+$/.test(value) ? value : `'${value.replaceAll("'", "'\\''")}'`}`);
  if (lines.length) fill(exports, card("Settings for clients", h("p.dim", null, "For the AWS CLI, boto3, etcdctl, virl2_client and a controller. The credentials are those of this fake."), h("pre.code", { id: "exports", tabIndex: 0 }, lines.join("\n")), h("div.actions", null, button("Copy", () => copy(lines.join("\n")), { class: "primary" }))));

  const show = () => fill(notices, state.notices.length > 0 && card("Notices", h("ul.plain", null, state.notices.slice(-50).reverse().map((notice) => h("li", null, h("time.dim", null, notice.at), " ", notice.text)))));
  const stop = subscribe((parts) => { if (parts.has("notices")) show(); });
  show();
  return { end: stop };
}

/** Snapshots stay in this tab until they are saved as a file. */
const kept = [];

function showSnapshots(root) {
  const list = h("ul.plain");
  const file = h("input", { type: "file", accept: "application/json", "aria-label": "Restore from a file", onchange: async () => {
    const chosen = file.files[0];
    if (!chosen) return;
    const text = await chosen.text();
    await attempt(() => call("POST", `${config.api}restore`, JSON.parse(text)), `${chosen.name} is restored`);
    file.value = "";
  } });
  const show = () => fill(list, kept.map((one) => h("li", null, h("b", null, one.name), " ",
    button("Restore", () => attempt(() => post(`${config.api}restore`, one.value), `${one.name} is restored`), { class: "small" }),
    button("Save as a file", () => save(one), { class: "small" }))));
  fill(root, card("Snapshots", h("p.dim", null, "A snapshot holds the whole cloud with its clock. It can be restored here, or in another fake cloud."),
    h("div.actions", null, button("Take a snapshot", async () => {
      const value = await attempt(() => post(`${config.api}snapshot`), "Taken");
      if (!value) return;
      kept.unshift({ name: `snapshot ${new Date().toISOString().slice(11, 19)}`, value });
      show();
    }, { class: "primary" }), h("label.field", null, h("span", null, "Restore from a file"), file)), list));
  show();
}

function save({ name, value }) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value)], { type: "application/json" }));
  h("a", { href: url, download: `${name.replaceAll(/[ :]/g, "-")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
