// The page: signs in, asks for news once a second, and hands it to the groups' cards and the tables.

import { GroupCard } from "./group.js";
import { Rows, call, count, duration, element, quantity, segment, session, size, visible } from "./client.js";
import { rollBack } from "./confirm.js";

const EVERY_MS = 1000;
const HISTORY_EVERY = 3;
const GROUPS = 60;
const LOCKS = 50;
const $ = (id) => document.getElementById(id);

const cards = new Map();
const throttledRows = new Rows($("throttled").tBodies[0], (row) => element("button", { type: "button", class: "name",
  title: `Why: ${row.namespace}`, onclick: () => explain(row.namespace).catch((error) => showAlert(error.message)) },
row.namespace));
let isAdmin = false;
let turn = 0;
let timer = null;
let knownRevision = -1;

function showAlert(problem) {
  const text = visible(problem);
  const place = $("alerts");
  if (place.textContent !== text) place.textContent = text;
}

async function begin() {
  try {
    isAdmin = (await call("/admin/v2/caller")).value.role === "admin";
  } catch (error) {
    end(error.status === 401 ? "The token is unknown or has expired." : error.message);
    return;
  }
  $("sign-in").hidden = true;
  $("board").hidden = false;
  $("sign-out").hidden = false;
  await refresh();
}

function end(problem = "") {
  clearTimeout(timer);
  session.end();
  cards.clear();
  knownRevision = -1;
  $("groups").replaceChildren();
  $("facts").textContent = "";
  for (const id of ["board", "sign-out", "job-choice", "dimension-choice"]) $(id).hidden = true;
  $("sign-in").hidden = false;
  $("sign-in-problem").textContent = problem;
  $("token").value = "";
  $("token").focus();
}

async function refresh() {
  clearTimeout(timer);
  if (!session.token) return;
  try {
    await update();
    showAlert("");
  } catch (error) {
    if (error.status === 401) { end("The token is unknown or has expired."); return; }
    if (error.status === 403) { end(`This page needs a token of an admin or a viewer: ${error.message}`); return; }
    showAlert(error.message);
  }
  turn += 1;
  timer = setTimeout(refresh, EVERY_MS);
}

async function update() {
  const { value: status } = await call("/admin/v2/status");
  chooseJobs(status.jobs.map((job) => job.job));
  const job = status.jobs.find((entry) => entry.job === $("job").value) || null;
  const dimension = $("dimension").value;
  showFacts(status, job);
  if (status.store_revision !== knownRevision) {
    await readGroups();
    await showLocks();
    knownRevision = status.store_revision;
    await showHistory();
  } else if (turn % (HISTORY_EVERY * 10) === 0) {
    await showHistory();
  }
  if (!job) { showNothing(); return; }
  const where = `/admin/v2/status/${segment(job.job)}`;
  const [{ value: series }, { value: throttled }] = await Promise.all([
    call(`${where}/series?dimension=${dimension}&limit=180`), call(`${where}/namespaces?throttled=true&limit=50`)]);
  const scopes = new Map(job.scopes.filter((s) => s.level === "resource_group").map((s) => [s.scope, s]));
  const lines = new Map(series.scopes.filter((s) => s.level === "resource_group").map((s) => [s.scope, s]));
  for (const [name, card] of cards) {
    card.show(job, scopes.get(name), series.time_ms, lines.get(name), dimension);
    if (card.details.open) {
      const { value } = await call(`${where}/namespaces?limit=30&resource_group=${segment(name)}`);
      card.showMembers(value, dimension);
    }
  }
  showThrottled(throttled, dimension, job.listening ? "" : "When the job was last seen: ");
}

function chooseJobs(names) {
  const choice = $("job");
  const shown = [...choice.options].map((option) => option.value);
  if (shown.join("\n") !== names.join("\n")) {
    const chosen = choice.value;
    choice.replaceChildren(...names.map((name) => element("option", { value: name, selected: name === chosen }, name)));
  }
  $("job-choice").hidden = names.length === 0;
  $("dimension-choice").hidden = names.length === 0;
}

