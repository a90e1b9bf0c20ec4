// Calls of the admin API with the token that this tab keeps, and numbers for people to read.

const KEPT = "spark-throttle-token";

export const session = {
  get token() { return sessionStorage.getItem(KEPT); },
  keep(token) { sessionStorage.setItem(KEPT, token); },
  end() { sessionStorage.removeItem(KEPT); },
};

// An error with the server's own words for what it refused.
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || `the server answered ${status}`);
    this.status = status;
    this.path = problem.path;
    this.losses = problem.losses || [];
  }
}

export async function call(path, { method = "GET", body, ifMatch } = {}) {
  const headers = { Authorization: `Bearer ${session.token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (ifMatch) headers["If-Match"] = ifMatch;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused(0, { detail: "the server does not answer; the page keeps trying" });
  }
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, value);
  return { value, etag: answer.headers.get("ETag") };
}

// A text with every character visible: one without a glyph of its own could make a name look like another.
export const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu,
  (character) => `\\u{${character.codePointAt(0).toString(16)}}`);

export const segment = (name) => encodeURIComponent(name);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const fine = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 100 || Number.isInteger(value) ? whole.format(value) : fine.format(value);
}

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let power = 0;
  let left = bytes;
  while (Math.abs(left) >= 1024 && power < UNITS.length - 1) { left /= 1024; power += 1; }
  return `${fine.format(left)} ${UNITS[power]}`;
}

// A duration for people to read, such as 0.4 s, 12 s, 3 min or 5 h.
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 120e3) return `${fine.format(ms < 10e3 ? Math.round(ms / 100) / 10 : Math.round(ms / 1e3))} s`;
  return ms < 7200e3 ? `${whole.format(ms / 60e3)} min` : `${whole.format(ms / 3600e3)} h`;
}

export const quantity = (value, dimension) => (dimension === "bytes" ? size(value) : count(value));

// The value of a number that was typed: 5000, 0.5, 8MiB, 1.5 MB; null for an empty text, NaN if it is not a number.
export function typed(text) {
  const found = /^\s*([0-9]*\.?[0-9]+(?:e[0-9]+)?)\s*([kKMGT]?)(i?)(B?)\s*$/i.exec(text);
  if (text.trim() === "") return null;
  if (!found || (found[2] && !found[4])) return NaN;
  const power = ["", "K", "M", "G", "T"].indexOf(found[2].toUpperCase());
  return Number(found[1]) * (found[3] ? 1024 : 1000) ** power;
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "title" || name === "aria-label") made.setAttribute(name, visible(value));
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined)
    .map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

// Rows of a table, which keep their elements while their numbers change, so that no focus and no click is lost.
export class Rows {
  constructor(body, head) {
    this.body = body;
    this.head = head;
    this.rows = new Map();
  }

  // Show `items`, named by `key`; `cells` gives the class and the content of every cell after the first.
  show(items, key, cells) {
    const kept = new Map();
    for (const item of items) {
      const name = item[key];
      const row = this.rows.get(name) || element("tr", {}, element("th", { scope: "row" }, this.head(item)));
      const wanted = cells(item);
      while (row.children.length <= wanted.length) row.append(element("td"));
      wanted.forEach(([kind, content], at) => {
        const cell = row.children[at + 1];
        cell.className = kind;
        if (typeof content !== "string") cell.replaceChildren(content);
        else if (cell.textContent !== visible(content)) cell.textContent = visible(content);
      });
      kept.set(name, row);
    }
    for (const [name, row] of this.rows) if (!kept.has(name)) row.remove();
    this.rows = kept;
    [...kept.values()].forEach((row, at) => {
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] || null);
    });
  }
}
