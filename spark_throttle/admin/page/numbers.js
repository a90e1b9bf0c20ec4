// Numbers for people to read, and the numbers that people type. Nothing here touches the document.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 100 || Number.isInteger(value) ? whole.format(value) : fine.format(value);
}

export const percent = (value) => (value === null || value === undefined ? "–" : `${fine.format(value)} %`);

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let power = 0;
  let left = bytes;
  while (Math.abs(left) >= 1024 && power < UNITS.length - 1) { left /= 1024; power += 1; }
  return `${fine.format(left)} ${UNITS[power]}`;
}

// A size without rounding, as it may be typed: 8MiB, 1000.
export function exactSize(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes > 0 && bytes % factor === 0) return `${bytes / factor}${unit}`;
  }
  return String(bytes);
}

// A duration for people to read, such as 0.4 s, 12 s, 3 min or 5 h.
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 120e3) return `${fine.format(ms < 10e3 ? Math.round(ms / 100) / 10 : Math.round(ms / 1e3))} s`;
  return ms < 7200e3 ? `${whole.format(ms / 60e3)} min` : `${whole.format(ms / 3600e3)} h`;
}

// A number for the scale of a chart, in as little room as possible: 25K, 1.5M.
const brief = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });
export const scaleText = (value, dimension) => (dimension === "bytes" ? size(value) : brief.format(value));

// A rate of a namespace in messages, bytes or units, as the API names it.
export const rateOf = (namespace, what, dimension) =>
  quantity(namespace[dimension === "messages" ? `${what}_per_second` : `${what}_${dimension}_per_second`], dimension);

export const quantity = (value, dimension) => (dimension === "bytes" ? size(value) : count(value));

// A number of things with their name: 1 namespace, 2 namespaces.
export const some = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

const NUMBER = "[0-9]*\\.?[0-9]+(?:e[0-9]+)?";
const BARE = new RegExp(`^${NUMBER}$`, "i");
const SIZED = new RegExp(`^(${NUMBER})\\s*([kKMGT]?)(i?)(B?)$`);

// What was typed as a number without a unit: null for an empty text. Throws what is wanted instead.
export function typedNumber(text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  if (!BARE.test(trimmed)) throw new RangeError(`${JSON.stringify(trimmed)} is not a number without a unit, such as 5000 or 0.5`);
  return Number(trimmed);
}

// What was typed as a number of bytes: 5000, 8MiB (powers of 1024), 1.5 MB (powers of 1000); null for an empty text.
export function typedSize(text) {
  const trimmed = text.trim();
  if (trimmed === "") return null;
  const found = SIZED.exec(trimmed);
  if (!found || (found[3] && !found[2]) || (found[2] && !found[4])) {
    throw new RangeError(`${JSON.stringify(trimmed)} is not a number of bytes, such as 5000, 8MiB (powers of 1024) or `
      + "1.5 MB (powers of 1000)");
  }
  const power = ["", "K", "M", "G", "T"].indexOf(found[2].toUpperCase());
  return Number(found[1]) * (found[3] ? 1024 : 1000) ** power;
}