function showFacts(status, job) {
  const parts = [`store revision ${count(status.store_revision)}`];
  if (job) {
    parts.push(job.state === "unknown" ? "life unknown" : job.state);
    if (job.sign_age_ms !== null) parts.push(`sign of life ${duration(job.sign_age_ms)} ago`);
    parts.push(job.batch < 0 ? "no batch yet" : `batch ${count(job.batch)}, ${duration(job.batch_age_ms)} ago`);
    if (job.elapsed_ms && job.listening) parts.push(`${(job.elapsed_ms / 1000).toFixed(1)} s per batch`);
    const revision = job.store_revision === null ? "the job follows no store" : `revision ${count(job.store_revision)}`;
    parts.push(job.store_revision === null || !job.listening ? revision : `${revision} in force`);
  }
  $("facts").textContent = parts.join(" · ");
  $("job-choice").title = job?.problem || "";
  if (job && !job.listening) showProblem(`${job.job}: no job is listening: ${job.life}`);
  else if (job?.problem) showProblem(`${job.job}: ${job.problem}`);
  else showProblem("");
}

function showProblem(problem) {
  const text = visible(problem);
  let place = $("job-problem");
  if (!place) {
    place = element("p", { id: "job-problem", class: "problem", role: "alert" });
    $("board").prepend(place);
  }
  if (place.textContent !== text) place.textContent = text;
}

async function readGroups() {
  const { value: names } = await call(`/admin/v2/resourcegroup?limit=${GROUPS}`);
  for (const name of names) {
    if (!cards.has(name)) cards.set(name, new GroupCard(name, { isAdmin, onChanged: refresh }));
  }
  for (const name of [...cards.keys()]) if (!names.includes(name)) cards.delete(name);
  await Promise.all(names.map((name) => cards.get(name).read()));
  const roots = names.map((name) => cards.get(name).root);
  const place = $("groups");
  if (roots.length !== place.children.length || roots.some((root, at) => place.children[at] !== root)) {
    place.replaceChildren(...roots);
  }
  $("no-groups").hidden = names.length > 0 && names.length < GROUPS;
  $("no-groups").textContent = names.length ? `Only the first ${GROUPS} groups are shown.`
    : "There is no resource group yet: create one with spark-throttle group create.";
}

function showNothing() {
  const none = { job: "", recent: [], listening: true };
  for (const card of cards.values()) card.show(none, null, [], null, $("dimension").value);
  $("throttled-count").textContent = "The server watches no job: start it with --job name=<checkpoint>/throttle.";
}

function showThrottled(page, dimension, when) {
  const n = page.namespaces.length;
  $("throttled-count").textContent = when + (n
    ? `${count(page.backlogged)} of ${count(page.active)} active namespaces have a backlog; the largest come first.`
    : `None of ${count(page.active)} active namespaces has a backlog or rejected messages.`);
  $("throttled").hidden = n === 0;
  throttledRows.show(page.namespaces, "namespace", (row) => [
    ["", row.resource_group ?? "–"], ["number", count(row.offered_per_second)], ["number", count(row.admitted_per_second)],
    ["number", count(row.rejected_per_second)], ["number", quantity(row[`waiting_${dimension}`], dimension)],
    ["", heldBy(row)],
  ]);
}

function heldBy(row) {
  const held = row.held_by;
  if (!held) return "a throttling rule or the queue's bounds";
  const level = { namespace: "its own quota", tenant: `tenant ${held.scope}`, resource_group: `group ${held.scope}`,
    job: "the job's quota" }[held.level];
  const used = held.used_ratio === null ? "a quota of 0" : `${Math.round(held.used_ratio * 100)} % used`;
  return `${level} (${held.dimension}, ${used})`;
}

const LEVELS = { tenant: "tenant", resource_group: "group" };

