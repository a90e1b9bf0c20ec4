// The store's changes, newest first, and the way back to one of them.

import { call } from "./client.js";
import { rollBack, showChange } from "./confirm.js";
import { element, long, row, titlesOf } from "./elements.js";
import { count } from "./numbers.js";
import { mergedHistory } from "./policy_fields.js";

const PAGE = 10;

export class History {
  constructor({ onChanged, onProblem }) {
    Object.assign(this, { onChanged, onProblem, isAdmin: false, entries: [], hasOlder: false, shown: "" });
    this.table = document.getElementById("history");
    this.older = document.getElementById("older");
    this.older.addEventListener("click", () => this.showOlder());
  }

  forget() {
    Object.assign(this, { entries: [], hasOlder: false, shown: "" });
    this.table.tBodies[0].replaceChildren();
  }

  async read() {
    const { value } = await call(`/admin/v2/history?limit=${PAGE}`);
    const merged = mergedHistory(this.entries, value);
    if (merged === value) this.hasOlder = value.length === PAGE;
    this.entries = merged;
    this.show();
  }

  // The newest revision at a time, which a batch that was planned then has; null if it is older than what is shown.
  revisionAt(ms) { return this.entries.find((entry) => entry.at_ms <= ms)?.revision ?? null; }

  async showOlder() {
    this.older.disabled = true;
    try {
      const { value } = await call(`/admin/v2/history?before=${this.entries.at(-1).revision}&limit=${PAGE}`);
      this.entries = [...this.entries, ...value];
      this.hasOlder = value.length === PAGE;
      this.show();
    } catch (error) {
      this.onProblem(error);
    }
    this.older.disabled = false;
  }

  show() {
    const { entries, isAdmin } = this;
    this.older.hidden = !this.hasOlder || entries.at(-1)?.revision === 1;
    document.getElementById("no-history").hidden = entries.length > 0;
    this.table.hidden = !entries.length;
    const shown = `${entries.map((entry) => entry.revision)} ${isAdmin}`;
    if (this.shown === shown) return;  // a button that has the focus stays
    this.shown = shown;
    const titles = titlesOf(this.table);
    this.table.tBodies[0].replaceChildren(...entries.map((entry, at) => row(titles, [
      ["number", count(entry.revision)],
      ["", when(entry.at_ms)],
      ["", long(entry.who)], ["", long([entry.door, entry.caller].filter(Boolean).join(": ") || "–")],
      ["", element("span", {}, long(entry.why || "–"), ...entry.exceptions.map(({ path, done, until, reason }) =>
        element("small", { class: "exception" }, `${path}: exception ${done}, until ${until} (${reason})`)))], ["number", element("button", { type: "button", class: "name", "aria-label": `${entry.changes}: what revision ${entry.revision} changed`,
        onclick: () => showChange(entry).catch(this.onProblem) }, count(entry.changes))],
      ["", element("button", { type: "button", hidden: !isAdmin || at === 0,
        "aria-label": `Roll back to revision ${entry.revision}`, onclick: () => this.goBack(entry.revision), title: `Make all entries as they were at revision ${entry.revision}` }, "Roll back")],
    ])));
  }

  async goBack(revision) {
    try {
      await rollBack(revision);
      await this.onChanged();
    } catch (error) {
      await this.onChanged();
      this.onProblem(error);
    }
  }
}

// A time that breaks only between the day and the hour.
export function when(ms) {
  const [day, time] = new Date(ms).toISOString().slice(0, 19).split("T");
  return element("span", {}, element("span", { class: "whole" }, day), " ", element("span", { class: "whole" }, `${time} UTC`));
}
