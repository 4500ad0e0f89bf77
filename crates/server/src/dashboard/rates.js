// Keeps the counters of each tube for a minute, and computes rates and small graphs.

import { mark } from "./dom.js";

const KEPT_SECONDS = 60;
const RATE_SECONDS = 5;
// Closer samples would show bursts, not rates.
const APART_SECONDS = 0.5;
const KEYS = ["put", "ack"];
const SVG = "http://www.w3.org/2000/svg";

const histories = new Map();

// Records the counters of all tubes at the server's time, and removes dropped tubes.
export function note(tubes, time) {
  const present = new Set(tubes.map((tube) => tube.name));
  for (const name of histories.keys()) if (!present.has(name)) histories.delete(name);
  for (const { name, number, calls } of tubes) {
    let history = histories.get(name);
    const last = history?.at(-1);
    // After a restart, or when the tube was created again, the counters start again.
    if (!last || last.number !== number || calls.put < last.put || calls.ack < last.ack) {
      histories.set(name, (history = []));
    }
    if (time - history.at(-1)?.time < APART_SECONDS) continue;
    history.push({ time, number, put: calls.put, ack: calls.ack });
    while (time - history[0].time > KEPT_SECONDS) history.shift();
  }
}

const between = (from, to, key) => (to[key] - from[key]) / (to.time - from.time);

// Calls of `key` ("put" or "ack") per second; null after a single sample.
export function rate(name, key) {
  const history = histories.get(name) ?? [];
  if (history.length < 2) return null;
  const last = history.at(-1);
  // After a pause the only earlier sample may be older than that.
  const first = history.find(({ time }) => last.time - time <= RATE_SECONDS + APART_SECONDS);
  return between(first === last ? history.at(-2) : first, last, key);
}

// An empty graph to put on the page; `draw` fills it.
export function graph(width, height) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const key of KEYS) {
    svg.appendChild(document.createElementNS(SVG, "polyline")).setAttribute("class", key);
  }
  return svg;
}

// Draws puts and acks of the last minute on one scale, newest at the right. A tube without any has a flat line.
export function draw(svg, name) {
  const history = histories.get(name) ?? [];
  const { width, height } = svg.viewBox.baseVal;
  const lines = KEYS.map((key) => history.slice(1).map((sample, i) => between(history[i], sample, key)));
  const top = Math.max(1, ...lines.flat());
  lines.forEach((values, index) => {
    const isQuiet = values.every((value) => value === 0);
    const points = isQuiet ? values.length ? [`0,${height - 2}`, `${width},${height - 2}`] : [] : values.map((value, i) => {
      const age = history.at(-1).time - history[i + 1].time;
      const [x, y] = [width * (1 - age / KEPT_SECONDS), height - 2 - (value / top) * (height - 4)];
      return `${x.toFixed(1)},${y.toFixed(1)}`;
    });
    mark(svg.children[index], "points", points.join(" "));
  });
}
