// Starts the console: settings, stream, navigation, theme and keys.

import { config, loadConfig, onKeyNeeded, setKey } from "./api.js";
import * as cml from "./cml.js";
import { mountClock } from "./clock.js";
import { ask } from "./dialogs.js";
import * as discovery from "./discovery.js";
import { fill, h, setText } from "./dom.js";
import * as etcd from "./etcd.js";
import * as faults from "./faults.js";
import * as fleet from "./fleet.js";
import { duration } from "./format.js";
import * as instances from "./instances.js";
import * as queue from "./queue.js";
import * as requests from "./requests.js";
import * as scenarios from "./scenarios.js";
import { follow, state, subscribe } from "./store.js";
import * as worker from "./worker.js";

const $ = (id) => document.getElementById(id);

const SHOWN = {
  "fake-cloud": { fleet, instances, requests, faults, etcd, cml, setup: scenarios },
  controller: { fleet, queue, discovery },
};

let views = {};
let current = null;

async function navigate(event) {
  const [wanted, ...rest] = location.hash.replace(/^#\//, "").split("/").map(decode);
  const isWorker = wanted === "worker" && rest[0] !== undefined;
  const name = isWorker || Object.hasOwn(views, wanted) ? wanted : "fleet";
  const module = isWorker ? worker : views[name];
  current?.end?.();
  current = null;
  const main = $("main");
  main.className = name;
  fill(main);
  for (const link of $("tabs").querySelectorAll("a")) {
    const isHere = link.dataset.view === (isWorker ? "fleet" : name);
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${isWorker ? rest[0] : module.title} · ${config.title}`;
  const place = location.hash;
  const mounted = await module.mount(main, rest);
  if (place !== location.hash) {
    mounted.end?.();
    return;
  }
  current = mounted;
  if (!event) return;
  // The reader of a screen begins at the new view, not at the link that led there.
  const heading = main.querySelector("h1");
  if (heading) heading.tabIndex = -1;
  heading?.focus({ preventScroll: true });
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function showLink() {
  const { link, problem, lostAt, stats } = state;
  const element = $("link");
  setText(element, { connecting: "connecting", live: "live", lost: "connection lost" }[link]);
  element.className = `link ${link}`;
  const lost = $("lost");
  lost.hidden = link !== "lost";
  if (link === "lost") setText(lost, `Connection lost for ${duration(Date.now() - lostAt)}: ${problem}. The page shows the last known state and connects again by itself.`);
  document.body.classList.toggle("stale", link === "lost");
  setText($("place"), stats ? `${config.title} ${stats.instance_id}` : config.title);
}

function mountTheme() {
  const themes = ["auto", "light", "dark"];
  const button = $("theme");
  const show = (theme) => {
    if (theme === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.setAttribute("data-theme", theme);
    setText(button, { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" }[theme]);
    fleet.forgetColors();
  };
  let theme = localStorage.getItem("lcm-theme") ?? "auto";
  if (!themes.includes(theme)) theme = "auto";
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    localStorage.setItem("lcm-theme", theme);
    show(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => fleet.forgetColors());
}

function press(event) {
  const isTyping = event.target.closest?.("input, textarea, select, dialog");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && current?.search) {
    event.preventDefault();
    current.search.focus();
  } else if (/^[1-9]$/.test(event.key)) {
    const link = $("tabs").querySelectorAll("a")[Number(event.key) - 1];
    if (link) location.hash = link.getAttribute("href");
  }
}

let asking = null;

function askForKey() {
  asking ??= ask({ title: "Admin key", text: "This server accepts remote requests, and asks for its key. It is kept until this tab is closed.", fields: [{ name: "key", label: "Key", type: "password", required: true }], action: "Continue" })
    .then((values) => {
      if (values) setKey(values.key);
      return values !== null;
    })
    .finally(() => { asking = null; });
  return asking;
}

async function start() {
  mountTheme();
  onKeyNeeded(askForKey);
  await loadConfig();
  views = SHOWN[config.server];
  fill($("tabs"), Object.entries(views).map(([name, view], index) => h("a", { href: `#/${name}`, "data-view": name, title: `Key ${index + 1}` }, view.title)));
  if (config.server === "fake-cloud") mountClock($("toolbar"));
  subscribe((parts) => { if (parts.has("link") || parts.has("stats")) showLink(); });
  setInterval(() => { if (state.link === "lost") showLink(); }, 1000);
  addEventListener("hashchange", navigate);
  addEventListener("keydown", press);
  showLink();
  navigate();
  follow();
}

start().catch((error) => {
  fill($("main"), h("p.empty", null, `The console cannot start: ${error.message}. Reload the page to try again.`));
});
