// The watched jobs at a glance, where there are several: those that need somebody first.

import { Rows, element, setText } from "./elements.js";
import { count, duration, some } from "./numbers.js";

export class Jobs {
  constructor({ onChosen }) {
    this.section = document.getElementById("jobs");
    this.about = document.getElementById("jobs-about");
    this.rows = new Rows(document.getElementById("jobs-table"), ({ job }) => element("button", { type: "button",
      class: "name", "aria-label": `Show the job ${job}`, onclick: () => onChosen(job) }, job));
  }

  forget() {
    this.section.hidden = true;
    this.about.textContent = "";
    this.rows.show([], "job", () => []);
  }

  show(jobs) {
    this.section.hidden = jobs.length < 2;
    if (this.section.hidden) return;
    const wrong = jobs.filter((job) => !job.listening || job.problem).length;
    setText(this.about, wrong ? `${count(wrong)} of ${some(jobs.length, "job")} ${wrong === 1 ? "needs" : "need"} somebody.`
      : `All ${count(jobs.length)} jobs report.`);
    const numbers = (job) => job.scopes.find(({ level }) => level === "job") ?? {};
    const rank = (job) => [job.listening && !job.problem ? 1 : 0, -(numbers(job).oldest_waiting_ms ?? -1)];
    const sorted = [...jobs].sort((one, other) => rank(one)[0] - rank(other)[0] || rank(one)[1] - rank(other)[1]);
    this.rows.show(sorted, "job", (job) => {
      const all = numbers(job);
      return [
        [`state ${job.listening && !job.problem ? "good" : "warn"}`, job.state],
        ["number", job.batch < 0 ? "–" : `${duration(job.batch_age_ms)} ago`],
        ["number", count(all.waiting_messages)], ["number", duration(all.oldest_waiting_ms)],
        ["number", count(all.rejected_messages)], ["number", count(job.store_revision)],
        ["text", job.listening ? job.problem ?? "–" : job.life],
      ];
    });
  }
}
