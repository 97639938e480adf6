// Scenarios, snapshots, and the settings that clients need.

import { config, get, post, remove, send } from "./api.js";
import { attempt, confirm, copy } from "./dialogs.js";
import { button, card, fill, h } from "./dom.js";
import { dateTime } from "./format.js";
import { state, subscribe } from "./store.js";

export const title = "Setup";

export async function mount(root) {
  const list = h("div.tiles");
  const snapshots = h("div");
  const steps = h("div");
  const exports = h("div");
  const notices = h("div");
  fill(root, h("h1", null, "Scenarios, snapshots and settings"), card("Scenarios", list), snapshots, steps, exports, notices);

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
  const showSteps = () => fill(steps, state.timeline.length > 0 && card("Timeline", h("p.dim", null, "Steps of the scenario that are not taken yet, each at its time on the clock."),
    h("ul.plain", { "aria-label": "Timeline" }, state.timeline.map((due) => h("li", null, h("time.dim", null, dateTime(due.at)), " ", Object.entries(due.step).map(([verb, what]) => `${verb} ${typeof what === "string" ? what : JSON.stringify(what)}`).join(", "))))));
  const stop = subscribe((parts) => {
    if (parts.has("notices")) show();
    if (parts.has("timeline")) showSteps();
  });
  show();
  showSteps();
  return { end: stop };
}

/** Snapshots stay in this tab until they are saved as a file. They are texts: their numbers are larger than those of JavaScript. */
const kept = [];

const masks = (found) => (found.masked?.length ? `; masked: ${found.masked.map((one) => `${one.secret} (now ${one.default})`).join(", ")}` : "");

function showSnapshots(root) {
  const list = h("ul.plain", { "aria-label": "Snapshots" });
  const branches = h("ul.plain", { "aria-label": "Branches" });
  const secrets = h("input", { type: "checkbox" });
  const restore = async (name, text) => {
    if (!await confirm(`Restore ${name}?`, "Instances, records, keys, faults, the clock and the request log of this cloud are replaced.", "Restore", true)) return;
    await attempt(async () => JSON.parse(await send("POST", `${config.api}restore`, text)), (found) => `${name} is restored${masks(found)}`);
  };
  const file = h("input", { type: "file", accept: "application/json", "aria-label": "Restore from a file", onchange: async () => {
    const chosen = file.files[0];
    if (!chosen) return;
    await restore(chosen.name, await chosen.text());
    file.value = "";
  } });
  const show = () => fill(list, kept.map((one) => h("li", null, h("b", null, one.name), " ",
    button("Restore", () => restore(one.name, one.text), { class: "small", "aria-label": `Restore ${one.name}` }), " ",
    button("Save as a file", () => save(one), { class: "small", "aria-label": `Save ${one.name} as a file` }))));
  const page = (one) => {
    const url = new URL(one.page);
    // A cloud that listens on all addresses is reached as this page was.
    url.hostname = location.hostname;
    return url.href;
  };
  const showBranches = async () => {
    const running = await attempt(() => get(`${config.api}branches`));
    if (running) fill(branches, running.map((one) => h("li", null, h("a", { href: page(one), target: "_blank", rel: "noopener" }, `Branch ${one.number}`), " ", h("span.dim", null, one.endpoints.aws_url), " ",
      button("Stop", async () => { if (await attempt(() => remove(`${config.api}branches/${one.number}`), `Branch ${one.number} is stopped`)) await showBranches(); }, { class: "small danger", "aria-label": `Stop branch ${one.number}` }))));
  };
  fill(root, card("Snapshots", h("p.dim", null, "A snapshot holds the whole cloud with its clock. It can be restored here, or in another fake cloud. A branch is another running cloud that goes on from here."),
    h("div.actions", null, button("Take a snapshot", async () => {
      const text = await attempt(() => send("POST", `${config.api}snapshot`, JSON.stringify({ secrets: secrets.checked ? "included" : "masked" })), "Taken");
      if (!text) return;
      kept.unshift({ name: `snapshot ${kept.length + 1}`, text });
      show();
    }, { class: "primary" }), h("label.field", null, h("span", null, "With passwords and tokens"), secrets),
    button("Branch", async () => {
      const started = await attempt(() => post(`${config.api}branch`), (one) => `Branch ${one.number} runs`);
      if (!started) return;
      await showBranches();
      window.open(page(started), "_blank", "noopener");
    }), h("label.field", null, h("span", null, "Restore from a file"), file)), list, branches));
  show();
  showBranches();
}

function save({ name, text }) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  h("a", { href: url, download: `${name.replaceAll(/[ :]/g, "-")}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
