// The page: signs in, asks for news once a second, and hands it to its parts.

import { address } from "./address.js";
import { call, session } from "./client.js";
import { element, long, row, setText, titlesOf, visible } from "./elements.js";
import { Entries } from "./entries.js";
import { Exceptions } from "./exceptions.js";
import { History } from "./history.js";
import { Jobs } from "./jobs.js";
import { count, duration } from "./numbers.js";
import { learn, otherText, quotaText } from "./policy_fields.js";
import { ProcessingTime } from "./processing_time.js";
import { Scopes } from "./scopes.js";
import { SharedQuotas } from "./shared_quotas.js";
import { ThrottledTable } from "./throttled.js";

const EVERY_MS = 1000;
const AFTER_ERROR_MS = 3000;
const SLOW_MS = 3000;
const HISTORY_EVERY = 30;
const LOCKS = 50;
const SHARED = 20;  // groups, and tenants, whose shares are shown
const $ = (id) => document.getElementById(id);

const onProblem = (error) => { if (session.token) showAlert(error.message); };
const throttled = new ThrottledTable({ onProblem });
const processingTime = new ProcessingTime();
const sharedQuotas = new SharedQuotas();
const exceptions = new Exceptions();
const history = new History({ onChanged: refresh, onProblem });
const jobs = new Jobs({ onChosen: (job) => choose({ job, open: [] }) });
const scopes = new Scopes({ onChanged: refresh, onProblem, revisionAt: (ms) => history.revisionAt(ms) });
const lists = ["resource_groups", "tenants", "namespaces"].map((section) => new Entries(section, { onChanged: refresh, onProblem }));
$("entries").replaceChildren(...lists.map((list) => list.root));
let caller = null;
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
    const [asked, description] = await patiently(() => Promise.all(["/admin/v2/caller", "/openapi.json"].map((path) => call(path))));
    caller = asked.value;
    learn(description.value.components.schemas);
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
  const isTenant = caller.role === "tenant_admin";
  for (const part of [history, scopes, ...lists]) part.isAdmin = caller.role === "admin";
  scopes.isTenant = isTenant;
  // What concerns others is not asked for: a tenant's people see their own tenant and its namespaces.
  for (const id of ["find-scopes", "changes", "locked"]) $(id).hidden = isTenant;
  lists[0].root.hidden = isTenant;
  setText($("scopes-title"), isTenant ? `Tenant ${visible(caller.tenant)}` : "Groups and tenants");
  await refresh();
}

const problemOfToken = (error) => (error.status === 401
  ? "The token is unknown or has expired. Sign in with one that is valid: spark-throttle token create makes one."
  : `This page needs a token that may read. ${error.message}`);

function end(problem = "") {
  clearTimeout(timer);
  session.end();
  address.forget();
  for (const part of [exceptions, history, jobs, scopes, throttled, processingTime, sharedQuotas, ...lists]) part.forget();
  $("locks").tBodies[0].replaceChildren();
  for (const id of ["group-names", "job", "explanation-text", "confirmation-text", "editor-title", "editor-text"]) $(id).replaceChildren();
  $("explanation-title").textContent = "";
  $("job-problem")?.remove();
  shownRevision = null;
  answeredAt = null;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  $("scopes-title").textContent = "Groups and tenants";
  $("facts").textContent = "";
  showAlert("");
  for (const id of ["board", "sign-out", "job-choice", "dimension-choice", "range-choice"]) $(id).hidden = true;
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
  const { value: status } = await call(`/admin/v2/status?scopes=${SHARED}`);
  const { job: named, dimension, range } = address.read();
  const job = status.jobs.find((entry) => entry.job === named) || status.jobs[0] || null;
  showChoices(status.jobs.map((entry) => entry.job), job, dimension, range);
  showFacts(status, job);
  jobs.show(status.jobs);
  if (status.store_revision === null) {
    shownRevision = null;  // what is shown stays, and is read anew as soon as the store can be read
  } else if (status.store_revision !== shownRevision) {
    await Promise.all([...(caller.role === "tenant_admin" ? [] : [showLocks(), history.read(), readGroupNames()]),
      exceptions.read(), scopes.readEntries(), ...lists.filter(({ root }) => !root.hidden).map((list) => list.read())]);
    shownRevision = status.store_revision;
  } else if (turn % HISTORY_EVERY === 0) {
    await Promise.all([...(caller.role === "tenant_admin" ? [] : [history.read()]), exceptions.read()]);
  }
  for (const list of lists) if (job) list.followed.show(job);
  processingTime.show(job);
  sharedQuotas.show(job, dimension);
  if (job) await Promise.all([scopes.read(job), throttled.read(job, dimension)]);
  else for (const part of [scopes, throttled]) part.showNoJob();
}

// The groups that a form offers.
async function readGroupNames() {
  if (caller.role !== "admin") return;
  const { value } = await call("/admin/v2/policies/resource_groups?limit=500");
  $("group-names").replaceChildren(...value.policies.map(({ name }) => element("option", { value: name })));
}

function showChoices(names, job, dimension, range) {
  const choice = $("job");
  if (names.join("\n") !== [...choice.options].map((option) => option.value).join("\n")) {
    choice.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  }
  choice.value = job?.job ?? "";
  $("dimension").value = dimension;
  $("dimension").querySelector("[value=units]").textContent = job?.unit ?? "units";
  $("range").value = range;
  for (const id of ["job-choice", "dimension-choice", "range-choice"]) $(id).hidden = names.length === 0;
}

function choose(changes) {
  address.write(changes);
  refresh();
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
$("job").addEventListener("change", () => choose({ job: $("job").value, open: [] }));
$("dimension").addEventListener("change", () => choose({ dimension: $("dimension").value }));
$("range").addEventListener("change", () => choose({ range: $("range").value }));
$("find-scopes").addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", refresh);
if (session.token) begin();
else $("token").focus();
