// One resource group: its numbers, its chart, who shares it, and its quotas, which an admin edits in place.

import { RateChart } from "./charts.js";
import { Refused, Rows, call, count, element, quantity, segment, size, typed, visible } from "./client.js";
import { confirmed } from "./confirm.js";

const DIRECTIONS = ["publish", "dispatch"];
const QUOTA = [
  ["RateInMsgs", "Messages per second", "no limit"],
  ["RateInBytes", "Bytes per second", "no limit; 8MiB"],
  ["BurstInSeconds", "Burst in seconds", "10"],
  ["Weight", "Weight", "1"],
];
// Each field of a group, and its key in a policy document.
const KEYS = { RateInMsgs: "messages_per_second", RateInBytes: "bytes_per_second", BurstInSeconds: "burst_seconds",
  Weight: "weight", OnExcess: "on_excess", MaxMessageSize: "max_message_bytes" };
const EXCESS = { delay: "delay", reject: "reject", observe: "observe only" };

export class GroupCard {
  constructor(name, { isAdmin, onChanged }) {
    this.name = name;
    this.path = `/admin/v2/resourcegroup/${segment(name)}`;
    // The form says the whole group, and a PUT of the fields would leave alone what it leaves out.
    this.whole = `/admin/v2/policies/resource_groups/${segment(name)}`;
    this.onChanged = onChanged;
    this.change = null;
    this.state = element("span", { class: "state" });
    this.figures = element("dl", { class: "figures" });
    this.chartPlace = element("div", { class: "chart" });
    this.chart = new RateChart(this.chartPlace, `Rates of ${name}`);
    this.said = element("p");
    this.acted = element("p", { class: "acted", role: "status" });
    this.editButton = element("button", { type: "button", hidden: !isAdmin, onclick: () => this.edit() }, "Edit quota");
    this.editButton.setAttribute("aria-label", visible(`Edit the quota of ${name}`));
    this.form = element("div");
    this.fairness = element("p", { class: "quiet" });
    this.members = element("tbody");
    this.rows = new Rows(this.members, (row) => row.namespace);
    this.details = element("details", { ontoggle: () => { if (this.details.open) this.onChanged(); } },
      element("summary", {}, "Fairness: who gets how much of the quota"), this.fairness,
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Namespaces of ${name}` },
        element("table", {}, element("thead", {}, element("tr", {},
          ...["Namespace", "Weight", "Offered /s", "Admitted /s", "Backlog", "Service"].map((title, at) =>
            element("th", { scope: "col", class: at > 0 && at < 5 ? "number" : null }, title)))), this.members)));
    this.root = element("article", { class: "group", "data-group": name },
      element("header", {}, element("h3", {}, name), this.state),
      this.figures,
      element("ul", { class: "key", "aria-hidden": "true" }, element("li", {}, "offered"),
        element("li", { class: "admitted" }, "admitted"), element("li", { class: "quota" }, "quota"),
        element("li", { class: "backlog" }, "backlog (right scale)")),
      this.chartPlace,
      element("div", { class: "quotas" }, this.said, this.editButton),
      this.acted, this.form, this.details);
  }

  // Read the group's policy from the store.
  async read() {
    const { value: answer, etag } = await call(this.path);
    // A rate without a limit is -1.
    const value = Object.fromEntries(Object.entries(answer).map(([field, rate]) => [field, rate === -1 ? null : rate]));
    this.fields = value;
    this.etag = etag;
    const said = DIRECTIONS.map((direction) => [direction, quotaText(value, direction)]).filter(([, text]) => text);
    this.said.replaceChildren(...said.flatMap(([direction, text], at) =>
      [...(at ? [element("br")] : []), `${direction}: ${text}`]));
    if (!said.length) this.said.textContent = "no limit in either direction";
  }

  // Show what the job did: its `job` of the status, the group's scope in it, and the group's series.
  show(job, scope, times, series, dimension) {
    if (scope) {
      // Counts are of one batch: they are rates only if it is known how long it took, and the job still lives.
      const rate = (number) => (job.elapsed_ms && job.listening
        ? `${quantity(number * 1000 / job.elapsed_ms, dimension)}/s` : "–");
      const waits = scope[`waiting_${dimension}`];
      const refused = scope[`rejected_${dimension}`];
      const quota = dimension === "bytes" ? scope.bytes_per_second : scope.messages_per_second;
      this.figures.replaceChildren(
        figure("Offered", rate(scope[`offered_${dimension}`])),
        figure("Admitted", rate(scope[`admitted_${dimension}`])),
        figure("Quota", quota === null ? "no limit" : `${quantity(quota, dimension)}/s`),
        figure("Backlog", quantity(waits, dimension)),
        figure("Rejected", rate(refused)),
        figure("Balance", quantity(scope[`balance_${dimension}`], dimension)));
      const [kind, text] = !job.listening ? ["warn", job.state]
        : refused ? ["warn", "rejecting"] : waits ? ["warn", "delaying"] : ["good", "within quota"];
      this.state.className = `state ${kind}`;
      this.state.textContent = text;
    } else {
      this.figures.replaceChildren();
      this.state.className = "state quiet";
      this.state.textContent = "no traffic";
    }
    this.chartPlace.hidden = !series;
    if (series) this.chart.show(times, series, dimension);
    this.follow(job);
  }

  showMembers(page, dimension) {
    const ratio = page.fairness_ratio;
    this.fairness.textContent = `${count(page.active)} namespaces active, ${count(page.backlogged)} backlogged. `
      + (ratio === null ? "Fewer than two are backlogged, so none compete."
        : `By weight, the best served of them gets ${ratio.toFixed(2)} times as much as the worst (1 is even).`);
    const most = Math.max(...page.namespaces.map((row) => row.service || 0), 1e-9);
    this.rows.show(page.namespaces, "namespace", (row) => [
      ["number", count(row.weight)], ["number", count(row.offered_per_second)],
      ["number", count(row.admitted_per_second)], ["number", quantity(row[`waiting_${dimension}`], dimension)],
      ["", row.service === null ? "–" : element("div", { class: "service" },
        element("meter", { min: 0, max: 1, value: row.service / most, "aria-label": "service by weight" }),
        `${(row.service * 100).toFixed(2)} %`)],
    ]);
  }

  edit() {
    this.editButton.hidden = true;
    // The card is read again while the form is open; the form keeps the revision that it was opened with.
    const { etag } = this;
    const inputs = {};
    const problem = element("p", { class: "problem", role: "alert" });
    const fieldset = (direction) => element("fieldset", {}, element("legend", {}, direction),
      element("div", { class: "fields" }, ...QUOTA.map(([suffix, title, hint]) => {
        const field = direction + suffix;
        const value = this.fields[field];
        inputs[field] = element("input", { name: field, inputmode: "decimal", placeholder: hint, autocomplete: "off",
          value: value === null ? "" : suffix === "RateInBytes" ? exactSize(value) : String(value) });
        return element("label", {}, title, inputs[field]);
      }), this.excess(direction, inputs)));
    const why = element("input", { name: "why", maxlength: "500", autocomplete: "off" });
    const save = element("button", { type: "submit", class: "primary" }, "Save");
    const close = () => { this.form.replaceChildren(); this.editButton.hidden = false; this.editButton.focus(); };
    const form = element("form", { class: "edit", "aria-label": `Quota of ${this.name}`,
      onkeydown: (event) => { if (event.key === "Escape") close(); },
      onsubmit: async (event) => {
        event.preventDefault();
        save.disabled = true;
        problem.textContent = "";
        for (const input of Object.values(inputs)) input.removeAttribute("aria-invalid");
        try {
          await this.save(inputs, why.value, etag);
          close();
        } catch (error) {
          this.point(error, inputs, problem);
        }
        save.disabled = false;
      } },
    ...DIRECTIONS.map(fieldset),
    element("label", { class: "why" }, "Why (kept in the history)", why), problem,
    element("div", { class: "buttons" }, save, element("button", { type: "button", onclick: close }, "Cancel")));
    this.form.replaceChildren(form);
    inputs.publishRateInMsgs.focus();
  }

  excess(direction, inputs) {
    const field = `${direction}OnExcess`;
    const chosen = this.fields[field] || "delay";
    inputs[field] = element("select", { name: field }, ...Object.entries(EXCESS).map(([value, text]) =>
      element("option", { value, selected: value === chosen }, text)));
    return element("label", {}, "On excess", inputs[field]);
  }

  async save(inputs, why, etag) {
    const body = {};
    const after = {};
    const put = (field, value) => {
      after[field] = value;
      const [, direction, suffix] = /^(publish|dispatch)(\w+)$/.exec(field);
      body[direction] = { ...body[direction], [KEYS[suffix]]: value };
    };
    for (const [field, value] of Object.entries(this.fields)) if (!(field in inputs) && value !== null) put(field, value);
    for (const [field, input] of Object.entries(inputs)) {
      const value = field.endsWith("OnExcess") ? input.value : typed(input.value);
      if (Number.isNaN(value)) throw new Refused(422, { path: field, detail: "it is not a number such as 5000 or 8MiB" });
      if (value !== null && !(field.endsWith("OnExcess") && value === "delay")) put(field, value);
    }
    const reason = new URLSearchParams({ why });
    const shown = (field, value) => (value ?? null) === null ? "–" : field.endsWith("InBytes") ? size(value) : String(value);
    const differences = Object.keys(inputs).map((field) => [field, this.fields[field] ?? null, after[field] ?? null])
      .filter(([, was, becomes]) => was !== becomes)
      .map(([field, was, becomes]) => [field, shown(field, was), shown(field, becomes)]);
    const { value } = await confirmed(`${this.whole}?${reason}`, { method: "PUT", body, ifMatch: etag }, differences);
    this.change = { ...value, sent: Date.now() };
    this.acted.textContent = value.changed ? `Revision ${value.revision} is committed.` : "Nothing was changed.";
    await this.read();
    this.onChanged();
  }

  point(error, inputs, problem) {
    const [, direction, key] = /\.(publish|dispatch)(?:\.(\w+))?$/.exec(error.path || "") || [];
    const suffix = Object.keys(KEYS).find((each) => KEYS[each] === key);
    const field = suffix ? direction + suffix : error.path;
    const input = inputs[field];
    if (input) { input.setAttribute("aria-invalid", "true"); input.focus(); }
    problem.textContent = error.status === 412
      ? "Somebody else has changed this group meanwhile; nothing was saved. Cancel, look at its new quota, and edit again."
      : visible((field ? `${field}: ` : "") + error.message);
    if (error.status === 412) this.read();
  }

  // Show how far the last change made on this page has come, from the commit to the first batch that it acted in.
  follow(job) {
    if (!this.change || !this.change.changed) return;
    const { revision, acting } = this.change;
    const before = acting.find((entry) => entry.job === job.job);
    if (!before) return;
    if (job.store_revision === null) {
      this.acted.textContent = `Revision ${revision} is committed, but the job ${job.job} does not follow the store.`;
      return;
    }
    const unheard = `Revision ${revision} is committed, but no job is listening: ${job.life}.`;
    if (job.store_revision < revision) {
      this.acted.textContent = !job.listening ? unheard
        : job.problem ? `Revision ${revision} is committed but not in force: ${job.problem}`
          : `Revision ${revision} is committed; the next batch of ${job.job} will have it.`;
      return;
    }
    const later = job.recent.filter((batch) => batch.epoch > before.planned_epoch);
    const at = later.findIndex((batch) => batch.revision === job.revision);
    if (at < 0) {
      this.acted.textContent = !job.listening ? unheard
        : `Revision ${revision} is in force; the batch that has it is running.`;
      return;
    }
    this.acted.textContent = `Revision ${revision} has acted since batch ${later[at].batch}: ${at + 1} `
      + `${at ? "batches" : "batch"} after the change.`;
    this.acted.dataset.batches = String(at + 1);
    this.change = null;
  }
}

const figure = (title, text) => element("div", {}, element("dt", {}, title), element("dd", {}, text));

function exactSize(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes > 0 && bytes % factor === 0) return `${bytes / factor}${unit}`;
  }
  return String(bytes);
}

function quotaText(fields, direction) {
  const of = (suffix) => fields[direction + suffix];
  const parts = [
    of("RateInMsgs") === null ? null : `${count(of("RateInMsgs"))} messages/s`,
    of("RateInBytes") === null ? null : `${size(of("RateInBytes"))}/s`,
  ].filter(Boolean);
  if (!parts.length) return "";
  parts.push(`burst ${count(of("BurstInSeconds") ?? 10)} s`, `weight ${count(of("Weight") ?? 1)}`);
  return `${parts.join(", ")}, ${EXCESS[of("OnExcess") || "delay"]}`;
}
