// The page: signs in, asks for news once a second, and hands it to the groups' cards and the tables.

import { call, segment, session } from "./client.js";
import { element, long, row, setText, titlesOf, visible } from "./elements.js";
import { Entries } from "./entries.js";
import { Exceptions } from "./exceptions.js";
import { GroupCard } from "./group.js";
import { History } from "./history.js";
import { count, duration } from "./numbers.js";
import { justBefore, learn, otherText, quotaText } from "./policy_fields.js";
import { ProcessingTime } from "./processing_time.js";
import { SharedQuotas } from "./shared_quotas.js";
import { ThrottledTable } from "./throttled.js";

const EVERY_MS = 1000;
const AFTER_ERROR_MS = 3000;
const SLOW_MS = 3000;
const HISTORY_EVERY = 30;
const GROUPS = 60;
const LOCKS = 50;
const $ = (id) => document.getElementById(id);

const cards = new Map();
const onProblem = (error) => { if (session.token) showAlert(error.message); };
const throttled = new ThrottledTable({ onProblem });
const processingTime = new ProcessingTime();
const sharedQuotas = new SharedQuotas();
const exceptions = new Exceptions();
const history = new History({ onChanged: refresh, onProblem });
const lists = ["tenants", "namespaces"].map((section) => new Entries(section, { onChanged: refresh, onProblem }));
$("entries").replaceChildren(...lists.map((list) => list.root));
let isAdmin = false;
let mostGroups = GROUPS;
let groupStart = "";
const gone = new Set();  // scopes of the newest batch of which no card is shown
let turn = 0;
let timer = null;
let shownRevision = null;  // the store's, of which the page shows the entries; null if that is not known
let answeredAt = null;

const showAlert = (problem) => setText($("alerts"), visible(problem));

// Do something, and say so if the server takes its time.
async function patiently(action) {
  const begun = Date.now();
  const slow = setInterval(() => {
    const numbers = answeredAt === null ? "" : ` The numbers below are of ${answeredAt.toLocaleTimeString("en", { hourCycle: "h23" })}.`;
    const seconds = Math.round((Date.now() - begun) / 1000);
    onProblem({ message: `The server is slow: the page has waited for its answer for ${seconds} s.${numbers}` });
  }, SLOW_MS);
  try {
    return await action();
  } finally {
    clearInterval(slow);
  }
}

async function begin() {
  clearTimeout(timer);
  try {
    const [caller, description] = await patiently(() => Promise.all(["/admin/v2/caller", "/openapi.json"].map((path) => call(path))));
    isAdmin = caller.value.role === "admin";
    learn(description.value.components.schemas.Quota);
  } catch (error) {
    if (!session.token) return;
    if ([401, 403].includes(error.status)) { end(problemOfToken(error)); return; }
    // The token may be right: it is kept until the server can say so.
    showAlert("");
    $("sign-in-problem").textContent = visible(error.message);
    timer = setTimeout(begin, AFTER_ERROR_MS);
    return;
  }
  showAlert("");
  $("sign-in").hidden = true;
  $("board").hidden = false;
  $("sign-out").hidden = false;
  history.isAdmin = isAdmin;
  for (const list of lists) list.isAdmin = isAdmin;
  await refresh();
}

const problemOfToken = (error) => (error.status === 401
  ? "The token is unknown or has expired. Sign in with one that is valid: spark-throttle token create makes one."
  : `This page needs a token of an admin or a viewer. ${error.message}`);

function end(problem = "") {
  clearTimeout(timer);
  session.end();
  cards.clear();
  for (const part of [exceptions, history, throttled, processingTime, sharedQuotas, ...lists]) part.forget();
  $("locks").tBodies[0].replaceChildren();
  for (const id of ["group-names", "job", "explanation-text", "confirmation-text", "editor-title", "editor-text"]) $(id).replaceChildren();
  $("explanation-title").textContent = "";
  $("job-problem")?.remove();
  shownRevision = null;
  answeredAt = null;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  $("groups").replaceChildren();
  $("facts").textContent = "";
  showAlert("");
  for (const id of ["board", "sign-out", "job-choice", "dimension-choice"]) $(id).hidden = true;
  $("sign-in").hidden = false;
  $("sign-in-problem").textContent = visible(problem);
  $("token").value = "";
  $("token").focus();
}

async function refresh() {
  clearTimeout(timer);
  if (!session.token) return;
  let wait = EVERY_MS;
  try {
    await patiently(update);
    answeredAt = new Date();
    showAlert("");
  } catch (error) {
    if (!session.token) return;
    if ([401, 403].includes(error.status)) { end(problemOfToken(error)); return; }
    onProblem(error);
    wait = AFTER_ERROR_MS;
  }
  turn += 1;
  clearTimeout(timer);
  timer = setTimeout(refresh, wait);
}

