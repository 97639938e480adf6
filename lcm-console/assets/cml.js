// CML servers of the instances.

import { config, post } from "./api.js";
import { attempt, confirm } from "./dialogs.js";
import { button, fill, h, setText, table } from "./dom.js";
import { count } from "./format.js";
import { state, subscribe } from "./store.js";

export const title = "CML";

export function mount(root) {
  const shown = h("span.dim", { "aria-live": "polite" });
  const servers = h("div");
  fill(root, h("div.controls", null, h("h1", null, "CML servers"), shown), servers);

  function show() {
    const rows = [...state.cml.values()];
    const owners = new Map([...state.workers.values()].map((worker) => [worker.ec2_instance_id, worker]));
    setText(shown, `${count(rows.length, "server")}, ${rows.filter((one) => one.listening).length} listening`);
    fill(servers, table(["Instance", "Worker", "Address", "Version", "Stage", "Listening", "Labs", "Problem", ""], rows.slice(0, 500).map((one) => {
      const worker = owners.get(one.id);
      return h("tr", null, h("td", null, h("b", null, one.id)), h("td", null, worker ? h("a", { href: `#/worker/${encodeURIComponent(worker.id)}` }, worker.name || worker.id) : ""),
        h("td", null, one.address ?? ""), h("td", null, one.version), h("td", null, one.stage), h("td", null, h("span", { class: one.listening ? "good" : "dim" }, one.listening ? "yes" : "no")), h("td.number", null, one.labs), h("td.bad", null, one.problem ?? ""),
        h("td", null, button("Wipe", async () => {
          if (await confirm(`Wipe the CML server of ${one.id}?`, "Its labs, logins and license are gone.", "Wipe", true)) await attempt(() => post(`${config.api}console/cml/wipe`, { instance: one.id }), `${one.id} is wiped`);
        }, { class: "small danger", "aria-label": `Wipe the CML server of ${one.id}` })));
    }), "No CML server: no instance has run yet."), rows.length > 500 && h("p.dim", null, `${rows.length - 500} more are not shown.`));
  }

  const stop = subscribe((parts) => { if (parts.has("cml") || parts.has("workers")) show(); });
  show();
  return { end: stop };
}
