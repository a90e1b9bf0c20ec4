// What a change would have done to the recorded traffic of a job, beside the policies in force.

import { element, nameOf, row } from "./elements.js";
import { count, duration, some } from "./numbers.js";

const MOST = 12;
const TITLES = ["Scope", "Offered", "Delayed", "99 % of these up to", "Still waiting", "Rejected", "Admitted more"];

export function outcome({ what_if: found, plan }) {
  const length = duration(found.end_ms - found.first_ms);
  const head = `In the last ${length} of the job (${some(found.messages, "message")}, right to ${duration(found.interval_ms)}), with full buckets at first`;
  const losses = plan.losses.length ? [element("ul", { class: "losses" }, ...plan.losses.map((loss) => element("li", {}, loss)))] : [];
  const left = found.not_replayed.map((each) => element("p", { class: "hint" }, `Not replayed: ${each}.`));
  if (!found.scopes.length) return [element("p", {}, `${head}, it would have changed nothing: nobody would have waited, before or after.`), ...left, ...losses];
  const rows = found.scopes.slice(0, MOST).map((scope) => {
    const [after, before] = [scope.policy, scope.against];
    const both = (text) => (before === null ? text(after) : text(before) === text(after) ? text(after) : `${text(before)} → ${text(after)}`);
    const gained = before === null ? after.admitted_messages : after.admitted_messages - before.admitted_messages;
    return row(TITLES, [["head", nameOf(scope)], ["number", count(scope.offered_messages)],
      ["number", both((each) => count(each.delayed_messages))], ["number", both((each) => duration(each.delay_p99_ms))],
      ["number", both((each) => count(each.waiting_messages))], ["number", both((each) => count(each.rejected_messages))],
      ["number", count(gained)]]);
  });
  const more = found.scopes.length - rows.length;
  return [element("p", {}, `${head}, before → after:`),
    element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "What it would have done" },
      element("table", { class: "stack" },
        element("thead", {}, element("tr", {}, ...TITLES.map((title, at) => element("th", { scope: "col", class: at ? "number" : null }, title)))),
        element("tbody", {}, ...rows))),
    ...(more > 0 ? [element("p", { class: "quiet" }, `and ${some(more, "scope")} that wait less.`)] : []), ...left, ...losses];
}
