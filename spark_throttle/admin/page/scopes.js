// The groups or the tenants of a job, a row each, the worst first; a row that is opened shows a chart and the policy.

import { address } from "./address.js";
import { call, segment } from "./client.js";
import { Rows, element, partMeter, setText } from "./elements.js";
import { count, duration, percent, quantity, some } from "./numbers.js";
import { ScopeCard } from "./scope_card.js";

const PAGE = 25;
const MOST = 500;
const NAMES = { resource_group: "group", tenant: "tenant" };
const NONE = {
  resource_group: "There is no resource group yet. The quota of one is shared by the tenants and namespaces in it.",
  tenant: "No tenant has an entry: no quota holds all namespaces of a tenant together.",
};

export class Scopes {
  constructor({ onChanged, onProblem, revisionAt }) {
    Object.assign(this, { onChanged, onProblem, revisionAt, isAdmin: false, isTenant: false, most: PAGE, cards: new Map() });
    const at = (id) => document.getElementById(id);
    [this.about, this.table, this.more, this.search, this.throttled] = ["scopes-about", "scopes", "more-scopes",
      "scope-search", "scopes-throttled"].map(at);
    this.levels = [...document.querySelectorAll("[name=level]")];
    this.rows = new Rows(this.table, ({ scope }) => element("button", { type: "button", class: "name", "aria-expanded": "false",
      onclick: () => this.turn(scope) }, scope));
    const again = (changes) => { address.write(changes); this.most = PAGE; onChanged(); };
    for (const level of this.levels) level.addEventListener("change", () => again({ level: level.value, open: [] }));
    this.throttled.addEventListener("change", () => again({ throttled: this.throttled.checked ? "yes" : "" }));
    this.search.addEventListener("input", () => again({ search: this.search.value.trim() }));
    this.more.addEventListener("click", () => { this.most = Math.min(this.most + PAGE, MOST); onChanged(); });
  }

  forget() {
    this.most = PAGE;
    this.search.value = "";
    this.about.textContent = "";
    this.cards.clear();
    Object.assign(this, { job: null, page: null, isTurned: false });
    this.rows.show([], "scope", () => []);
  }

  showNoJob() {
    setText(this.about, "The server watches no job: start it with --job name=<checkpoint>/throttle.");
    this.table.hidden = this.more.hidden = true;
  }

  // Show the entries of the opened scopes as the store has them now.
  async readEntries() { await Promise.all([...this.cards.values()].map((card) => card.read())); }

  turn(scope) {
    const { open } = address.read();
    address.write({ open: open.includes(scope) ? open.filter((each) => each !== scope) : [...open, scope] });
    this.isTurned = true;
    this.show(this.job, this.page).catch(this.onProblem);  // at once, by the newest numbers that are known
  }

  async read(job) {
    const { level: asked, search, throttled } = address.read();
    const level = this.isTenant ? "tenant" : asked;
    for (const choice of this.levels) choice.checked = choice.value === level;
    this.throttled.checked = throttled !== "";
    if (document.activeElement !== this.search) this.search.value = search;
    const query = new URLSearchParams({ level, search, throttled: throttled !== "", limit: this.most });
    const { value: page } = await call(`/admin/v2/status/${segment(job.job)}/scopes?${query}`);
    const now = address.read();
    if (now.search !== search || now.throttled !== throttled || now.level !== asked) return;  // another answer is on its way
    if (level !== this.level) this.cards.clear();
    this.level = level;
    this.say(page, level, search, throttled, job);
    // One alone is opened: there is nothing to choose.
    if (page.found === 1 && !search && !throttled && !this.isTurned) address.write({ open: [page.scopes[0].scope] });
    await this.show(job, page);
  }

  async show(job, page) {
    Object.assign(this, { job, page });
    const { level } = this;
    const { open, dimension } = address.read();
    const opened = page.scopes.filter(({ scope }) => open.includes(scope));
    for (const name of this.cards.keys()) if (!opened.some(({ scope }) => scope === name)) this.cards.delete(name);
    const fresh = opened.filter(({ scope }) => !this.cards.has(scope)).map(({ scope }) => {
      const card = new ScopeCard(level, scope, { isAdmin: this.isAdmin, onChanged: this.onChanged, revisionAt: this.revisionAt });
      this.cards.set(scope, card);
      return card.read();
    });
    const below = new Map([...this.cards].map(([name, card]) => [name, card.root]));
    this.rows.show(page.scopes, "scope", (scope) => this.cells(job, scope, dimension), below);
    for (const { scope } of page.scopes) {
      this.rows.rows.get(scope).querySelector("button").setAttribute("aria-expanded", String(this.cards.has(scope)));
    }
    await Promise.all([...fresh, ...opened.map((scope) => this.cards.get(scope.scope).show(job, scope))]);
  }

  say(page, level, search, throttled, job) {
    const name = NAMES[level];
    const shown = page.scopes.length;
    this.table.hidden = !shown;
    this.more.hidden = shown >= page.found || this.most >= MOST;
    const fitting = search ? ` whose names have ${search} in them` : "";
    const cut = shown < page.found ? ` The first ${count(shown)} are shown${this.most >= MOST ? ": search for others" : ""}.` : "";
    setText(this.about, !page.found ? (search || throttled ? `No ${throttled ? "throttled " : ""}${name}${fitting}.` : NONE[level])
      : `${job.listening ? "" : "When the job was last seen: "}${count(page.throttled)} of ${some(page.found, name)}${fitting} `
        + `throttled.${page.throttled ? " Those whose messages have waited longest come first." : ""}${cut}`);
  }

  cells(job, scope, dimension) {
    // Counts are of one batch: they are rates only if it is known how long it took, and the job still lives.
    const perSecond = (number) => number * 1000 / job.elapsed_ms;
    const isKnown = job.elapsed_ms && job.listening;
    const rate = (number) => (isKnown ? `${quantity(perSecond(number), dimension)}/s` : "–");
    const quota = scope[`share_${dimension}_per_second`] ?? scope[`${dimension}_per_second`];
    const used = quota && isKnown ? perSecond(scope[`admitted_${dimension}`]) / quota : null;
    const [kind, text] = stateOf(job, scope);
    return [
      [`state ${kind}`, text],
      ["number", rate(scope[`offered_${dimension}`])], ["number", rate(scope[`admitted_${dimension}`])],
      ["number", quota === null ? "no limit" : `${quantity(quota, dimension)}/s`],
      ["", used === null ? "–" : partMeter(used, "used part of the quota", { text: percent(Math.round(used * 100)) })],
      ["number", rate(scope[`rejected_${dimension}`])],
      ["number", quantity(scope[`waiting_${dimension}`], dimension)], ["number", duration(scope.oldest_waiting_ms)],
    ];
  }
}

// What is to be said of a scope first, and whether it is good.
function stateOf(job, scope) {
  const destination = job.destinations.find((each) => scope.level === "resource_group" && each.resource_group === scope.scope);
  if (!job.listening) return ["warn", job.state];
  if (destination?.is_unavailable) return ["warn", "destination unavailable"];
  if (scope.rejected_messages) return ["warn", "rejecting"];
  if (scope.waiting_messages) return ["warn", scope.held_messages ? "delaying" : "delayed by another quota"];
  return scope.offered_messages || scope.admitted_messages ? ["good", "within quota"] : ["quiet", "no traffic"];
}