async function explain(namespace) {
  const { value } = await call(`/admin/v2/explain/${segment(namespace)}?job=${segment($("job").value)}`);
  const rates = (pair) => [pair[0] === null ? null : `${count(pair[0])} messages`, pair[1] === null ? null : size(pair[1])]
    .filter(Boolean).join(", ") || "–";
  const seconds = (ms) => (ms === null ? "–" : `${count(ms / 1000)} s`);
  $("explanation-title").textContent = visible(`Why is ${namespace} held?`);
  const seen = value.last_batch;
  $("explanation-text").replaceChildren(
    element("h3", {}, "Which rule applies, and why"),
    element("ul", {}, ...[...value.reasons, ...value.notes].map((reason) => element("li", {}, reason))),
    element("h3", {}, "The levels that it passes"),
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Levels" },
      element("table", {}, element("thead", {}, element("tr", {},
        ...["Level", "Quota per second", "On excess", "Balance", "Backlog", "Free in"].map((title) =>
          element("th", { scope: "col" }, title)))),
      element("tbody", {}, ...value.levels.map((level) => element("tr", {},
        element("th", { scope: "row" }, ["job", "namespace"].includes(level.level) ? level.level : `${LEVELS[level.level]} ${level.scope}`),
        element("td", {}, level.per_second.every((rate) => rate === null) ? "no limit" : rates(level.per_second)),
        element("td", {}, level.on_excess), element("td", {}, rates(level.balance)),
        element("td", {}, level.waiting ? rates(level.waiting) : "–"), element("td", {}, seconds(level.release_ms))))))),
    seen ? element("p", {}, `In batch ${count(seen.batch_id)}: ${rates(seen.offered)} offered, ${rates(seen.admitted)} `
      + `admitted, ${rates(seen.rejected)} rejected, ${rates(seen.waiting)} waiting. `
      + (value.predicted_release_ms === null ? "" : `The backlog will be gone in ${seconds(value.predicted_release_ms)}, `
        + "if nothing more arrives.")) : "");
  $("explanation").showModal();
}

async function showHistory() {
  const { value } = await call("/admin/v2/history?limit=10");
  const shown = `${value[0]?.revision} ${isAdmin}`;
  if ($("history").dataset.shown === shown) return;  // a button that has the focus stays
  $("history").dataset.shown = shown;
  $("history").tBodies[0].replaceChildren(...value.map((entry) => element("tr", {},
    element("td", { class: "number" }, count(entry.revision)),
    element("td", {}, new Date(entry.at_ms).toISOString().replace("T", " ").slice(0, 19) + " UTC"),
    element("td", {}, entry.who), element("td", {}, [entry.door, entry.caller].filter(Boolean).join(": ") || "–"),
    element("td", { class: "wide" }, entry.why || "–"),
    element("td", { class: "number" }, count(entry.changes)),
    element("td", {}, element("button", { type: "button", hidden: !isAdmin || entry === value[0],
      "aria-label": `Roll back to revision ${entry.revision}`, onclick: () => goBack(entry.revision) }, "Roll back")))));
}

async function goBack(revision) {
  try {
    await rollBack(revision);
    await refresh();
  } catch (error) {
    await refresh();
    showAlert(error.message);
  }
}

async function showLocks() {
  const { value } = await call(`/admin/v2/policies/namespaces?locked=true&limit=${LOCKS}`);
  $("locks").tBodies[0].replaceChildren(...value.policies.map((entry) => {
    const { locked, ...policy } = entry.policy;
    return element("tr", {}, element("th", { scope: "row" }, entry.name),
      element("td", { class: "wide" }, locked ? JSON.stringify(policy) : "–"),
      element("td", { class: "number" }, count(entry.revision)));
  }));
  $("locks").hidden = value.policies.length === 0;
  $("locks-count").textContent = !value.policies.length ? "No entry is locked."
    : value.next === null ? "Only an administrator changes or removes these entries."
      : `Only an administrator changes or removes these entries; the first ${LOCKS} are shown.`;
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  session.keep($("token").value.trim());
  $("token").value = "";
  $("sign-in-problem").textContent = "";
  begin();
});
$("sign-out").addEventListener("click", () => end());
$("job").addEventListener("change", refresh);
$("dimension").addEventListener("change", refresh);
if (session.token) begin();
else $("token").focus();
