// Times, durations and other values as text.

import { h } from "./dom.js";
import { tone } from "./palette.js";

const two = (number) => String(number).padStart(2, "0");

/** Milliseconds of a time in a text, or of a number. */
export function millis(value) {
  return typeof value === "number" ? value : Date.parse(value);
}

/** A time of day in UTC. */
export function clockTime(at) {
  const time = new Date(at);
  return Number.isNaN(time.getTime()) ? "" : `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}:${two(time.getUTCSeconds())}`;
}

/** A date and a time in UTC. */
export function dateTime(at) {
  const time = new Date(at);
  if (Number.isNaN(time.getTime())) return "";
  return `${time.getUTCFullYear()}-${two(time.getUTCMonth() + 1)}-${two(time.getUTCDate())} ${clockTime(at)}`;
}

/** A duration with its two largest units. */
export function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${seconds % 60} s` : `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A time with the time since then, or until then. */
export function ago(at, now) {
  const ms = millis(at);
  if (at === null || at === undefined || Number.isNaN(ms)) return "";
  return ms > now ? `in ${duration(ms - now)}` : `${duration(now - ms)} ago`;
}

/** Class names of a chip in the color of a word. */
export function chipClass(word) {
  return `chip s-${tone(word)}`;
}

/** A status in its color. */
export function chip(word) {
  return h("span", { class: chipClass(word) }, word || "none");
}

const REASONS = "https://lcm-project.github.io/lcm/reference/reasons/#";

/** A reason code, linked to its documentation. */
export function reasonCode(code) {
  return code && h("a", { href: REASONS + code, target: "_blank", rel: "noreferrer", title: "Documentation of this reason" }, h("code", null, code));
}

/** A number with its noun. */
export function count(number, one, many) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many ?? `${one}s`}`;
}

/** Any JSON value as text. */
export function text(value) {
  if (value === null || value === undefined) return "";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
