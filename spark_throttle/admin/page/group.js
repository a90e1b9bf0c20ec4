// One resource group: its numbers, its chart, who shares it, and its quotas, which an admin edits in place.

import { RateChart } from "./charts.js";
import { Rows, element, partMeter } from "./elements.js";
import { fairnessText } from "./fairness.js";
import { FollowedChange } from "./followed_change.js";
import { count, duration, percent, quantity } from "./numbers.js";
import { DIRECTIONS, exceptionText, quotaText } from "./policy_fields.js";
import { PolicyForm, entryOf } from "./policy_form.js";

const MEMBERS = ["Namespace", "Weight", "Messages offered/s", "Messages admitted/s", "Backlog", "Share by weight"];

export class GroupCard {
  constructor(name, { isAdmin, onChanged }) {
    this.name = name;
    this.onChanged = onChanged;
    this.state = element("span", { class: "state" });
    this.figures = element("dl", { class: "figures" });
    this.chartPlace = element("div", { class: "chart" });
    this.key = element("ul", { class: "key", "aria-hidden": "true", hidden: true }, element("li", {}, "offered"),
      element("li", { class: "admitted" }, "admitted"), element("li", { class: "quota" }, "quota"),
      element("li", { class: "backlog" }, "backlog (right scale)"));
    this.chart = new RateChart(this.chartPlace, `Rates of ${name}`);
    this.said = element("p");
    this.followed = new FollowedChange();
    this.editButton = element("button", { type: "button", hidden: !isAdmin, onclick: () => this.edit(),
      "aria-label": `Edit the quota of ${name}` }, "Edit quota");
    this.form = element("div");
    this.fairness = element("p", { class: "quiet" });
    const members = element("table", { class: "stack" }, element("thead", {}, element("tr", {},
      ...MEMBERS.map((title, at) => element("th", { scope: "col", class: at > 0 && at < 5 ? "number" : null }, title)))),
    element("tbody"));
    this.rows = new Rows(members, (namespace) => namespace.namespace);
    this.details = element("details", { ontoggle: () => { if (this.details.open) this.onChanged(); } },
      element("summary", {}, "Fairness: what each namespace gets of the quota"), this.fairness,
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Namespaces of ${name}` }, members));
    this.root = element("article", { class: "group", "data-group": name },
      element("header", {}, element("h3", { title: name }, name), this.state),
      this.figures,
      this.key, this.chartPlace,
      element("div", { class: "quotas" }, this.said, this.editButton),
      this.followed.root, this.form, this.details);
  }

  // Show the group's entry as the store has it.
  read(entry) {
    this.entry = entry;
    const said = DIRECTIONS.map((direction) => [direction, quotaText(entry.policy[direction])]).filter(([, text]) => text);
    this.said.replaceChildren(...said.flatMap(([direction, text], at) =>
      [...(at ? [element("br")] : []), `${direction}: ${text}`]));
    if (!said.length) this.said.textContent = "no limit in either direction";
    const exception = exceptionText(entry.policy, entry.exception);
    if (exception) this.said.append(element("br"), element("small", { class: "exception" }, exception));
  }

  // Show what the job did: its `job` of the status, the group's scope in it, and the group's series.
  show(job, scope, times, series, dimension) {
    if (scope) {
      // Counts are of one batch: they are rates only if it is known how long it took, and the job still lives.
      const rate = (number) => (job.elapsed_ms && job.listening
        ? `${quantity(number * 1000 / job.elapsed_ms, dimension)}/s` : "–");
      const destination = job.destinations.find((each) => each.resource_group === this.name);
      const waits = scope[`waiting_${dimension}`];
      const refused = scope[`rejected_${dimension}`];
      const [quota, share] = [scope[`${dimension}_per_second`], scope[`share_${dimension}_per_second`]];
      this.figures.replaceChildren(
        figure("Offered", rate(scope[`offered_${dimension}`])),
        figure("Admitted", rate(scope[`admitted_${dimension}`])),
        quota === null ? figure("Quota", "no limit") : share === null ? figure("Quota", `${quantity(quota, dimension)}/s`)
          : figure("Share of quota", `${quantity(share, dimension)} of ${quantity(quota, dimension)}/s`),
        figure("Backlog", quantity(waits, dimension)),
        ...(waits ? [figure("Oldest waits", duration(scope.oldest_waiting_ms))] : []),
        ...(scope.waited_p99_ms ? [figure("99 % left within", duration(scope.waited_p99_ms))] : []),
        figure("Rejected", rate(refused)),
        figure("Balance", quantity(scope[`balance_${dimension}`], dimension)),
        ...(destination ? [figure("Destination takes", `${quantity(destination.messages_per_second, "messages")}/s`)] : []),
        ...timeFigures(job.time?.scopes.find((each) => each.level === "resource_group" && each.scope === this.name)));
      const [kind, text] = !job.listening ? ["warn", job.state]
        : destination?.is_unavailable ? ["warn", "destination unavailable"] : refused ? ["warn", "rejecting"] : waits ? ["warn", "delaying"] : ["good", "within quota"];
      this.state.className = `state ${kind}`;
      this.state.textContent = text;
    } else {
      this.figures.replaceChildren();
      this.state.className = "state quiet";
      this.state.textContent = "no traffic";
    }
    this.key.hidden = this.chartPlace.hidden = !series;
    if (series) this.chart.show(times, series, dimension);
    this.followed.show(job);
  }

  showMembers(page, dimension) {
    this.fairness.textContent = fairnessText(page);
    const most = Math.max(...page.namespaces.map((namespace) => namespace.service || 0), 1e-9);
    this.rows.show(page.namespaces, "namespace", (namespace) => [
      ["number", count(namespace.weight)], ["number", count(namespace.offered_per_second)],
      ["number", count(namespace.admitted_per_second)],
      ["number", quantity(namespace[`waiting_${dimension}`], dimension)],
      ["", namespace.service === null ? "–" : partMeter(namespace.service, "share by weight",
        { most, text: `${(namespace.service * 100).toFixed(2)} %` })],
    ]);
  }

  edit() {
    this.editButton.hidden = true;
    const close = () => { this.form.replaceChildren(); this.editButton.hidden = false; this.editButton.focus(); };
    // The card is read again while the form is open; the form keeps the revision that it was opened with.
    const form = new PolicyForm({ section: "resource_groups", entry: this.entry, onClose: close, onSaved: async (answer) => {
      this.followed.begin(answer);
      this.read(await entryOf("resource_groups", this.name));
      this.onChanged();
    } });
    this.form.replaceChildren(form.root);
    form.focus();
  }
}

// The processing time of a group that has a quota on it.
const timeFigures = (time) => (!time || time.request_percentage === null ? [] : [
  figure("Core time", `${percent(time.used_percentage)} of ${percent(time.request_percentage)}`),
  figure("Throttle time", duration(time.throttle_ms))]);

const figure = (title, text) => element("div", {}, element("dt", {}, title), element("dd", {}, text));
