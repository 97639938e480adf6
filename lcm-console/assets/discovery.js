// Discovery and garbage collection of a controller: the last scans by region, verdicts with their why, and regions whose
// absences are not believed.

import { config, get } from "./api.js";
import { attempt } from "./dialogs.js";
import { card, facts, fill, h, select, table, tile } from "./dom.js";
import { ago, chip, dateTime } from "./format.js";
import { now, state, subscribe } from "./store.js";

export const title = "Discovery";

const since = (at) => (at ? `${dateTime(at)} (${ago(at, now())})` : "never");
const link = (id) => h("a", { href: `#/worker/${encodeURIComponent(id)}` }, id);
const links = (ids) => ids.map((id, index) => [index > 0 && ", ", link(id)]);

export function mount(root) {
  const summary = h("div.summary");
  const regions = h("div");
  const scans = h("div.stack");
  const rest = h("div.stack");
  fill(root, h("div.controls", null, h("h1", null, title)), summary, regions, scans, rest);
  let runs = [];
  let chosen = "";
  let read = null;
  let isOver = false;

  /** Reads the runs when another one has ended. */
  async function load() {
    const ended = state.stats?.discovery?.runs ?? null;
    if (ended === null || ended === read) return;
    read = ended;
    const value = await attempt(() => get(`${config.api}discovery`));
    if (!value || isOver) return;
    runs = value.runs;
    showScans();
  }

  function show() {
    const { stats } = state;
    if (!stats) {
      fill(regions, h("p.empty", null, "Waiting for the server."));
      return;
    }
    const { discovery, untrusted_regions: untrusted = [], records, longest_in_status: longest = {} } = stats;
    const why = new Map(untrusted.map((one) => [one.region, one]));
    const at = (time) => (time ? [ago(time, now()), dateTime(time)] : ["never", ""]);
    fill(summary, discovery && [
      ["Runs", discovery.runs, "since the controller started"], ["Last run", ...at(discovery.last_run_at)], ["Last complete scan", ...at(discovery.last_complete_scan_at)],
      ["Instances found", discovery.found, "by the last run"], ["Imported", discovery.imported, "by all runs"], ["Orphans", discovery.orphans_terminated, "marked terminated by all runs"],
      ["Frozen regions", discovery.frozen_regions.length || "none", discovery.frozen_regions.join(", ")]].map(tile));
    fill(regions, discovery
      ? card("Regions", table(["Region", "Verdict", "Last complete scan", "Found", "Of another fleet", "Imported", "Orphans"], Object.entries(discovery.regions).map(([region, one]) => {
        const word = one.is_frozen ? "frozen" : why.has(region) ? "unknown" : "alive";
        const sentence = one.is_frozen ? "nothing is collected here until a scan looks right again" : why.has(region) ? why.get(region).doubt : "scanned and believed";
        return h("tr", null, h("td", null, h("b", null, region)), h("td", null, chip(word), " ", h("span.dim", null, sentence)), h("td", null, since(one.last_complete_scan_at)), h("td.number", null, one.found), h("td.number", null, one.foreign), h("td.number", null, one.imported), h("td.number", null, one.orphans_terminated));
      }), stats.role === "leader" ? "No region was scanned yet." : "A standby does not scan."))
      : card("Regions", h("p.empty", null, "This controller runs no discovery: the setting is off.")));
    fill(rest,
      card("Untrusted regions", table(["Region", "Why absences are not believed", "Since"], untrusted.map((one) => h("tr", null, h("td", null, h("b", null, one.region)), h("td", null, one.doubt), h("td", null, since(one.since)))), "Every region is trusted: an absence there counts.")),
      card("Longest in a status", table(["Status", "Worker", "For, at the last listing"], Object.entries(longest).map(([status, one]) => h("tr", null, h("td", null, chip(status)), h("td", null, link(one.resource_id)), h("td", null, ago(now() - one.seconds * 1000, now()).replace(" ago", "")))), "Nothing was listed yet.")),
      records && card("Records that cannot be read well", facts([["not managed", records.unreadable], ["with a field without effect", records.degraded]]),
        table(["Worker", "Managed", "Problems"], (records.problems ?? []).map((one) => h("tr", null, h("td", null, one.worker_id ?? "no id"), h("td", null, one.managed ? "yes" : "no"), h("td", null, one.problems.join("; ")))), "Every record is in order.")));
  }

  function showScans() {
    if (runs.length === 0) {
      fill(scans, card("Last scans", h("p.empty", null, "No scan has ended since the controller started.")));
      return;
    }
    const run = runs.find((one) => one.ended_at === chosen) ?? runs[0];
    const picker = select(runs.map((one) => [one.ended_at, `${dateTime(one.ended_at)}${one === runs[0] ? ", the last" : ""}`]), run.ended_at, (value) => { chosen = value === runs[0].ended_at ? "" : value; showScans(); }, { "aria-label": "Scan" });
    fill(scans, card("Last scans", h("div.controls", null, picker), run.error && h("p.bad", null, run.error),
      table(["Region", "Seen", "Imported", "Handed over", "Resurrected", "Of another fleet", "Orphans", "Scan"], run.regions.map((one) => h("tr", null,
        h("td", null, h("b", null, one.region)), h("td.number", null, one.seen), h("td.number", null, one.imported), h("td", null, links(one.handed_over)), h("td", null, links(one.resurrected)), h("td", null, one.foreign.join(", ")), h("td", null, links(one.terminated)),
        h("td", { class: one.is_complete ? "good" : "bad" }, one.error ?? (one.is_complete ? "complete" : "not complete")))), "The run scanned no region.")),
    card("Verdicts", h("p.dim", null, "On every record whose instance the scan did not show alive."),
      table(["Worker", "Instance", "Region", "Verdict", "Why"], run.regions.flatMap((one) => one.verdicts.map((verdict) => h("tr", null,
        h("td", null, link(verdict.worker_id)), h("td", null, verdict.ec2_instance_id), h("td", null, one.region), h("td", null, chip(verdict.conclusion)), h("td", null, verdict.why)))), "The scan showed every recorded instance.", { id: "verdicts" }),
      run.regions.some((one) => one.doubted > one.verdicts.length) && h("p.dim", null, "The first hundred of each region are shown.")));
  }

  const stop = subscribe((parts) => {
    if (!parts.has("stats")) return;
    show();
    load();
  });
  show();
  showScans();
  load();
  return { end() { isOver = true; stop(); } };
}
