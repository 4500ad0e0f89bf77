// Remembers the counters of each tube for a minute and makes rates and small graphs of them.

const SAMPLES = 61;
const RATE_SAMPLES = 5;
const SVG = "http://www.w3.org/2000/svg";

const histories = new Map();

// Notes the counters of all tubes at the server's time and forgets tubes that are gone.
export function note(tubes, time) {
  const present = new Set(tubes.map((tube) => tube.name));
  for (const name of histories.keys()) if (!present.has(name)) histories.delete(name);
  for (const { name, number, calls } of tubes) {
    let history = histories.get(name);
    const last = history?.at(-1);
    // After a restart, or when the tube was made anew, counting begins again.
    if (!last || last.number !== number || calls.put < last.put || calls.ack < last.ack) {
      histories.set(name, (history = []));
    }
    if (history.at(-1)?.time >= time) continue;
    history.push({ time, number, put: calls.put, ack: calls.ack });
    if (history.length > SAMPLES) history.shift();
  }
}

const between = (from, to, key) => (to[key] - from[key]) / (to.time - from.time);

// How many of `key` ("put" or "ack") happen in a second; nothing yet after one sample.
export function rate(name, key) {
  const history = histories.get(name) ?? [];
  if (history.length < 2) return null;
  return between(history.at(-Math.min(RATE_SAMPLES + 1, history.length)), history.at(-1), key);
}

const series = (history, key) => history.slice(1).map((sample, i) => between(history[i], sample, key));

// An empty graph to put on the page; `draw` fills it.
export function graph(width, height) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-hidden", "true");
  for (const key of ["put", "ack"]) {
    svg.appendChild(document.createElementNS(SVG, "polyline")).setAttribute("class", key);
  }
  return svg;
}

// Draws puts and acks of the last minute on one scale, newest at the right.
export function draw(svg, name) {
  const history = histories.get(name) ?? [];
  const { width, height } = svg.viewBox.baseVal;
  const lines = [series(history, "put"), series(history, "ack")];
  const top = Math.max(1, ...lines.flat());
  const step = width / (SAMPLES - 2);
  lines.forEach((values, index) => {
    const left = width - (values.length - 1) * step;
    const points = values.map((value, i) =>
      `${(left + i * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`);
    svg.children[index].setAttribute("points", points.join(" "));
  });
}
