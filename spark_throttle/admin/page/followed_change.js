// A change made on this page is followed: from the commit to the first batch that it acted in.

import { element, setText } from "./elements.js";
import { some } from "./numbers.js";

export class FollowedChange {
  constructor() {
    this.text = element("p", {});
    this.notes = element("ul", { class: "notes" });
    this.root = element("div", { class: "acted", role: "status", hidden: true }, this.text, this.notes);
    this.change = null;
  }

  // Begin to follow a change that the server has answered.
  begin(answer) {
    this.change = answer.changed ? answer : null;
    delete this.root.dataset.batches;
    this.root.hidden = false;
    this.say(answer.changed ? `Revision ${answer.revision} is committed.` : "Nothing was changed: it said that already.");
    this.notes.replaceChildren(...answer.notes.map((note) => element("li", {}, note)));
  }

  forget() {
    this.change = null;
    this.root.hidden = true;
    this.text.textContent = "";
    this.notes.replaceChildren();
  }

  say(text) { setText(this.text, text); }

  show(job) {
    if (!this.change) return;
    const { revision, acting } = this.change;
    const before = acting.find((entry) => entry.job === job.job);
    if (!before) return;
    if (job.store_revision === null) {
      this.say(`Revision ${revision} is committed, but the job ${job.job} does not follow the store.`);
      return;
    }
    const unheard = `Revision ${revision} is committed, but no job is listening: ${job.life}.`;
    if (job.store_revision < revision) {
      this.say(!job.listening ? unheard
        : job.problem ? `Revision ${revision} is committed but not in force: ${job.problem}`
          : `Revision ${revision} is committed; the next batch of ${job.job} will have it.`);
      return;
    }
    const later = job.recent.filter((batch) => batch.epoch > before.planned_epoch);
    const at = later.findIndex((batch) => batch.revision === job.revision);
    if (at < 0) {
      this.say(!job.listening ? unheard : `Revision ${revision} is in force; the batch that has it is running.`);
      return;
    }
    this.say(`Revision ${revision} has acted since batch ${later[at].batch}: ${some(at + 1, "batch", "batches")} after the change.`);
    this.root.dataset.batches = String(at + 1);
    this.change = null;
  }
}
