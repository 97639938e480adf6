// Colors of statuses and instance states. The same as `lcm.palette`; a test compares the two.

export const STATUSES = [
  "pending", "provisioning", "starting", "running", "draining", "stopping", "stopped", "terminating", "terminated",
  "failed", "unknown",
];

export const LIKE = {
  "shutting-down": "terminating",
  success: "running",
  requeue: "starting",
  retry: "failed",
  skip: "stopped",
  orphan: "terminated",
  alive: "running",
  young: "draining",
  protected: "starting",
  frozen: "provisioning",
  deferred: "stopping",
};

const known = new Set(STATUSES);

/** The status whose color a word has. */
export function tone(word) {
  const status = Object.hasOwn(LIKE, word) ? LIKE[word] : word;
  return known.has(status) ? status : "stopped";
}

let colors;

/** Background and text color of a word, for a canvas. */
export function color(word) {
  if (!colors) {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    colors = new Map(STATUSES.map((status) => [status, [value(`--${status}`), value(`--${status}-ink`)]]));
  }
  return colors.get(tone(word));
}
