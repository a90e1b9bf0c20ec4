// The entries of groups, of tenants, or of namespaces and globs: found by name, a page at a time, and edited.

import { call } from "./client.js";
import { element, long, row } from "./elements.js";
import { FollowedChange } from "./followed_change.js";
import { some } from "./numbers.js";
import { justBefore, otherText, quotaText } from "./policy_fields.js";
import { PolicyForm } from "./policy_form.js";

const PAGE = 10;
const MOST = 990;
const TITLES = ["Name", "Resource group", "Publish", "Dispatch", "Also", ""];
const KINDS = {
  resource_groups: { title: "Resource groups", one: "resource group", add: "Add a group…",
    none: "There is no resource group yet. Several tenants and namespaces can share the quota of one." },
  tenants: { title: "Tenants", one: "tenant", add: "Add a tenant…",
    none: "No tenant has an entry: no quota holds all namespaces of a tenant together." },
  namespaces: { title: "Namespaces and globs", one: "namespace or glob", add: "Add a namespace or glob…",
    none: "No namespace and no glob has an entry: the defaults apply to every namespace." },
};

export class Entries {
  constructor(section, { onChanged, onProblem }) {
    Object.assign(this, { section, onChanged, onProblem, start: "", limit: PAGE, shown: "", isAdmin: false });
    const kind = KINDS[section];
    this.kind = kind;
    this.find = element("input", { type: "search", autocomplete: "off", spellcheck: "false" });
    this.about = element("p", { class: "quiet", role: "status" });
    this.body = element("tbody");
    this.table = element("table", { class: "stack" }, element("thead", {}, element("tr", {},
      ...TITLES.map((title) => element(title ? "th" : "td", { scope: title ? "col" : null }, title)))), this.body);
    this.more = element("button", { type: "button", onclick: () => this.again({ limit: Math.min(this.limit + PAGE, MOST) }) },
      "More…");
    this.add = element("button", { type: "button", onclick: () => this.edit({ name: "", revision: 0, policy: {} }) }, kind.add);
    this.followed = new FollowedChange();
    this.root = element("section", { "data-entries": section, "aria-label": kind.title },
      element("h2", {}, kind.title),
      element("form", { class: "find", onsubmit: (event) => { event.preventDefault(); this.again({ start: this.find.value, limit: PAGE }); } },
        element("label", {}, "Names that begin with ", this.find), element("button", {}, "Find"), this.add),
      this.about, element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": kind.title }, this.table),
      this.more, this.followed.root);
  }

  // Leave nothing behind for whoever signs in next.
  forget() {
    Object.assign(this, { start: "", limit: PAGE, shown: "" });
    this.find.value = "";
    this.about.textContent = "";
    this.body.replaceChildren();
    this.followed.forget();
  }

  async again(changes) {
    Object.assign(this, changes);
    try {
      await this.read();
    } catch (error) {
      this.onProblem(error);
    }
  }

  async read() {
    // One more than is shown tells whether there are more.
    const query = new URLSearchParams({ after: justBefore(this.start), limit: this.limit + 1 });
    const { value } = await call(`/admin/v2/policies/${this.section}?${query}`);
    const fitting = value.policies.filter((entry) => entry.name.startsWith(this.start));
    const hasMore = fitting.length > this.limit;
    const page = fitting.slice(0, this.limit);
    const current = page.filter((entry) => entry.exception === "in_force");
    const found = [...current, ...page.filter((entry) => entry.exception !== "in_force")];
    const shown = JSON.stringify([found, this.isAdmin]);
    this.add.hidden = !this.isAdmin;
    this.more.hidden = !hasMore || this.limit >= MOST;
    this.about.textContent = !found.length ? (this.start ? `No entry begins with ${this.start}.` : this.kind.none)
      : !hasMore ? `${some(found.length, "entry", "entries")}, ${current.length ? "those with an exception in force first" : "by name"}.`
        : `The first ${found.length} entries by name. ` + (this.limit >= MOST ? "To see others, type how their names begin." : "");
    this.table.hidden = !found.length;
    if (shown === this.shown) return;  // a button that has the focus stays
    this.shown = shown;
    this.body.replaceChildren(...found.map((entry) => row(TITLES, [
      ["head", long(entry.name)], ["", entry.policy.resource_group ? long(entry.policy.resource_group) : "–"],
      ["text", quotaText(entry.policy.publish) || "no limit"], ["text", quotaText(entry.policy.dispatch) || "no limit"],
      ["text", otherText(entry.policy, entry.exception) || "–"],
      ["", element("button", { type: "button", hidden: !this.isAdmin, "aria-label": `Edit ${this.kind.one} ${entry.name}`,
        onclick: () => this.edit(entry) }, "Edit")],
    ])));
  }

  edit(entry) {
    const dialog = document.getElementById("editor");
    const form = new PolicyForm({ section: this.section, entry, onClose: () => dialog.close(), onSaved: (answer) => {
      this.followed.begin(answer);
      this.onChanged();
    } });
    document.getElementById("editor-title").replaceChildren(
      element("span", {}, entry.revision ? `Edit the ${this.kind.one} ${entry.name}` : `Add a ${this.kind.one}`));
    document.getElementById("editor-text").replaceChildren(form.root);
    dialog.showModal();
    form.focus();
  }
}
