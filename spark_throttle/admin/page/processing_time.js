// The processing time of the scopes that have a quota on it, or used any.

import { Rows, nameOf, partMeter } from "./elements.js";
import { duration, percent } from "./numbers.js";

export class ProcessingTime {
  constructor() {
    this.section = document.getElementById("time");
    this.about = document.getElementById("time-about");
    this.rows = new Rows(document.getElementById("times"), (row) => row.name);
  }

  forget() {
    this.section.hidden = true;
    this.about.textContent = "";
    this.rows.show([], "name", () => []);
  }

  show(job) {
    const time = job?.time;
    this.section.hidden = !time;
    if (!time) return;
    this.about.textContent = aboutText(time);
    const named = time.scopes.map((scope) => ({ ...scope, name: nameOf(scope) }));
    this.rows.show(named, "name", (scope) => [
      ["number", quotaOf(scope)],
      ["number", percent(scope.used_percentage)], ["", partOf(scope)],
      ["number", scope.balance_ns === null ? "–" : duration(scope.balance_ns / 1e6)],
      ["number", scope.throttle_ms === null ? "–" : duration(scope.throttle_ms)],
      ["number", scope.ns_per_message === null ? "–" : `${(scope.ns_per_message / 1e6).toPrecision(3)} ms`],
    ]);
  }
}

// What was used in the interval, and what of it limits nobody.
export function aboutText(time) {
  const of = (ns) => (time.interval_ms ? percent(ns / time.interval_ms / 1e4) : duration(ns / 1e6));
  const parts = [`In percent of one core, over the ${duration(time.interval_ms)} between the newest two epochs.`];
  if (time.exempt_ns) parts.push(`Exempt namespaces used ${of(time.exempt_ns)}, which limits nobody.`);
  if (time.unattributed_ns) parts.push(`${of(time.unattributed_ns)} belongs to no namespace.`);
  return parts.join(" ");
}

function quotaOf({ request_percentage: quota, share_percentage: share }) {
  if (quota === null) return "no limit";
  return share === quota ? percent(quota) : `${percent(share)} of ${percent(quota)}`;
}

function partOf(scope) {
  if (!scope.share_percentage || scope.used_percentage === null) return "–";
  return partMeter(scope.used_percentage / scope.share_percentage, "used part of the quota");
}
