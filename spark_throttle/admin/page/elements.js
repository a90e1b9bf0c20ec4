// Elements of the page. Every text in them is data, never markup.

import { percent } from "./numbers.js";

// A text with every character visible: one without a glyph of its own could make a name look like another.
export const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u2800]/gu,
  (character) => `\\u{${character.codePointAt(0).toString(16)}}`);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "title" || name === "aria-label") made.setAttribute(name, visible(value));
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined)
    .map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

// Set a text that differs: one that is set anew is read out anew, and loses its selection.
export function setText(place, text) { if (place.textContent !== text) place.textContent = text; }

// A text of any length: it is cut after a few lines, and whole in its title.
export const long = (text) => element("span", { class: "long", title: text }, text);

const LEVELS = { job: "the job", tenant: "tenant", resource_group: "group", namespace: "namespace" };
export const nameOf = ({ level, scope }) => (level === "job" ? LEVELS.job : `${LEVELS[level]} ${scope}`);

// A part of 1 as a bar beside its number; `most` fills the bar.
export const partMeter = (part, label, { most = 1, text = percent(part * 100) } = {}) => element("div", { class: "service" },
  element("meter", { min: 0, max: 1, value: Math.min(part / most, 1), "aria-label": label }), text);

// A row of a table whose cells say which column they are of, where a narrow window stacks them.
export function row(titles, cells) {
  return element("tr", {}, ...cells.map(([kind, content], at) =>
    element(kind === "head" ? "th" : "td", { class: kind === "head" ? null : kind, scope: kind === "head" ? "row" : null,
      "data-label": titles[at] || null }, content)));
}

// The titles of a table's columns.
export const titlesOf = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.textContent);

// Rows of a table, which keep their elements while their numbers change, so that no focus and no click is lost.
export class Rows {
  constructor(table, head) {
    this.body = table.tBodies[0];
    this.titles = titlesOf(table);
    this.head = head;
    this.rows = new Map();
    this.below = new Map();
  }

  // Show `items`, named by `key`; `cells` gives the class and the content of every cell after the first. Some have an
  // element `below` them, by name, as wide as the table.
  show(items, key, cells, below = new Map()) {
    const kept = new Map();
    for (const item of items) {
      const name = item[key];
      const shown = this.rows.get(name) || element("tr", {}, element("th", { scope: "row", title: name }, this.head(item)));
      const wanted = cells(item);
      while (shown.children.length <= wanted.length) {
        shown.append(element("td", { "data-label": this.titles[shown.children.length] }));
      }
      wanted.forEach(([kind, content], at) => {
        const cell = shown.children[at + 1];
        cell.className = kind;
        if (typeof content !== "string") cell.replaceChildren(content);
        else setText(cell, visible(content));
      });
      kept.set(name, shown);
    }
    const wide = new Map();
    for (const [name, content] of below) {
      const made = () => element("tr", { class: "below" }, element("td", { colspan: this.titles.length }, content));
      const shown = this.below.get(name);
      wide.set(name, shown?.contains(content) ? shown : made());
    }
    for (const [name, shown] of this.rows) if (!kept.has(name)) shown.remove();
    for (const [name, shown] of this.below) if (wide.get(name) !== shown) shown.remove();
    this.rows = kept;
    this.below = wide;
    [...kept].flatMap(([name, shown]) => [shown, wide.get(name)]).filter(Boolean).forEach((shown, at) => {
      if (this.body.children[at] !== shown) this.body.insertBefore(shown, this.body.children[at] || null);
    });
  }
}
