// A group's offered and admitted rates against its quota, and its backlog, over time.

import { quantity, scaleText } from "./numbers.js";

const HEIGHT = 180;
const LETTER_PX = 7.5;
const TICK_PX = 18;

// Steps of the scales: of times whole seconds, of bytes powers of two, of messages what uPlot takes.
const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
const BYTES = Array.from({ length: 50 }, (_, power) => 2 ** power);

// As wide as the longest of the texts beside a scale.
const widthOf = (_, texts) => Math.ceil(TICK_PX + LETTER_PX * Math.max(3, ...(texts ?? []).map((text) => String(text).length)));

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en", { hourCycle: "h23" });
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export class RateChart {
  constructor(place, label) {
    this.place = place;
    this.place.setAttribute("role", "img");
    this.place.setAttribute("aria-label", `${label}: no batch yet`);
    this.label = label;
    this.plot = null;
    this.made = "";
    new ResizeObserver(() => this.resize()).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { this.made = ""; });
  }

  resize() {
    if (this.plot && this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: HEIGHT });
  }

  show(times, series, dimension) {
    const last = series.admitted.length - 1;
    const said = (name) => quantity(series[name][last], dimension);
    this.place.setAttribute("aria-label", `${this.label}: in the last batch ${said("offered")} per second offered, `
      + `${said("admitted")} admitted, quota ${said("quota")}, ${said("waiting")} waiting`);
    const data = [times.map((ms) => ms / 1000), series.offered, series.admitted, series.quota, series.waiting];
    if (this.made !== dimension) this.make(data, dimension);
    else this.plot.setData(data);
  }

  make(data, dimension) {
    if (this.plot) this.plot.destroy();
    this.made = dimension;
    const ink = colour("quiet");
    const grid = { stroke: colour("line"), width: 1 };
    const scale = { values: (_, ticks) => ticks.map((tick) => scaleText(tick, dimension)), size: widthOf,
      ...(dimension === "bytes" ? { incrs: BYTES } : {}) };
    const line = (name, more = {}) => ({ stroke: colour(name), width: 2, points: { show: false }, ...more });
    this.plot = new uPlot({
      width: this.place.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      padding: [10, 8, 0, 0],
      scales: {
        y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.1] },
        backlog: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 2.2] },
      },
      series: [
        {},
        line("offered"),
        line("admitted", { fill: `${colour("admitted")}22` }),
        line("quota", { dash: [6, 5] }),
        line("backlog", { scale: "backlog", width: 1.5 }),
      ],
      axes: [
        { stroke: ink, grid: { show: false }, ticks: grid, space: 90, size: 34, incrs: SECONDS, values: (_, ticks) => ticks.map(clock) },
        { stroke: ink, grid, ticks: grid, ...scale },
        { stroke: colour("backlog"), scale: "backlog", side: 1, grid: { show: false }, ticks: grid, ...scale },
      ],
    }, data, this.place);
  }
}
