// A list of any length that has elements for the visible rows only. Arrow keys move, Enter opens.

import { h } from "./dom.js";

export class List {
  /**
   * `make()` returns a new row with an element; `show(row, item, index)` fills it; `open(item)` is optional.
   * `key(item)` identifies an item: the selection follows it, and so does the row, with the focus in it.
   * `headings` are texts or elements; `kind` is a class of the grid.
   */
  constructor({ label, height, make, show, open, key, empty, headings, kind }) {
    Object.assign(this, { height, make, show, open, key, items: [], rows: [], selected: null });
    this.space = h("div.space", { role: "rowgroup" });
    this.nothing = h("p.empty", { hidden: true }, empty);
    this.body = h("div.list", { role: "presentation", tabIndex: -1, onscroll: () => this.request() }, this.nothing, this.space);
    this.head = h("div.lane-head", { role: "row", "aria-rowindex": 1 }, headings.map(columnHeader));
    this.element = h("div.lanes", {
      class: kind, role: "grid", "aria-label": label, "aria-rowcount": 1, "aria-colcount": headings.length, tabIndex: 0,
      onkeydown: (event) => this.press(event), onclick: (event) => this.click(event),
    }, this.head, this.body);
    this.observer = new ResizeObserver(() => {
      // The headings end where the rows do, beside the scroll bar.
      this.head.style.paddingRight = `${this.body.offsetWidth - this.body.clientWidth}px`;
      this.request();
    });
    this.observer.observe(this.body);
  }

  /** Shows other items. */
  set(items) {
    this.items = items;
    this.element.setAttribute("aria-rowcount", items.length + 1);
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
    const first = Math.max(0, Math.floor(this.body.scrollTop / this.height) - 2);
    const visible = Math.ceil((this.body.clientHeight || 400) / this.height) + 4;
    this.place(this.items.slice(first, first + visible));
    let active = null;
    this.rows.forEach((row, place) => {
      const index = first + place;
      row.index = index;
      row.element.style.transform = `translateY(${index * this.height}px)`;
      row.element.setAttribute("aria-rowindex", index + 2);
      const isSelected = row.key === this.selected;
      row.element.classList.toggle("selected", isSelected);
      row.element.setAttribute("aria-selected", isSelected);
      if (isSelected) active = row.element.id;
      this.show(row, row.item, index);
    });
    if (active) this.element.setAttribute("aria-activedescendant", active);
    else this.element.removeAttribute("aria-activedescendant");
  }

  /** Gives each item a row. An item keeps its row: a button that has the focus never acts on another item. */
  place(items) {
    const before = new Map(this.rows.map((row) => [row.key, row]));
    const rows = items.map((item) => {
      const key = this.key(item);
      const row = before.get(key);
      before.delete(key);
      return { key, item, row };
    });
    const spare = [];
    for (const row of before.values()) {
      if (row.element.contains(document.activeElement)) {
        row.element.remove();
        this.element.focus({ preventScroll: true });
      } else {
        spare.push(row);
      }
    }
    this.rows = rows.map(({ key, item, row }) => Object.assign(row ?? spare.pop() ?? this.makeRow(), { key, item }));
    for (const row of spare) row.element.remove();
    // In the order of the items, for the Tab key and screen readers. The row with the focus would lose it by a move.
    let next = this.space.firstChild;
    for (const { element } of this.rows) {
      while (next && next !== element && element.contains(document.activeElement)) {
        const moved = next;
        next = next.nextSibling;
        this.space.append(moved);
      }
      if (next === element) next = next.nextSibling;
      else this.space.insertBefore(element, next);
    }
  }

  makeRow() {
    const row = this.make();
    row.element.classList.add("row");
    row.element.setAttribute("role", "row");
    row.element.id = `row-${(List.number += 1)}`;
    return row;
  }

  click(event) {
    const row = this.rows.find((one) => one.element.contains(event.target));
    if (!row || event.target.closest("button, a, select")) return;
    this.element.focus({ preventScroll: true });
    this.selected = row.key;
    this.open?.(row.item);
    this.draw();
  }

  press(event) {
    if ((event.target !== this.element && event.target !== this.body) || this.items.length === 0) return;
    const page = Math.max(1, Math.floor(this.body.clientHeight / this.height) - 1);
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
    const { scrollTop, clientHeight } = this.body;
    if (top < scrollTop) this.body.scrollTop = top;
    else if (top + this.height > scrollTop + clientHeight) this.body.scrollTop = top + this.height - clientHeight;
    this.draw();
  }

  end() {
    this.observer.disconnect();
    if (this.frame) cancelAnimationFrame(this.frame);
  }
}

List.number = 0;

function columnHeader(heading) {
  if (!(heading instanceof Node)) return h("span", { role: "columnheader" }, heading);
  heading.setAttribute("role", "columnheader");
  return heading;
}
