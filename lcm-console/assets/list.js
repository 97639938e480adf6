// A list of any length that has elements for the visible rows only. Arrow keys move, Enter opens.

import { h } from "./dom.js";

export class List {
  /**
   * `make()` returns a new row with an element; `show(row, item, index)` fills it; `open(item)` is optional.
   * `key(item)` identifies an item, so that the selection follows it.
   */
  constructor({ label, height, make, show, open, key, empty }) {
    Object.assign(this, { height, make, show, open, key, items: [], rows: [], selected: null });
    this.space = h("div.space", { role: "presentation" });
    this.nothing = h("p.empty", { hidden: true }, empty);
    this.element = h("div.list", {
      role: "grid", "aria-label": label, "aria-rowcount": 0, tabIndex: 0,
      onscroll: () => this.request(), onkeydown: (event) => this.press(event), onclick: (event) => this.click(event),
    }, this.nothing, this.space);
    this.observer = new ResizeObserver(() => {
      // The headings end where the rows do, beside the scroll bar.
      const head = this.element.previousElementSibling;
      if (head) head.style.paddingRight = `${this.element.offsetWidth - this.element.clientWidth}px`;
      this.request();
    });
    this.observer.observe(this.element);
  }

  /** Shows other items. */
  set(items) {
    this.items = items;
    this.element.setAttribute("aria-rowcount", items.length);
    this.space.style.height = `${items.length * this.height}px`;
    this.nothing.hidden = items.length > 0;
    this.draw();
  }

  request() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  }

  draw() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.height) - 2);
    const visible = Math.ceil((this.element.clientHeight || 400) / this.height) + 4;
    const count = Math.max(0, Math.min(this.items.length - first, visible));
    while (this.rows.length < count) {
      const row = this.make();
      row.element.classList.add("row");
      row.element.setAttribute("role", "row");
      this.rows.push(row);
      this.space.append(row.element);
    }
    while (this.rows.length > count) this.rows.pop().element.remove();
    let active = null;
    this.rows.forEach((row, place) => {
      const index = first + place;
      const item = this.items[index];
      row.index = index;
      row.item = item;
      row.element.style.transform = `translateY(${index * this.height}px)`;
      row.element.setAttribute("aria-rowindex", index + 1);
      row.element.id ||= `row-${(List.number += 1)}`;
      const isSelected = this.key(item) === this.selected;
      row.element.classList.toggle("selected", isSelected);
      row.element.setAttribute("aria-selected", isSelected);
      if (isSelected) active = row.element.id;
      this.show(row, item, index);
    });
    if (active) this.element.setAttribute("aria-activedescendant", active);
    else this.element.removeAttribute("aria-activedescendant");
  }

  click(event) {
    const row = this.rows.find((one) => one.element.contains(event.target));
    if (!row || event.target.closest("button, a, select")) return;
    this.selected = this.key(row.item);
    this.open?.(row.item);
    this.draw();
  }

  press(event) {
    if (event.target !== this.element || this.items.length === 0) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.height) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const at = this.items.findIndex((item) => this.key(item) === this.selected);
    if (event.key in steps) {
      event.preventDefault();
      const from = at < 0 ? (steps[event.key] > 0 ? -1 : 0) : at;
      this.move(Math.max(0, Math.min(this.items.length - 1, from + steps[event.key])));
    } else if (event.key === "Enter" && at >= 0 && this.open) {
      event.preventDefault();
      this.open(this.items[at]);
    }
  }

  move(index) {
    this.selected = this.key(this.items[index]);
    const top = index * this.height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.element.scrollTop = top + this.height - clientHeight;
    this.draw();
  }

  end() {
    this.observer.disconnect();
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}

List.number = 0;
