// Draws a chart of lines over time, with axes, units and a table of values that is also its text alternative.

import { make, mark, say } from "./dom.js";
import { combine, ticks, timeText, timeTicks, timeUnit } from "./scale.js";
import * as format from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170;
const MARGIN = { top: 8, right: 10, bottom: 22, left: 46 };

function shape(tag, attributes = {}, text = "") {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

// How the values of a chart are combined, written and scaled.
export const KINDS = {
  rate: { how: "average", unit: "tasks per second", text: (value) => format.rate(value) },
  count: { how: "maximum", unit: "tasks", text: (value) => format.number(Math.round(value)) },
  time: { how: "maximum", unit: "", text: (value) => format.duration(value) },
};

// `lines` have a key, a label and a class; `kind` is one of KINDS.
export function chart({ title, kind, lines }) {
  const { how, unit, text } = KINDS[kind];
  const grid = shape("g", { class: "axis" });
  const paths = lines.map((line) => shape("path", { class: `line ${line.class}` }));
  const cursor = shape("line", { class: "cursor", visibility: "hidden" });
  const svg = shape("svg", { class: "chart", role: "img" });
  svg.append(grid, ...paths, cursor);
  const unitNote = make("small", {}, unit);
  const nowHead = make("th", { scope: "col", class: "count" }, "Now");
  const cells = lines.map(() => [0, 1, 2].map(() => make("td", { class: "count" })));
  const legend = make("table", { class: "legend" },
    make("caption", { class: "hidden-text" }, title),
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }, make("span", { class: "hidden-text" }, "Line")), nowHead,
      make("th", { scope: "col", class: "count" }, "Average"), make("th", { scope: "col", class: "count" }, "Maximum"))),
    make("tbody", {}, lines.map((line, i) => make("tr", {},
      make("th", { scope: "row" }, make("span", { class: `key ${line.class}` }), line.label), cells[i]))));
  const element = make("figure", { class: "card chart-card" },
    make("figcaption", {}, make("strong", {}, title), " ", unitNote), svg, legend);

  let data = null;
  let pointed = null;

  const value = (key, index) => {
    const found = data.values[key][index];
    return found === undefined || found === null ? null : kind === "rate" ? found / data.step : found;
  };
  const shown = (found) => (found === null ? "–" : text(found));

  function fillLegend() {
    const length = data.values[lines[0].key].length;
    const index = pointed ?? length - 1;
    say(nowHead, pointed === null ? "Now" : timeText(data.from + pointed * data.step, data.step));
    lines.forEach(({ key }, i) => {
      const all = data.values[key].map((_, j) => value(key, j)).filter((found) => found !== null);
      const sum = all.reduce((total, found) => total + found, 0);
      const most = all.reduce((top, found) => Math.max(top, found), 0);
      // The latest percentile may be of an earlier interval than the last one.
      const latest = kind === "time" && pointed === null ? all.at(-1) ?? null : value(key, index);
      say(cells[i][0], shown(latest));
      say(cells[i][1], shown(all.length ? sum / all.length : null));
      say(cells[i][2], shown(all.length ? most : null));
    });
  }

  function drawAxes(top, x, y, width) {
    const [name, size] = kind === "time" ? timeUnit(top) : ["", 1];
    if (kind === "time") say(unitNote, name);
    const right = width - MARGIN.right;
    const marks = ticks(top / size).map((tick) => [tick * size, tick]);
    const isRound = marks.every(([, tick]) => Number.isInteger(tick));
    const nodes = marks.flatMap(([at, tick]) => [
      shape("line", { x1: MARGIN.left, x2: right, y1: y(at), y2: y(at) }),
      shape("text", { x: MARGIN.left - 6, y: y(at) + 4, "text-anchor": "end" },
        isRound ? format.compact(tick) : `${Number(tick.toPrecision(2))}`),
    ]);
    const until = data.from + data.length * data.step;
    for (const { at, text: label } of timeTicks(data.from, until, right - MARGIN.left)) {
      const anchor = x(at) > right - 24 ? "end" : x(at) < MARGIN.left + 20 ? "start" : "middle";
      nodes.push(shape("text", { x: Math.min(x(at), right), y: HEIGHT - 5, "text-anchor": anchor }, label));
    }
    grid.replaceChildren(...nodes);
  }

  function draw(newest = data) {
    if (!newest) return;
    data = newest;
    data.length = data.values[lines[0].key].length;
    const width = Math.max(element.clientWidth - 24, 220);
    mark(svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
    mark(svg, "width", width);
    mark(svg, "height", HEIGHT);
    const inner = width - MARGIN.left - MARGIN.right;
    const groups = lines.map(({ key }) => {
      const values = data.values[key].map((_, i) => value(key, i));
      return combine(values, Math.round(data.from / data.step), Math.floor(inner / 2), how);
    });
    const most = Math.max(0, ...groups.flat().map((point) => point.value ?? 0));
    const top = ticks((most || (kind === "time" ? 1e-3 : 1)) / scaleOf(most)).at(-1) * scaleOf(most);
    const x = (at) => MARGIN.left + ((at - data.from) / (data.length * data.step || 1)) * inner;
    const y = (found) => HEIGHT - MARGIN.bottom - (found / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);
    drawAxes(top, x, y, width);
    groups.forEach((points, i) => mark(paths[i], "d", curve(points, (at) => x(data.from + at * data.step), y)));
    fillLegend();
    const minutes = format.span(data.length * data.step);
    mark(svg, "aria-label", `${title}, last ${minutes}. The table below has the values.`);
  }

  // The axis of durations has round numbers in its own unit.
  const scaleOf = (most) => (kind === "time" ? timeUnit(most || 1e-3)[1] : 1);

  function point(event) {
    if (!data?.length) return;
    const box = svg.getBoundingClientRect();
    const inner = box.width - MARGIN.left - MARGIN.right;
    const index = Math.floor(((event.clientX - box.left - MARGIN.left) / inner) * data.length);
    pointed = index >= 0 && index < data.length ? index : null;
    const x = MARGIN.left + ((pointed + 0.5) / data.length) * inner;
    for (const [name, to] of [["x1", x], ["x2", x], ["y1", MARGIN.top], ["y2", HEIGHT - MARGIN.bottom]]) mark(cursor, name, to);
    mark(cursor, "visibility", pointed === null ? "hidden" : "visible");
    fillLegend();
  }

  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerleave", () => {
    pointed = null;
    mark(cursor, "visibility", "hidden");
    if (data) fillLegend();
  });
  new ResizeObserver(() => draw()).observe(element);
  return { element, draw };
}

// A path through the points, with gaps where a value is missing; a single point is a small circle.
function curve(points, x, y) {
  let path = "";
  points.forEach(({ middle, value }, i) => {
    if (value === null) return;
    const place = `${x(middle).toFixed(1)} ${y(value).toFixed(1)}`;
    const isOpen = i > 0 && points[i - 1].value !== null;
    const isAlone = !isOpen && (i + 1 === points.length || points[i + 1].value === null);
    path += isOpen ? `L${place}` : isAlone ? `M${place}m-2 0a2 2 0 1 0 4 0a2 2 0 1 0-4 0` : `M${place}`;
  });
  return path;
}
