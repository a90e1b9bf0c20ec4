// Calls of the admin API with the token that this tab keeps.

import { advice } from "./advice.js";

const KEPT = "spark-throttle-token";
const LONGEST_WAIT_MS = 20e3;

export const session = {
  get token() { return sessionStorage.getItem(KEPT); },
  keep(token) { sessionStorage.setItem(KEPT, token); },
  end() { sessionStorage.removeItem(KEPT); },
};

// An error with the server's own words for what it refused.
export class RefusalError extends Error {
  constructor(status, problem) {
    super(problem.detail || `the server answered ${status}`);
    this.status = status;
    this.path = problem.path;
    this.losses = problem.losses || [];
  }
}

export async function call(path, { method = "GET", body, ifMatch, ifNoneMatch } = {}) {
  const { token } = session;
  const headers = { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (ifMatch) headers["If-Match"] = ifMatch;
  if (ifNoneMatch) headers["If-None-Match"] = ifNoneMatch;
  const isTried = path.includes("dry_run=true");
  const isChange = method !== "GET" && !isTried;
  const refused = (status, problem) =>
    new RefusalError(status, { ...problem, detail: advice(status, problem.detail, { isChange, isTried }) });
  let answer;
  let value;
  try {
    const signal = AbortSignal.timeout(LONGEST_WAIT_MS);
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal });
    value = await answer.json();
  } catch (error) {
    if (!answer || error.name === "TimeoutError") {
      throw refused(0, { detail: error.name === "TimeoutError" ? `the server has not answered for ${LONGEST_WAIT_MS / 1e3} s`
        : "the server cannot be reached" });
    }
    if (answer.ok) throw refused(answer.status, { detail: "what answered is not the admin API" });
    value = {};  // a proxy's own page
  }
  if (session.token !== token) throw new RefusalError(0, { detail: "signed out meanwhile" });  // nobody is there to see it
  if (!answer.ok) throw refused(answer.status, value);
  return { value, etag: answer.headers.get("ETag") };
}

export const segment = (name) => encodeURIComponent(name);
