// A scope's offered and admitted rates against its quota, and its backlog, over time; changes of policy are marked.

import { quantity, scaleText } from "./numbers.js";

const HEIGHT = 220;
const LETTER_PX = 7.5;
const TICK_PX = 18;

// Steps of the scales: of times whole seconds, of bytes powers of two, of messages what uPlot takes.
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 172800, 432000];
const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);

// As wide as the longest of the texts beside a scale.
const widthOf = (_, texts) => Math.ceil(TICK_PX + LETTER_PX * Math.max(3, ...(texts ?? []).map((text) => String(text).length)));

const DAY_SECONDS = 86400;
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en", { hourCycle: "h23" });
const day = (seconds) => new Date(seconds * 1000).toLocaleDateString("en", { month: "short", day: "numeric" });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export class RateChart {
  constructor(place, label) {
    this.place = place;
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", `${label}: no batch yet`);
    this.label = label;
    this.plot = null;
    this.made = "";
    this.changes = [];
    this.names = [];
    new ResizeObserver(() => this.resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.made = ""; });
  }

  resize() {
    if (this.plot && this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  // Show a series of the API, of a `range` in seconds. `revisionAt` tells which revision the store had at a time.
  show(series, dimension, range, revisionAt) {
    this.changes = series.changes_ms.map((ms) => ms / 1000);
    // Where an exception ends, other policies begin without another revision.
    const revisions = series.changes_ms.map(revisionAt);
    this.names = revisions.map((each, n) => (each === null || each === revisions[n - 1] ? "policy" : `revision ${each}`));
    const last = series.admitted.length - 1;
    const said = (name) => quantity(series[name][last], dimension);
    const changed = this.changes.length ? `; policies changed at ${this.changes.map((at, n) => `${clock(at)} (${this.names[n]})`).join(", ")}` : "";
    this.place.setAttribute("aria-label", last < 0 ? `${this.label}: no batch in this range`
      : `${this.label}: in the last batch ${said("offered")} per second offered, `
        + `${said("admitted")} admitted, quota ${said("quota")}, ${said("waiting")} waiting${changed}`);
    const data = [series.time_ms.map((ms) => ms / 1000), series.offered, series.admitted, series.rejected, series.quota, series.waiting];
    const isRefused = series.rejected.some((rate) => rate);
    const wanted = `${dimension} ${range} ${isRefused}`;
    if (this.made !== wanted) this.make(data, dimension, range, isRefused);
    else this.plot.setData(data);
    this.made = wanted;
    this.sayLast(this.plot);
  }

  // While the pointer is elsewhere, the values below the chart are the newest.
  sayLast(plot) {
    if (plot.cursor.idx === null || plot.cursor.idx === undefined || plot.cursor.left < 0) plot.setLegend({ idx: plot.data[0].length - 1 }, false);
  }

  make(data, dimension, range, isRefused) {
    if (this.plot) this.plot.destroy();
    const ink = colour("quiet");
    const grid = { stroke: colour("line"), width: 1 };
    const scale = { values: (_, ticks) => ticks.map((tick) => scaleText(tick, dimension)), size: widthOf,
      ...(dimension === "bytes" ? { incrs: BYTES } : {}) };
    const line = (label, name, more = {}) => ({ label, stroke: colour(name), width: 2, points: { show: false },
      value: (_, value) => (value === null || value === undefined ? "–" : `${quantity(value, dimension)}${name === "backlog" ? "" : "/s"}`), ...more });
    const moment = (seconds) => (range > DAY_SECONDS ? `${day(seconds)} ${clock(seconds)}` : clock(seconds));
    this.plot = new uPlot({
      width: this.place.clientWidth || 300,
      height: HEIGHT,
      legend: { live: true },
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 7 } },
      padding: [14, 8, 0, 0],
      scales: {
        x: { range: (_, low, high) => [Math.max(low, high - range), Math.max(high, low + 1)] },
        y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] },
        backlog: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 2.2] },
      },
      series: [
        { label: "time", value: (_, seconds) => (seconds === null || seconds === undefined ? "–" : moment(seconds)) },
        line("offered", "offered"),
        line("admitted", "admitted", { fill: `${colour("admitted")}22` }),
        line("rejected", "rejected", { show: isRefused, width: 1.5 }),
        line("quota", "quota", { dash: [6, 5], spanGaps: true }),
        line("backlog (right scale)", "backlog", { scale: "backlog", width: 1.5 }),
      ],
      axes: [
        { stroke: ink, grid: { show: false }, ticks: grid, space: 90, size: 34, incrs: SECONDS,
          values: (_, ticks) => ticks.map(range > 2 * DAY_SECONDS ? day : clock) },
        { stroke: ink, grid, ticks: grid, ...scale },
        { stroke: colour("backlog"), scale: "backlog", side: 1, grid: { show: false }, ticks: grid, ...scale },
      ],
      hooks: { draw: [(plot) => this.mark(plot)], setCursor: [(plot) => this.sayLast(plot)] },
    }, data, this.place);
  }

  // Draw a line where other policies begin, with words above it; where there is no room for all, the newest are told.
  mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("warn");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "bottom";
    let free = Infinity;
    for (const [n, change] of [...this.changes.entries()].reverse()) {
      const x = Math.round(plot.valToPos(change, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const half = ctx.measureText(`${this.names[n]} `).width / 2;
      if (x + half > free) continue;
      ctx.fillText(this.names[n], x, bbox.top - devicePixelRatio);
      free = x - half;
    }
    ctx.restore();
  }
}
