// The exceptions of all entries: those in force, the first to end in front, then those that have ended.

import { call } from "./client.js";
import { long, row, titlesOf } from "./elements.js";
import { when } from "./history.js";
import { some } from "./numbers.js";
import { setsText } from "./policy_fields.js";

const MOST = 50;

export class Exceptions {
  constructor() {
    this.root = document.getElementById("exceptions");
    this.about = document.getElementById("exceptions-about");
    this.table = this.root.querySelector("table");
    this.shown = "";
  }

  forget() {
    this.shown = "";
    this.root.hidden = true;
    this.about.textContent = "";
    this.table.tBodies[0].replaceChildren();
  }

  async read() {
    const { value } = await call(`/admin/v2/exceptions?limit=${MOST}`);
    const shown = JSON.stringify(value);
    if (shown === this.shown) return;
    this.shown = shown;
    const { exceptions, in_force: current, ended } = value;
    this.root.hidden = !exceptions.length;
    this.about.textContent = `${some(current, "exception")} in force, ${ended} ended`
      + (current + ended > MOST ? `; the first ${MOST} are shown.` : ".");
    const titles = titlesOf(this.table);
    this.table.tBodies[0].replaceChildren(...exceptions.map((each) => row(titles, [
      ["head", long(each.path)], ["", each.state === "in_force" ? "in force" : "ended"], ["", when(each.until_ms)],
      ["text", setsText(each.sets)], ["text", long(each.reason)],
    ])));
  }
}
