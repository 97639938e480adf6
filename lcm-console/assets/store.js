// The state that the server streams, and the views that show it.

import { config, headers, keyNeeded } from "./api.js";
import { millis } from "./format.js";

/** Most requests that are kept. */
const MAX_REQUESTS = 5000;
/** Time without a byte after which the connection counts as lost. The server sends a comment every few seconds. */
const SILENCE = 20_000;
/** Shortest time between two updates of a view. */
const FRAME = 120;

export const state = {
  /** connecting, live or lost */
  link: "connecting",
  lostAt: 0,
  problem: "",
  /** Time of the server at `clock.read`, and its pace. */
  clock: { now: Date.now(), read: performance.now(), factor: 1, pace: "real", next: null },
  workers: new Map(),
  instances: new Map(),
  /** Instances that are gone, with the worker that owned them. */
  past: new Map(),
  requests: [],
  total: 0,
  faults: [],
  notices: [],
  etcd: null,
  /** Leaders of the fleet, as their keys in etcd show them. */
  leaders: [],
  /** Steps of the scenario that are not taken yet. */
  timeline: [],
  cml: new Map(),
  /** Statistics of a controller. */
  stats: null,
  /** What was requested over the server of a controller, the newest first. */
  operations: [],
  generation: 0,
};

const listeners = new Set();

/** Calls `listener` at most a few times a second after changes, with the names of the changed parts. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

let changed = new Set();
let timer = 0;
let last = 0;

export function touch(...parts) {
  parts.forEach((part) => changed.add(part));
  if (timer) return;
  const wait = Math.max(0, last + FRAME - performance.now());
  timer = setTimeout(() => requestAnimationFrame(() => {
    timer = 0;
    last = performance.now();
    const parts = changed;
    changed = new Set();
    for (const listener of [...listeners]) listener(parts);
  }), wait);
}

/** The current time of the server, in milliseconds. */
export function now() {
  const { now: at, read, factor } = state.clock;
  return at + (performance.now() - read) * factor;
}

function setClock(clock) {
  const at = millis(clock.now);
  state.clock = { ...state.clock, ...clock, now: at, read: performance.now() };
}

function merge(map, rows) {
  for (const [id, row] of Object.entries(rows)) {
    if (row === null) {
      map.delete(id);
    } else {
      map.set(id, { id, ...row });
    }
  }
}

/** Applies a message of the stream. */
export function apply(message) {
  const parts = [];
  if (message.full) {
    state.workers.clear();
    state.instances.clear();
    state.cml.clear();
    state.past.clear();
    state.requests = [];
    state.total = 0;
    state.generation += 1;
    parts.push("workers", "instances", "requests", "cml");
  }
  if (message.clock) {
    setClock(message.clock);
    parts.push("clock");
  }
  if (message.workers) {
    merge(state.workers, message.workers);
    parts.push("workers");
  }
  if (message.instances) {
    merge(state.instances, message.instances);
    parts.push("instances");
  }
  if (message.requests) {
    if (message.requests.cleared) state.requests = [];
    state.requests.push(...message.requests.latest);
    if (state.requests.length > MAX_REQUESTS) state.requests.splice(0, state.requests.length - MAX_REQUESTS);
    state.total = message.requests.total;
    parts.push("requests");
  }
  if (message.cml) {
    merge(state.cml, message.cml);
    parts.push("cml");
  }
  if (message.past) {
    state.past = new Map(Object.entries(message.past).map(([id, row]) => [id, { id, ...row, owner: row.owner ?? ownerOf(id) }]));
    parts.push("instances");
  }
  for (const part of ["faults", "notices", "etcd", "leaders", "timeline", "stats", "operations"]) {
    if (message[part] !== undefined) {
      state[part] = message[part];
      parts.push(part);
    }
  }
  touch(...parts);
}

function ownerOf(instance) {
  for (const worker of state.workers.values()) if (worker.ec2_instance_id === instance) return worker.id;
  return undefined;
}

function setLink(link, problem = "") {
  if (state.link === link && state.problem === problem) return;
  if (link === "lost" && state.link !== "lost") state.lostAt = Date.now();
  state.link = link;
  state.problem = problem;
  touch("link");
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const visible = () => new Promise((resolve) => {
  if (!document.hidden) resolve();
  else document.addEventListener("visibilitychange", resolve, { once: true });
});

/** Follows the stream for ever, and connects again after it ends. */
export async function follow() {
  let wait = 500;
  for (;;) {
    // A hidden page gives its connection back: a browser opens few to one server.
    await visible();
    const control = new AbortController();
    const hide = () => { if (document.hidden) control.abort("hidden"); };
    document.addEventListener("visibilitychange", hide);
    try {
      const response = await fetch(config.stream, { cache: "no-store", headers: headers({ accept: "text/event-stream" }), signal: control.signal });
      if (response.status === 401) {
        setLink("lost", "the server asks for the admin key");
        if (await keyNeeded()) continue;
      }
      if (!response.ok) {
        const problem = await response.json().catch(() => null);
        throw new Error(problem?.error ?? `the server responded with ${response.status}`);
      }
      await read(response.body.getReader(), control, () => { wait = 500; });
      throw new Error("the server ended the stream");
    } catch (error) {
      if (control.signal.reason !== "hidden") {
        const isKnown = error instanceof Error && !(error instanceof TypeError);
        setLink("lost", isKnown ? error.message : "the server cannot be reached");
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
      control.abort();
    }
    await sleep(document.hidden ? 0 : wait);
    wait = Math.min(wait * 1.6, 5000);
  }
}

async function read(reader, control, onMessage) {
  const decoder = new TextDecoder();
  let buffer = "";
  for (;;) {
    const silence = setTimeout(() => control.abort("silence"), SILENCE);
    const { done, value } = await reader.read().finally(() => clearTimeout(silence));
    if (done) return;
    buffer += decoder.decode(value, { stream: true });
    const messages = buffer.split("\n\n");
    buffer = messages.pop();
    for (const message of messages) {
      const data = message.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5)).join("\n");
      if (data) {
        apply(JSON.parse(data));
        onMessage();
      }
      setLink("live");
    }
  }
}
