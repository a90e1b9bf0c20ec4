// A group's quota is shared evenly or not, in words.

import { count, some } from "./numbers.js";

export function fairnessText(page) {
  const left = page.active - page.namespaces.length;
  return comparison(page) + (left > 0 ? ` The ${count(page.namespaces.length)} with the most messages are shown.` : "");
}

function comparison({ active, backlogged, fairness_ratio: ratio, namespaces }) {
  const who = `${some(active, "active namespace")}, ${count(backlogged)} of them with a backlog. `;
  if (backlogged < 2) return `${who}Namespaces compete only while two or more have a backlog.`;
  if (namespaces.length && namespaces.every(({ service }) => service === null)) {
    return `${who}The group has no quota to share, or one of 0.`;
  }
  if (ratio === null) return `${who}Fewer than two of these were admitted anything in the newest batches, so there is nothing to compare.`;
  const compared = ratio < 1.005 ? "those that were admitted anything had equal shares by weight."
    : `of those that were admitted anything, the best served had ${ratio.toFixed(2)} times the share by weight of the worst served.`;
  return `${who}In the newest batches ${compared} Equal shares are fair, unless a quota of its own or its tenant's holds a namespace back.`;
}
