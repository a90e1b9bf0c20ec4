// The form that edits one policy: of a resource group, a tenant, a namespace or a glob.

import { RefusalError, call, segment } from "./client.js";
import { confirmed } from "./confirm.js";
import { outcome } from "./outcome.js";
import { element, visible } from "./elements.js";
import { DELAYS_ALL, DIRECTIONS, FIELDS, changedPolicy, delaysAll, differences, exceptedPolicy, otherText } from "./policy_fields.js";

const LEGENDS = { publish: "Rows into the lake", dispatch: "Rows out of the lake" };
// A title is the key that policy documents, the command line and errors have, in words.
const labelled = (title, input, text = null) => element("div", { class: "field" },
  element("label", {}, element("span", {}, title), input), text && element("small", {}, text));
const NAMED = { resource_groups: "Group", tenants: "Tenant", namespaces: "Namespace, or a glob such as acme/*" };
const MOST_REPLAYED_SECONDS = 86400;
let forms = 0;

export class PolicyForm {
  // `entry` is what the store has: its name, revision, etag and policy; a revision of 0 makes a new one.
  constructor({ section, entry, onSaved, onClose }) {
    Object.assign(this, { section, entry, onSaved, onClose });
    this.inputs = {};
    forms += 1;
    this.problem = element("p", { class: "problem", role: "alert", id: `problem-${forms}` });
    this.save = element("button", { type: "submit", class: "primary" }, "Save");
    this.changes = element("p", { class: "quiet", role: "status" });
    this.found = element("div", { role: "status" });
    this.tryIt = element("button", { type: "button", onclick: () => this.tried() }, "What if?");
    this.end = element("div", { class: "end" }, this.changes, this.found,
      element("div", { class: "buttons" }, this.save, this.tryIt, element("button", { type: "button", onclick: onClose }, "Cancel")));
    const others = otherText({ ...entry.policy, locked: false }, entry.exception);
    this.why = element("input", { name: "why", maxlength: "500", autocomplete: "off" });
    this.root = element("form", { class: "edit", autocomplete: "off", novalidate: true,
      oninput: () => this.showChanges(), onchange: () => this.showChanges(),
      onsubmit: (event) => { event.preventDefault(); this.submit(); } },
    ...this.nameAndGroup(),
    ...DIRECTIONS.map((direction) => this.quota(direction)),
    this.limitedTime(),
    others ? element("p", { class: "quiet" }, `Stays as it is: ${others}.`) : null,
    element("label", { class: "why" }, "Why (kept with the change)", this.why), this.end);
  }

  focus() { Object.values(this.inputs)[0].focus(); }

  nameAndGroup() {
    const fields = [];
    const text = (title, path, value, more = {}) => {
      this.inputs[path] = element("input", { name: path, autocomplete: "off", spellcheck: "false", value, ...more });
      fields.push(labelled(title, this.inputs[path]));
    };
    if (!this.entry.revision) text(NAMED[this.section], "name", "");
    if (this.section !== "resource_groups") {
      text("Resource group", "resource_group", this.entry.policy.resource_group ?? "",
        { list: "group-names", placeholder: this.section === "tenants" ? "none" : "that of its tenant" });
    }
    if (this.section === "namespaces") {
      this.inputs.locked = element("input", { type: "checkbox", name: "locked", checked: this.entry.policy.locked || false });
      fields.push(labelled("Locked: only an administrator may change it", this.inputs.locked));
    }
    return fields.length ? [element("div", { class: "fields" }, ...fields)] : [];
  }

  quota(direction) {
    const quota = this.entry.policy[direction] || {};
    const hint = element("p", { class: "hint", role: "status" });
    const warn = () => {
      const typed = (key) => { try { return this.typed(`${direction}.${key}`); } catch { return null; } };
      const isDelayed = delaysAll(Object.fromEntries(FIELDS.map(({ key }) => [key, typed(key)])));
      hint.textContent = isDelayed ? DELAYS_ALL : "";
    };
    const isOfMany = this.section === "defaults" || (this.section === "namespaces" && (!this.entry.name || this.entry.name.includes("*")));
    const fields = FIELDS.filter((field) => isOfMany || !field.isOfMany).map(({ key, title, text, choices, preset, show }) => {
      const path = `${direction}.${key}`;
      const named = { name: path, "aria-description": text };
      const unset = key.startsWith("guaranteed_") ? "nothing" : "no limit";
      this.inputs[path] = choices
        ? element("select", named, ...choices.map((value) =>
          element("option", { value, selected: value === (quota[key] ?? preset) }, String(value))))
        : element("input", { ...named, inputmode: "text", autocomplete: "off",
          placeholder: preset === null ? unset : show(preset), value: quota[key] === undefined ? "" : show(quota[key]) });
      return labelled(title, this.inputs[path], text);
    });
    const root = element("fieldset", { oninput: warn, onchange: warn }, element("legend", {}, LEGENDS[direction], " ", element("small", {}, direction)),
      element("div", { class: "fields" }, ...fields), hint);
    warn();
    return root;
  }

