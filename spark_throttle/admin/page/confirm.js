// Asks before a change is made that costs protection, or that undoes others: what would be lost, and the difference.

import { RefusalError, call } from "./client.js";
import { element, row, visible } from "./elements.js";
import { differences as differencesOf } from "./policy_fields.js";

const MOST = 100;

// Make a change; if the server wants it confirmed, show what it costs and `differences` first: [path, before, after].
export async function confirmed(path, options, differences) {
  try {
    return await call(path, options);
  } catch (error) {
    if (error.status !== 428) throw error;
    if (!await ask("Confirm this change", error.losses, differences)) {
      throw new RefusalError(428, { detail: "It was not confirmed, and nothing was changed." });
    }
    return call(`${path}${path.includes("?") ? "&" : "?"}yes=true`, options);
  }
}

// Show what a rollback would change, and make it if that is confirmed, unless somebody has changed anything meanwhile.
export async function rollBack(revision) {
  const path = `/admin/v2/rollback/${revision}`;
  const { value: planned } = await call(path);
  const differences = planned.differences.flatMap((each) => differencesOfEntry(each, planned.heirs[each.name]));
  if (!differences.length) throw new RefusalError(0, { detail: `Nothing differs from revision ${revision}.` });
  const left = [planned.all_losses - planned.losses.length, planned.changes - planned.differences.length];
  if (!await ask(`Roll back to revision ${revision}?`, planned.losses, differences, left)) return null;
  const query = new URLSearchParams({ yes: "true", expected: planned.revision, why: `back to revision ${revision}` });
  return (await call(`${path}?${query}`, { method: "POST" })).value;
}

// What differs in an entry: whether it is there, and each of its keys. What it held falls to `heirs`, if it goes.
function differencesOfEntry({ kind, path, before, after }, heirs = []) {
  const goes = kind === "namespace" && heirs.length ? `removed: falls to ${heirs.join(" and ")}` : "removed";
  const entry = before === null ? [[path, "–", "new"]] : after === null ? [[path, "there", goes]] : [];
  const keys = differencesOf(before ?? {}, after ?? {}).map(([key, was, becomes]) => [`${path}.${key}`, was, becomes]);
  return [...entry, ...keys];
}

function tableOf(differences) {
  const titles = ["What", "Before", "After"];
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "What changes" },
    element("table", { class: "stack" },
      element("thead", {}, element("tr", {}, ...titles.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...differences.slice(0, MOST).map((texts) => row(titles, texts.map((text) => ["wide", text]))))));
}

// Show what a revision changed.
export async function showChange({ revision, who, changes }) {
  const { value } = await call(`/admin/v2/diff?before=${revision - 1}&after=${revision}&limit=${MOST}`);
  const differences = value.flatMap((each) => differencesOfEntry(each));
  document.getElementById("explanation-title").textContent = visible(`What ${who} changed in revision ${revision}`);
  const left = changes - value.length;
  document.getElementById("explanation-text").replaceChildren(differences.length ? tableOf(differences) : "Nothing differs.",
    left > 0 ? element("p", {}, `… and ${left} more entries: spark-throttle policy diff ${revision - 1} ${revision}`) : "");
  document.getElementById("explanation").showModal();
}

// Return whether the reader confirms; Escape and Cancel do not. `left` counts the losses and the entries not given here.
function ask(title, losses, differences, [lossesLeft, entriesLeft] = [0, 0]) {
  const dialog = document.getElementById("confirmation");
  document.getElementById("confirmation-title").textContent = title;
  const more = (items, left, what = "") => {
    const hidden = Math.max(0, items.length - MOST);
    const texts = [hidden ? `${hidden} more` : "", left ? `${left} more${what}` : ""].filter(Boolean);
    return texts.length ? element("p", {}, `… and ${texts.join(", and ")}.`) : "";
  };
  document.getElementById("confirmation-text").replaceChildren(
    losses.length ? element("p", {}, "It costs protection:") : "",
    losses.length ? element("ul", { class: "losses" }, ...losses.slice(0, MOST).map((loss) => element("li", {}, loss))) : "",
    more(losses, lossesLeft),
    tableOf(differences), more(differences, entriesLeft, " entries"));
  dialog.returnValue = "";
  dialog.showModal();
  dialog.scrollTop = 0;  // the focus is on the buttons, at the end
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
