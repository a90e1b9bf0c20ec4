// One group or tenant, opened: its chart, who shares its quota, and its policy, which an admin edits in place.

import { address } from "./address.js";
import { RateChart } from "./charts.js";
import { call, segment } from "./client.js";
import { Rows, element, partMeter, setText } from "./elements.js";
import { fairnessText } from "./fairness.js";
import { FollowedChange } from "./followed_change.js";
import { count, duration, percent, quantity, rateOf, some } from "./numbers.js";
import { DIRECTIONS, exceptionText, quotaText, scheduleTexts } from "./policy_fields.js";
import { PolicyForm, entryOf } from "./policy_form.js";

const MEMBERS = ["Namespace", "Weight", "Offered/s", "Admitted/s", "Backlog", "Share by weight"];
const MOST_MEMBERS = 30;
const SECTIONS = { resource_group: "resource_groups", tenant: "tenants" };
const LIVE_SECONDS = 900;
const OLD_EVERY_MS = 30e3;

export class ScopeCard {
  constructor(level, name, { isAdmin, onChanged, revisionAt }) {
    Object.assign(this, { level, name, isAdmin, revisionAt, section: SECTIONS[level], onChanged, readAt: 0, shown: "" });
    this.figures = element("dl", { class: "figures" });
    this.chartPlace = element("div", { class: "chart" });
    this.chart = new RateChart(this.chartPlace, `Rates of ${name}`);
    this.since = element("p", { class: "quiet" });
    this.said = element("p");
    this.followed = new FollowedChange();
    this.editButton = element("button", { type: "button", hidden: true, onclick: () => this.edit(),
      "aria-label": `Edit quota of ${name}` }, "Edit quota");
    this.form = element("div");
    this.fairness = element("p", { class: "quiet" });
    const members = element("table", { class: "stack" }, element("thead", {}, element("tr", {},
      ...MEMBERS.map((title, at) => element("th", { scope: "col", class: at > 0 && at < 5 ? "number" : null }, title)))),
    element("tbody"));
    this.rows = new Rows(members, (namespace) => namespace.namespace);
    this.details = element("details", { ontoggle: () => { if (this.details.open) this.onChanged(); } },
      element("summary", {}, level === "tenant" ? "Its namespaces" : "Fairness: what each namespace gets of the quota"), this.fairness,
      element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": `Namespaces of ${name}` }, members));
    this.root = element("article", { class: "group", [level === "tenant" ? "data-tenant" : "data-group"]: name, "aria-label": name },
      this.figures, this.chartPlace, this.since,
      element("div", { class: "quotas" }, this.said, this.editButton),
      this.followed.root, this.form, this.details);
  }

  // Read the entry as the store has it.
  async read() {
    try {
      this.showEntry(await entryOf(this.section, this.name));
    } catch (error) {
      if (error.status !== 404) throw error;
      this.said.textContent = "The store has no such entry any more.";
      this.editButton.hidden = true;
    }
  }

  showEntry(entry) {
    this.entry = entry;
    this.editButton.hidden = !this.isAdmin || this.form.hasChildNodes();
    const said = DIRECTIONS.map((direction) => [direction, quotaText(entry.policy[direction])]).filter(([, text]) => text);
    this.said.replaceChildren(...said.flatMap(([direction, text], at) =>
      [...(at ? [element("br")] : []), `${direction}: ${text}`]));
    if (!said.length) this.said.textContent = "no limit in either direction";
    const exception = exceptionText(entry.policy, entry.exception);
    if (exception) this.said.append(element("br"), element("small", { class: "exception" }, exception));
    for (const hours of scheduleTexts(entry.policy)) this.said.append(element("br"), element("small", {}, hours));
  }

  // Show what the job did: its `job` of the status, and the numbers of the scope in it.
  async show(job, scope) {
    const { dimension, range } = address.read();
    this.showFigures(job, scope, dimension);
    this.followed.show(job);
    const where = `/admin/v2/status/${segment(job.job)}`;
    const wanted = `${job.job} ${dimension} ${range}`;
    const isOld = Date.now() - this.readAt >= (Number(range) > LIVE_SECONDS ? OLD_EVERY_MS : 0);
    if (isOld || wanted !== this.shown) {
      const query = new URLSearchParams({ level: this.level, scope: this.name, dimension, seconds: range });
      const { value } = await call(`${where}/series?${query}`);
      [this.readAt, this.shown] = [Date.now(), wanted];
      this.chart.show(value, dimension, Number(range), this.revisionAt);
      this.saySince(job, value, Number(range));
    }
    if (this.details.open) {
      const query = new URLSearchParams({ limit: MOST_MEMBERS, [this.level]: this.name });
      this.showMembers((await call(`${where}/namespaces?${query}`)).value, dimension);
    }
  }

  saySince(job, { time_ms: times }, range) {
    const seen = times.length ? (times.at(-1) - times[0]) / 1000 : 0;
    const what = !times.length ? "No two batches are in this time." : seen >= range * 0.9 ? ""
      : job.has_usage_table ? `The usage table has ${duration(seen * 1000)} of it.`
        : `The server has seen ${duration(seen * 1000)} of it. To see what was before, start it with --usage ${job.job}=<usage table>.`;
    setText(this.since, what);
  }

  showFigures(job, scope, dimension) {
    const destination = this.level === "resource_group" && job.destinations.find((each) => each.resource_group === this.name);
    const [quota, share] = [scope[`${dimension}_per_second`], scope[`share_${dimension}_per_second`]];
    const debts = ["messages", "bytes", "units"].filter((each) => scope[`balance_${each}`] < 0 && scope[`${each}_per_second`]).map((each) => {
      const [owed, rate] = [-scope[`balance_${each}`], scope[`share_${each}_per_second`] ?? scope[`${each}_per_second`]];
      return [owed, owed / rate, each];
    }).filter(([, seconds]) => seconds >= 1);
    this.figures.replaceChildren(
      ...debts.map(([owed, seconds, each]) => figure("In debt", `${each === "bytes" ? quantity(owed, each) : each === "units" ? `${count(owed)} ${job.unit}` : some(owed, "message")}, for ${duration(seconds * 1000)}`)),
      ...(share === null ? [] : [figure("Share of quota", `${quantity(share, dimension)} of ${quantity(quota, dimension)}/s`)]),
      figure("Balance", quantity(scope[`balance_${dimension}`], dimension)),
      ...(scope.reserved_units ? [figure("Cost not told yet", `${some(scope.reserved_messages, "message")}, estimated at ${count(scope.reserved_units)} ${job.unit}`)] : []),
      figure("Held back by this quota", some(scope.held_messages, "message")),
      figure("Half left within", duration(scope.waited_p50_ms)),
      figure("99 % left within", duration(scope.waited_p99_ms)),
      ...(destination ? [figure("Destination takes", `${quantity(destination.messages_per_second, "messages")}/s`)] : []),
      ...timeFigures(job.time?.scopes.find((each) => each.level === this.level && each.scope === this.name)));
  }

  showMembers(page, dimension) {
    this.fairness.textContent = this.level === "tenant" ? `${some(page.active, "active namespace")}, ${count(page.backlogged)} of them with a backlog.` : fairnessText(page);
    const most = Math.max(...page.namespaces.map((namespace) => namespace.service || 0), 1e-9);
    this.rows.show(page.namespaces, "namespace", (namespace) => [
      ["number", count(namespace.weight)],
      ...["offered", "admitted"].map((what) => ["number", rateOf(namespace, what, dimension)]),
      ["number", quantity(namespace[`waiting_${dimension}`], dimension)],
      ["", namespace.service === null ? "–" : partMeter(namespace.service, "share by weight",
        { most, text: `${(namespace.service * 100).toFixed(2)} %` })],
    ]);
  }

  edit() {
    this.editButton.hidden = true;
    const close = () => { this.form.replaceChildren(); this.editButton.hidden = false; this.editButton.focus(); };
    // The card is read again while the form is open; the form keeps the revision that it was opened with.
    const form = new PolicyForm({ section: this.section, entry: this.entry, onClose: close, onSaved: async (answer) => {
      this.followed.begin(answer);
      await this.read();
      this.onChanged();
    } });
    this.form.replaceChildren(form.root);
    form.focus();
  }
}

// The processing time of a scope that has a quota on it.
const timeFigures = (time) => (!time || time.request_percentage === null ? [] : [
  figure("Core time", `${percent(time.used_percentage)} of ${percent(time.request_percentage)}`),
  figure("Throttle time", duration(time.throttle_ms))]);

const figure = (title, text) => element("div", {}, element("dt", {}, title), element("dd", {}, text));