  // Whether the change holds for a time only, and the end of an exception that there is.
  limitedTime() {
    this.until = element("input", { type: "datetime-local", name: "until", step: "60" });
    this.isEnded = element("input", { type: "checkbox", name: "ended" });
    const ends = this.entry.policy.exception
      ? labelled("End the exception now", this.isEnded, "What the entry says beside it is in force again.") : null;
    return element("fieldset", {}, element("legend", {}, "For a time only ", element("small", {}, "exception")),
      element("div", { class: "fields" },
        labelled("Until", this.until, "By your clock: what you change above ends then by itself. Empty: it stays."), ends));
  }

  // The policy as it would be saved.
  changed(values, { reason }) {
    const { exception, ...others } = this.entry.policy;
    if (this.isEnded.checked) return changedPolicy(others, values);
    if (!this.until.value) return changedPolicy(this.entry.policy, values);
    try {
      return exceptedPolicy(this.entry.policy, values, new Date(this.until.value).getTime(), reason);
    } catch (error) {
      throw new RefusalError(422, { path: "until", detail: error.message });
    }
  }

  // What was typed into a field. Throws what is wanted instead.
  typed(path) {
    const input = this.inputs[path];
    if (path === "locked") return input.checked;
    if (path === "resource_group") return input.value.trim() || null;
    return FIELDS.find(({ key }) => path.endsWith(`.${key}`)).read(input.value);
  }

  // Say what would be saved, as far as what was typed can be read.
  showChanges() {
    const read = (path) => { try { return [[path, this.typed(path)]]; } catch { return []; } };
    const values = Object.fromEntries(Object.keys(this.inputs).filter((path) => path !== "name").flatMap(read));
    let changed = [];
    try { changed = differences(this.entry.policy, this.changed(values, { reason: this.why.value || "…" })); } catch { /* said when it is saved */ }
    this.changes.textContent = changed.length ? visible(`Changes: ${changed.map(([path, was, becomes]) => `${path} ${was} → ${becomes}`).join(", ")}.`) : "";
  }

  async submit() {
    await this.patiently(this.save, "Saving…", async () => {
      const { path, options, policy } = this.written();
      const { value } = await confirmed(path, options, differences(policy, options.body));
      this.onClose();
      this.onSaved({ ...value, name: this.name });
    });
  }

  // Replay the job's recorded traffic under the change, which is not made.
  async tried() {
    await this.patiently(this.tryIt, "Replaying…", async () => {
      const { path, options } = this.written();
      const [job, range] = ["job", "range"].map((id) => document.getElementById(id).value);
      const query = new URLSearchParams({ dry_run: true, replay: job, seconds: Math.min(Number(range), MOST_REPLAYED_SECONDS) });
      this.found.replaceChildren(...outcome((await call(`${path}&${query}`, options)).value));
    });
  }

  // Do something behind a button, and point at what is wrong with what was typed.
  async patiently(button, text, action) {
    const before = button.textContent;
    this.save.disabled = this.tryIt.disabled = true;
    button.textContent = text;
    this.problem.textContent = "";
    this.found.replaceChildren();
    for (const input of [this.until, ...Object.values(this.inputs)]) {
      input.removeAttribute("aria-invalid");
      input.removeAttribute("aria-describedby");
    }
    try {
      await action();
    } catch (error) {
      this.save.disabled = this.tryIt.disabled = false;  // it may take the focus
      this.point(error);
    }
    this.save.disabled = this.tryIt.disabled = false;
    button.textContent = before;
  }

  // The request that writes what was typed.
  written() {
    const values = {};
    for (const path of Object.keys(this.inputs)) {
      if (path === "name") continue;
      try {
        values[path] = this.typed(path);
      } catch (error) {
        throw new RefusalError(422, { path, detail: error.message });
      }
    }
    const { revision, etag, policy } = this.entry;
    this.name = revision ? this.entry.name : this.inputs.name.value.trim();
    if (!this.name) throw new RefusalError(422, { path: "name", detail: "give a name" });
    const body = this.changed(values, { reason: this.why.value });
    const path = `/admin/v2/policies/${this.section}/${segment(this.name)}?${new URLSearchParams({ why: this.why.value })}`;
    return { path, policy, options: { method: "PUT", body, ...(revision ? { ifMatch: etag } : { ifNoneMatch: "*" }) } };
  }

  // Say what is wrong, at the field that is meant; at the buttons if none is.
  point(error) {
    const found = Object.keys(this.inputs).find((path) => error.path === path || error.path?.endsWith(`.${path}`));
    const input = error.path === "until" ? this.until : this.inputs[found];
    if (input) {
      input.setAttribute("aria-invalid", "true");
      input.setAttribute("aria-describedby", this.problem.id);
      input.closest(".field").append(this.problem);
    } else {
      this.end.prepend(this.problem);
    }
    if (error.status === 412) {
      this.problem.textContent = this.entry.revision
        ? "Somebody else has changed this entry meanwhile; nothing was saved. Cancel, look at it again, and edit it as it is now."
        : "There is an entry of that name already; nothing was saved. Cancel, find it, and edit it.";
    } else {
      const place = found || error.path;
      this.problem.textContent = visible(place && error.status === 422 ? `${place}: ${error.message}` : error.message);
    }
    (input ?? this.save).focus({ preventScroll: true });
    this.problem.parentElement.scrollIntoView({ block: "nearest" });
  }
}

// What the store has under a name.
export async function entryOf(section, name) {
  return (await call(`/admin/v2/policies/${section}/${segment(name)}`)).value;
}
