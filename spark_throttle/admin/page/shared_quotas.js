// The quotas that a job shares with other jobs: its own part of each now, and how the jobs stand with each other.

import { Rows, nameOf, partMeter, setText, visible } from "./elements.js";
import { duration, quantity } from "./numbers.js";

export class SharedQuotas {
  constructor() {
    this.section = document.getElementById("shared");
    this.about = document.getElementById("shared-about");
    this.problem = document.getElementById("shared-problem");
    this.rows = new Rows(document.getElementById("shares"), (row) => row.name);
  }

  forget() {
    this.section.hidden = true;
    for (const place of [this.about, this.problem]) place.textContent = "";
    this.rows.show([], "name", () => []);
  }

  show(job, dimension) {
    const exchange = job?.exchange;
    this.section.hidden = !exchange;
    if (!exchange) return;
    setText(this.about, visible(`${job.job} ${exchange.detail}. ${membersText(exchange)}`));
    setText(this.problem, visible(exchange.problem ?? ""));
    const shared = job.scopes.filter((scope) => RATES.some((rate) => scope[`share_${rate}`] !== null));
    const rate = (value) => (value === null ? "no limit" : `${quantity(value, dimension)}/s`);
    this.rows.show(shared.map((scope) => ({ ...scope, name: nameOf(scope) })), "name", (scope) => [
      ["number", rate(scope[`${dimension}_per_second`])], ["number", rate(scope[`share_${dimension}_per_second`])],
      ["", scope.utilisation === null ? "–" : partMeter(scope.utilisation, "part of the quota that all jobs use")],
    ]);
  }
}

const RATES = ["messages_per_second", "bytes_per_second", "units_per_second"];

// The other jobs, and when each reported last.
export const membersText = ({ peers }) => (!peers.length ? "No other job has joined."
  : `The others: ${peers.map((peer) => `${peer.name} (${peer.state}, reported ${duration(peer.report_age_ms)} ago)`).join(", ")}.`);
