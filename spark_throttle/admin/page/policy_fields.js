// The fields of a policy as the page edits them: read, shown, and written back. Nothing here touches the document.

import { count, exactSize, size, some, typedNumber, typedSize } from "./numbers.js";

export const DIRECTIONS = ["publish", "dispatch"];

// The fields of a quota, from the API's own description of it. Some are only of entries for many namespaces.
export let FIELDS = [];

export function learn({ Quota, NamespaceQuota }) {
  FIELDS = Object.entries(NamespaceQuota.properties).map(([key, said]) => {
    const choices = said.type === "boolean" ? [false, true] : said.enum;
    const isRate = said.minimum === 0 && said.default === null && !key.startsWith("guaranteed_");
    return {
      key, choices, preset: said.default, isOfMany: !(key in Quota.properties),
      isRate, fillsBucket: isRate && !/_per_(hour|day|month)$/.test(key),
      title: key.charAt(0).toUpperCase() + key.slice(1).replaceAll("_", " "),
      text: said.description.replaceAll("`", "").replaceAll("\n", " "),
      show: key.includes("bytes") ? exactSize : String,
      read: choices ? (text) => choices.find((choice) => String(choice) === text)
        : key.includes("bytes") ? typedSize : typedNumber,
    };
  });
}

const isPreset = (key, value) => FIELDS.some((field) => field.key === key && field.choices && field.preset === value);

const WAITS = "rows wait until a bound of the queue is reached, and are then rejected";

// Whether a quota admits nothing and lets rows wait for it.
export const delaysAll = (quota) => FIELDS.some(({ key, isRate }) => isRate && quota[key] === 0)
  && (quota.on_excess || "delay") === "delay";

export const DELAYS_ALL = `0 under delay admits nothing: ${WAITS}. To reject them at once, choose reject.`;

// How a value of a quota is told where its key and its number would not do.
const TOLD = {
  messages_per_second: (rate) => `${some(rate, "message")}/s`, bytes_per_second: (rate) => `${size(rate)}/s`,
  request_percentage: (percent) => `${percent} % of a core`, burst_seconds: (seconds) => `burst ${seconds} s`,
  units_per_second: (rate) => `${count(rate)} units/s`,
  max_message_bytes: (bytes) => `largest message ${size(bytes)}`, on_excess: String,
  observe_percent: (percent) => `${percent} % of the names only observed`,
};

// One direction of a policy in words; empty where it sets no limit. What fills a bucket is told with its defaults.
export function quotaText(quota = {}) {
  const hasRate = FIELDS.some(({ key, fillsBucket }) => fillsBucket && quota[key] !== undefined);
  const all = Object.fromEntries(FIELDS.map(({ key, preset, isOfMany }) =>
    [key, quota[key] ?? (hasRate && !isOfMany ? preset : null)]));
  const parts = Object.entries(all).filter(([, value]) => value !== null)
    .map(([key, value]) => (TOLD[key] ?? ((each) => `${key.replaceAll("_", " ")} ${key.includes("bytes") ? size(each) : count(each)}`))(value));
  return parts.join(", ") + (delaysAll(quota) ? ` (0 admits nothing: ${WAITS})` : "");
}

// What an exception sets, by path.
export const setsText = (sets) => Object.entries(flat(sets)).map(([path, value]) => `${path}: ${value}`).join(", ");

// The exception of a policy in words; null if it has none. `state` is the API's.
export function exceptionText({ exception }, state) {
  if (!exception) return null;
  const { until, reason, ...sets } = exception;
  return `${state === "ended" ? "exception ended" : "exception until"} ${until}: ${setsText(sets)} (${reason})`;
}

// What a policy sets at hours of the week, in words; none if it has no schedule.
export const scheduleTexts = ({ schedule = {} }) =>
  Object.entries(schedule).map(([hours, sets]) => `at ${hours} ${setsText(sets)}`);

// What an entry says beside its quotas and its group: nothing that the form edits, and it stays as it is.
export function otherText(policy, state) {
  const { publish, dispatch, resource_group: group, locked, exception, schedule, ...others } = policy;
  return [exceptionText(policy, state), ...scheduleTexts(policy), locked ? "locked" : null, ...Object.entries(flat(others)).map(([path, value]) => `${path}: ${value}`)]
    .filter(Boolean).join(", ");
}

// A policy with what was typed: `values` by path, such as publish.weight. Null is left out, and a preset choice.
export function changedPolicy(policy, values) {
  const changed = structuredClone(policy);
  for (const [path, value] of Object.entries(values)) {
    const [direction, key] = path.includes(".") ? path.split(".") : [null, path];
    const place = direction ? (changed[direction] ??= {}) : changed;
    if (value === null || value === false || isPreset(key, value)) delete place[key];
    else place[key] = value;
    if (direction && !Object.keys(place).length) delete changed[direction];
  }
  return changed;
}

// A policy with what was typed as an exception: it sets what differs, until a time, and the rest stays as it is. Throws
// what is wanted instead.
export function exceptedPolicy(policy, values, untilMs, reason) {
  const changed = changedPolicy(policy, values);
  const sets = {};
  for (const [path] of differences(policy, changed)) {
    const [direction, key] = path.split(".");
    if (!DIRECTIONS.includes(direction)) throw new RangeError(`${path} cannot be set for a time only, quotas can`);
    const value = values[path] ?? FIELDS.find((field) => field.key === key).preset;
    if (value === null) throw new RangeError(`an exception sets quotas, and takes none away: give ${path} a number`);
    (sets[direction] ??= {})[key] = value;
  }
  if (!Object.keys(sets).length) throw new RangeError("change a quota above, or leave this empty");
  if (!reason.trim()) throw new RangeError("an exception needs a reason: say why");
  return { ...policy, exception: { until: new Date(untilMs).toISOString().replace(".000Z", "Z"), reason: reason.trim(), ...sets } };
}

// What differs between two policies: [path, before, after] as texts.
export function differences(before, after) {
  const [was, becomes] = [flat(before), flat(after)];
  const said = (path, value) => (value === undefined ? "–" : path.includes("bytes") ? exactSize(value) : String(value));
  return [...new Set([...Object.keys(was), ...Object.keys(becomes)])].filter((path) => was[path] !== becomes[path])
    .map((path) => [path, said(path, was[path]), said(path, becomes[path])]);
}

const flat = (policy) => Object.fromEntries(Object.entries(policy).flatMap(([key, value]) =>
  (typeof value === "object" ? Object.entries(flat(value)).map(([inner, each]) => [`${key}.${inner}`, each]) : [[key, value]])));

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
