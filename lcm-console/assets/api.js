// Requests to the server of the page.

const KEY = "lcm-admin-key";

/** The settings that the server gives to the page. */
export let config = { server: "", api: "", stream: "" };

export async function loadConfig() {
  const response = await fetch("./config.json", { cache: "no-store" });
  if (!response.ok) throw new Error(`config.json: ${response.status}`);
  config = await response.json();
  return config;
}

/** Keeps the admin key until the tab is closed. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

export function headers(more) {
  const key = sessionStorage.getItem(KEY);
  return { ...more, ...(key ? { "x-api-key": key } : {}) };
}

/** An error response of the server, with its sentence. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

let askForKey = async () => false;

/** Sets the function that asks for the admin key. It returns whether there is one. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Asks for the admin key after a rejection. */
export function keyNeeded() {
  return askForKey();
}

/** Sends a request and returns the JSON of the response. */
export async function call(method, path, body) {
  const text = await send(method, path, body === undefined ? undefined : JSON.stringify(body));
  return parsed(text);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Sends a request with a text and returns the text of the response. */
export async function send(method, path, body) {
  for (;;) {
    const response = await fetch(path, {
      method,
      cache: "no-store",
      headers: headers(body === undefined ? {} : { "content-type": "application/json" }),
      body,
    }).catch(() => { throw new ApiError(0, "the server cannot be reached"); });
    const text = await response.text();
    if (response.ok) return text;
    if (response.status === 401 && await askForKey()) continue;
    throw new ApiError(response.status, parsed(text)?.error ?? `the server responded with ${response.status}`);
  }
}

export const get = (path) => call("GET", path);
export const post = (path, body) => call("POST", path, body ?? {});
export const remove = (path) => call("DELETE", path);

/** A segment of a path. */
export const segment = (text) => encodeURIComponent(text);