async function update() {
  const { value: status } = await call("/admin/v2/status");
  chooseJobs(status.jobs.map((job) => job.job));
  const job = status.jobs.find((entry) => entry.job === $("job").value) || null;
  const dimension = $("dimension").value;
  showFacts(status, job);
  if (status.store_revision === null) {
    shownRevision = null;  // what is shown stays, and is read anew as soon as the store can be read
  } else if (status.store_revision !== shownRevision) {
    await Promise.all([readGroups(job), showLocks(), exceptions.read(), history.read(), ...lists.map((list) => list.read())]);
    shownRevision = status.store_revision;
  } else {
    const worst = (job?.scopes ?? []).filter((s) => s.level === "resource_group").slice(0, mostGroups);
    if (!groupStart && worst.some((s) => !cards.has(s.scope) && !gone.has(s.scope))) await readGroups(job);
    if (turn % HISTORY_EVERY === 0) await Promise.all([history.read(), exceptions.read()]);
  }
  for (const list of lists) if (job) list.followed.show(job);
  processingTime.show(job);
  sharedQuotas.show(job, dimension);
  if (!job) { showNothing(); return; }
  const where = `/admin/v2/status/${segment(job.job)}`;
  const [{ value: series }] = await Promise.all([
    call(`${where}/series?dimension=${dimension}&limit=180`), throttled.read(job, dimension)]);
  const scopes = new Map(job.scopes.filter((s) => s.level === "resource_group").map((s) => [s.scope, s]));
  const lines = new Map(series.scopes.filter((s) => s.level === "resource_group").map((s) => [s.scope, s]));
  for (const [name, card] of cards) {
    card.show(job, scopes.get(name), series.time_ms, lines.get(name), dimension);
    if (card.details.open) {
      const { value } = await call(`${where}/namespaces?limit=30&resource_group=${segment(name)}`);
      card.showMembers(value, dimension);
    }
  }
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
  const isRead = status.store_revision !== null;
  const parts = [isRead ? `store revision ${count(status.store_revision)}` : "the policy store cannot be read"];
  if (job) {
    parts.push(job.state === "unknown" ? "life unknown" : job.state);
    if (job.sign_age_ms !== null) parts.push(`sign of life ${duration(job.sign_age_ms)} ago`);
    parts.push(job.batch < 0 ? "no batch yet" : `batch ${count(job.batch)}, ${duration(job.batch_age_ms)} ago`);
    if (job.elapsed_ms && job.listening) parts.push(`${(job.elapsed_ms / 1000).toFixed(1)} s per batch`);
    const revision = job.store_revision === null ? "the job follows no store" : `revision ${count(job.store_revision)}`;
    parts.push(job.store_revision === null || !job.listening ? revision : `${revision} in force`);
  }
  $("facts").textContent = parts.join("\u00a0· ");
  $("job-choice").title = job?.problem || "";
  const problems = isRead ? [] : [`policy store: ${status.store_problem}`];
  if (job && !job.listening) problems.push(`${job.job}: no job is listening: ${job.life}`);
  else if (job?.problem) problems.push(`${job.job}: ${job.problem}`);
  showProblem(problems.join(" · "));
}

function showProblem(problem) {
  let place = $("job-problem");
  if (!place) {
    place = element("p", { id: "job-problem", class: "problem", role: "alert" });
    $("board").prepend(place);
  }
  setText(place, visible(problem));
}

// Read the groups that the job ranks worst, then others by name; or, if a beginning was given, those of such names.
async function readGroups(job) {
  const read = async (path, query) => (await call(`/admin/v2/${path}?${new URLSearchParams(query)}`)).value;
  const worst = job && !groupStart ? (await read(`status/${segment(job.job)}/groups`, { limit: mostGroups })).policies : [];
  const page = await read("policies/resource_groups", { after: justBefore(groupStart), limit: mostGroups });
  const others = page.policies.filter(({ name }) => name.startsWith(groupStart) && !worst.some((entry) => entry.name === name));
  const found = [...worst, ...others].slice(0, mostGroups);
  const names = found.map((entry) => entry.name);
  gone.clear();
  for (const { scope } of job?.scopes ?? []) if (!names.includes(scope)) gone.add(scope);
  for (const entry of found) {
    if (!cards.has(entry.name)) cards.set(entry.name, new GroupCard(entry.name, { isAdmin, onChanged: refresh }));
    cards.get(entry.name).read(entry);
  }
  for (const name of [...cards.keys()]) if (!names.includes(name)) cards.delete(name);
  const roots = names.map((name) => cards.get(name).root);
  const place = $("groups");
  if (roots.length !== place.children.length || roots.some((root, at) => place.children[at] !== root)) {
    place.replaceChildren(...roots);
    $("group-names").replaceChildren(...names.map((name) => element("option", { value: name })));
  }
  $("no-groups").hidden = names.length > 0 || groupStart !== "";
  $("groups-about").textContent = groupStart ? (names.length ? "" : `No group begins with ${groupStart}.`)
    : page.next === null ? "" : `${names.length} groups: those that are worst off in the job first, then others by name.`;
  $("more-groups").hidden = page.next === null || mostGroups >= 1000;
}

function showNothing() {
  const none = { job: "", recent: [], listening: true };
  for (const card of cards.values()) card.show(none, null, [], null, $("dimension").value);
  throttled.showNoJob();
}

async function showLocks() {
  const { value } = await call(`/admin/v2/policies/namespaces?locked=true&limit=${LOCKS}`);
  const titles = titlesOf($("locks"));
  $("locks").tBodies[0].replaceChildren(...value.policies.map(({ name, policy, revision, exception }) => row(titles, [
    ["head", long(name)], ["", policy.resource_group ? long(policy.resource_group) : "–"],
    ["text", quotaText(policy.publish) || "no limit"], ["text", quotaText(policy.dispatch) || "no limit"],
    ["text", otherText({ ...policy, locked: false }, exception) || "–"], ["number", count(revision)],
  ])));
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
function showGroups(start, most) {
  [groupStart, mostGroups, shownRevision] = [start, Math.min(most, 1000), null];
  refresh();
}

$("more-groups").addEventListener("click", () => showGroups(groupStart, mostGroups + GROUPS));
$("find-groups").addEventListener("submit", (event) => {
  event.preventDefault();
  showGroups($("group-start").value, GROUPS);
});
if (session.token) begin();
else $("token").focus();
