// The fields of a policy as the page edits them: read, shown, and written back. Nothing here touches the document.

import { exactSize, size, some, typedNumber, typedSize } from "./numbers.js";

export const DIRECTIONS = ["publish", "dispatch"];

const messages = (text) => typedNumber(text, { what: "a number of messages without a unit, such as 5000 or 0.5" });

// Each field of a quota but `on_excess`: its key in a policy document, its name, and how it is read and shown.
export const FIELDS = [
  { key: "messages_per_second", title: "Messages per second", hint: "no limit", read: messages, show: String },
  { key: "bytes_per_second", title: "Bytes per second", hint: "no limit; 8MiB", read: typedSize, show: exactSize },
  { key: "request_percentage", title: "Processing time, in % of a core", hint: "no limit; 250 is 2.5 cores", show: String,
    read: (text) => typedNumber(text, { what: "a number of percent without a unit, such as 50 or 250" }) },
  { key: "max_message_bytes", title: "Largest message", hint: "no limit; 1MiB", read: typedSize, show: exactSize },
  { key: "burst_seconds", title: "Burst, in seconds", hint: "10", show: String,
    read: (text) => typedNumber(text, { what: "a number of seconds without a unit, such as 10 or 0.5" }) },
  { key: "weight", title: "Weight", hint: "1", show: String,
    read: (text) => typedNumber(text, { what: "a whole number from 1 to 1000" }) },
];

export const EXCESS = { delay: "delay: rows wait", reject: "reject: rows go to the dead letters",
  observe: "observe: all rows pass, and the excess is counted" };

const WAITS = "rows wait until a bound of the queue is reached, and are then rejected";

export const RATES = ["messages_per_second", "bytes_per_second", "request_percentage"];

// Whether a quota admits nothing and lets rows wait for it.
export const delaysAll = (quota) => RATES.some((key) => quota[key] === 0)
  && (quota.on_excess || "delay") === "delay";

export const DELAYS_ALL = `0 under delay admits nothing: ${WAITS}. To reject them at once, choose reject.`;

// One direction of a policy in words; empty where it sets no limit.
export function quotaText(quota = {}) {
  const rates = [
    quota.messages_per_second === undefined ? null : `${some(quota.messages_per_second, "message")}/s`,
    quota.bytes_per_second === undefined ? null : `${size(quota.bytes_per_second)}/s`,
    quota.request_percentage === undefined ? null : `${String(quota.request_percentage)} % of a core`,
  ].filter(Boolean);
  const parts = rates.length ? [...rates, `burst ${String(quota.burst_seconds ?? 10)} s`] : [];
  if (rates.length || quota.weight !== undefined) parts.push(`weight ${String(quota.weight ?? 1)}`);
  if (rates.length) parts.push(quota.on_excess || "delay");
  if (quota.max_message_bytes !== undefined) parts.push(`largest message ${size(quota.max_message_bytes)}`);
  return parts.join(", ") + (delaysAll(quota) ? ` (0 admits nothing: ${WAITS})` : "");
}

// What an entry says beside its quotas and its group: nothing that the form edits, and it stays as it is.
export function otherText(policy) {
  const { publish, dispatch, resource_group: group, locked, ...others } = policy;
  return [locked ? "locked" : null, ...Object.entries(others).map(([key, value]) => `${key}: ${value}`)]
    .filter(Boolean).join(", ");
}

// A policy with what was typed: `values` by path, such as publish.weight. Null and default values are left out.
export function changedPolicy(policy, values) {
  const changed = structuredClone(policy);
  for (const [path, value] of Object.entries(values)) {
    const [direction, key] = path.includes(".") ? path.split(".") : [null, path];
    const place = direction ? (changed[direction] ??= {}) : changed;
    if (value === null || value === false || (key === "on_excess" && value === "delay")) delete place[key];
    else place[key] = value;
    if (direction && !Object.keys(place).length) delete changed[direction];
  }
  return changed;
}

// What differs between two policies: [path, before, after] as texts.
export function differences(before, after) {
  const [was, becomes] = [flat(before), flat(after)];
  const said = (path, value) => (value === undefined ? "–" : path.includes("bytes") ? exactSize(value) : String(value));
  return [...new Set([...Object.keys(was), ...Object.keys(becomes)])].filter((path) => was[path] !== becomes[path])
    .map((path) => [path, said(path, was[path]), said(path, becomes[path])]);
}

const flat = (policy) => Object.fromEntries(Object.entries(policy).flatMap(([key, value]) =>
  (DIRECTIONS.includes(key) ? Object.entries(value).map(([inner, each]) => [`${key}.${inner}`, each]) : [[key, value]])));

// The name right before all names that begin with a text, so that a page after it begins with them.
export function justBefore(text) {
  if (!text) return "";
  const last = [...text].at(-1);
  const code = last.codePointAt(0);
  const head = text.slice(0, -last.length);
  if (code === 0) return head;
  return `${head}${String.fromCodePoint(code === 0xe000 ? 0xd7ff : code - 1)}\u{10ffff}`;
}

// Changes of the store, newest first, after the newest were read again: those that were shown before stay shown.
export function mergedHistory(shown, newest) {
  const last = newest.at(-1);
  if (!last || !shown.length || shown[0].revision < last.revision - 1 || shown[0].revision > newest[0].revision) {
    return newest;
  }
  return [...newest, ...shown.filter((entry) => entry.revision < last.revision)];
}
