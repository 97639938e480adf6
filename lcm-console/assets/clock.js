// The clock of the fake cloud, shown in every view: pause, pace, steps, and on to the next event.

import { config, post } from "./api.js";
import { attempt } from "./dialogs.js";
import { button, h, setText } from "./dom.js";
import { dateTime, duration } from "./format.js";
import { now, state, subscribe } from "./store.js";

/** Puts the clock into the toolbar. */
export function mountClock(toolbar) {
  const api = config.api;
  const time = h("b.time", { id: "time" });
  const next = h("span.dim.next", { id: "next" });
  const set = (pace, text) => () => attempt(() => post(`${api}clock`, { pace }), text);
  const paces = [
    ["manual", button("Pause", set("manual", "The clock is paused"), { title: "Stand still" })],
    ["real", button("×1", set("real"), { title: "The pace of real time" })],
    ["x60", button("×60", set("x60"), { title: "An hour takes a minute" })],
  ];
  const step = (seconds) => () => attempt(() => post(`${api}clock/advance`, { seconds }));
  const toNext = button("Next event", () => attempt(() => post(`${api}clock/next`), (value) => (value.event ? `${value.event.what}, ${duration(value.advanced_seconds * 1000)} later` : "Nothing is due")), { id: "to-next" });
  toolbar.append(
    h("div.clock", { role: "group", "aria-label": "Clock" }, time, h("div.group", null, paces.map(([, element]) => element)),
      h("div.group", null, button("+1 min", step(60)), button("+1 h", step(3600)), toNext)),
    next);
  const show = () => {
    setText(time, dateTime(now()));
    const { pace, next: event } = state.clock;
    for (const [name, element] of paces) {
      element.classList.toggle("on", name === pace);
      element.setAttribute("aria-pressed", name === pace);
    }
    toNext.disabled = !event;
    const left = event ? Date.parse(event.at) - now() : 0;
    setText(next, event ? `${event.what} in ${duration(left)}` : "nothing is due");
  };
  subscribe((parts) => { if (parts.has("clock")) show(); });
  setInterval(show, 200);
  show();
}
