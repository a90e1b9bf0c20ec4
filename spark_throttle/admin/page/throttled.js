// The namespaces that a job holds back, and why it holds one of them.

import { call, segment } from "./client.js";
import { Rows, element, long, nameOf, row, visible } from "./elements.js";
import { count, duration, quantity, rateOf, size } from "./numbers.js";

const MOST = 50;

export class ThrottledTable {
  constructor({ onProblem }) {
    this.table = document.getElementById("throttled");
    this.about = document.getElementById("throttled-count");
    this.job = "";
    this.rows = new Rows(this.table, ({ namespace }) => element("button", { type: "button", class: "name",
      title: `Why: ${namespace}`, onclick: () => explain(this.job, namespace).catch(onProblem) }, namespace));
  }

  showNoJob() {
    this.about.textContent = "The server watches no job: start it with --job name=<checkpoint>/throttle.";
    this.table.hidden = true;
  }

  forget() {
    this.about.textContent = "";
    this.rows.show([], "namespace", () => []);
  }

  async read(job, dimension) {
    this.job = job.job;
    const page = (await call(`/admin/v2/status/${segment(job.job)}/namespaces?throttled=true&limit=${MOST}`)).value;
    const shown = page.namespaces.length;
    const what = !page.active ? "No namespace was active in the newest batches."
      : shown ? `${count(page.backlogged)} of ${count(page.active)} active namespaces have a backlog. `
        + `Those whose messages have waited longest come first, then those that rejected most${shown === MOST ? `; the first ${MOST} are shown` : ""}.`
        : `None of ${count(page.active)} active namespaces has a backlog or rejected messages.`;
    this.about.textContent = (job.listening ? "" : "When the job was last seen: ") + what;
    this.table.hidden = shown === 0;
    this.rows.show(page.namespaces, "namespace", (namespace) => [
      ["", namespace.resource_group === null ? "–" : long(namespace.resource_group)],
      ...["offered", "admitted", "rejected"].map((what) => ["number", rateOf(namespace, what, dimension)]),
      ["number", quantity(namespace[`waiting_${dimension}`], dimension)],
      ["number", duration(namespace.oldest_waiting_ms)], ["text", heldBy(namespace)],
    ]);
  }
}

function heldBy(namespace) {
  const held = namespace.held_by;
  if (!held) return namespace.waiting_messages ? "a throttling rule or the queue's bounds" : "rejected by no quota: the dead letters say why";
  const level = { namespace: "its own quota", job: "the job's quota" }[held.level] ?? nameOf(held);
  const used = held.used_ratio === null ? "" : `, ${Math.round(held.used_ratio * 100)} % used`;
  return `${namespace.waiting_messages ? "" : "rejected by "}${level} (${held.dimension}${used})`;
}

const exceptionText = ({ path, until_ms: untilMs, reason }) =>
  `until ${new Date(untilMs).toISOString().slice(0, 19).replace("T", " ")} UTC, ${path} has an exception: ${reason}`;

function quotaOf({ per_second: quota, guaranteed, guaranteed_in_force: part }, rates) {
  const limit = quota.every((rate) => rate === null) ? "no limit" : rates(quota);
  if (guaranteed.every((rate) => rate === null)) return limit;
  const here = part.every((rate) => rate === null) ? "" : ` (in force: ${rates(part)})`;
  return `${limit}; guaranteed ${rates(guaranteed)}${here}`;
}

async function explain(job, namespace) {
  const { value } = await call(`/admin/v2/explain/${segment(namespace)}?job=${segment(job)}`);
  const rates = (pair) => [pair[0] === null ? null : `${count(pair[0])} messages`, pair[1] === null ? null : size(pair[1])]
    .filter(Boolean).join(", ") || "–";
  document.getElementById("explanation-title").textContent = visible(`Why is ${namespace} held?`);
  const seen = value.last_batch;
  const titles = ["Level", "Quota per second", "On excess", "Balance", "Backlog", "Free in"];
  document.getElementById("explanation-text").replaceChildren(
    element("h3", {}, "Which rule applies, and why"),
    element("ul", {}, ...[...value.exceptions.map(exceptionText), ...value.reasons, ...value.notes].map((reason) => element("li", {}, reason))),
    element("h3", {}, "The levels that it passes"),
    element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Levels" },
      element("table", { class: "stack" },
        element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)))),
        element("tbody", {}, ...value.levels.map((level) => row(titles, [
          ["head", ["job", "namespace"].includes(level.level) ? level.level : nameOf(level)],
          ["", quotaOf(level, rates)],
          ["", level.on_excess], ["", rates(level.balance)], ["", level.waiting ? rates(level.waiting) : "–"],
          ["", duration(level.release_ms)],
        ]))))),
    seen ? element("p", {}, `In batch ${count(seen.batch_id)}: offered ${rates(seen.offered)}; admitted `
      + `${rates(seen.admitted)}; rejected ${rates(seen.rejected)}; waiting ${rates(seen.waiting)}. `
      + (value.predicted_release_ms === null ? "" : `The backlog will be gone in ${duration(value.predicted_release_ms)}, `
        + "if nothing more arrives.")) : "");
  const dialog = document.getElementById("explanation");
  dialog.showModal();
  dialog.scrollTop = 0;  // the focus is on the button, at the end
}
