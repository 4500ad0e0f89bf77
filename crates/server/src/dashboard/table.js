// The table of tubes. Rows are kept as long as their tube exists, so that focus and selection survive.

import { draw, graph, rate } from "./rates.js";
import * as format from "./format.js";

const ROWS_MAX = 200;
const STATES = ["ready", "delayed", "taken", "buried", "done"];

const rows = new Map();

// Sets a text only when it differs: screen readers and selections notice every change.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.textContent = text;
  return node;
}

// Shows the remarks about a tube, each as a separate element.
export function remark(node, remarks) {
  if (node.textContent !== remarks.join("")) {
    node.replaceChildren(...remarks.map((text) => make("span", "remark", text)));
  }
}

function cell(tr, label, className) {
  const td = tr.appendChild(make("td", className));
  td.dataset.label = label;
  return td;
}

function row(name, open) {
  const tr = document.createElement("tr");
  const head = tr.appendChild(make("th"));
  head.scope = "row";
  const button = head.appendChild(make("button", "name", name));
  button.type = "button";
  button.title = "Show details";
  const kind = head.appendChild(make("small"));
  const counts = Object.fromEntries(STATES.map((state) => [state, cell(tr, state, `count ${state}`)]));
  const [puts, acks] = [cell(tr, "puts/s", "count"), cell(tr, "acks/s", "count")];
  const spark = cell(tr, "", "spark").appendChild(graph(120, 24));
  const waiting = cell(tr, "waiting", "count");
  const why = cell(tr, "", "why");
  tr.addEventListener("click", () => {
    // Selecting text to copy it is not a click.
    if (getSelection().isCollapsed) open(name);
  });
  return { tr, kind, counts, puts, acks, spark, waiting, why };
}

function count(node, value, text = format.number(value ?? 0)) {
  say(node, value === null ? "–" : text);
  node.classList.toggle("zero", !value);
}

function fill(row, tube, now) {
  say(row.kind, tube.kind + (tube.temporary ? ", temporary" : ""));
  for (const state of STATES) count(row.counts[state], tube.tasks[state]);
  for (const [node, key] of [[row.puts, "put"], [row.acks, "ack"]]) {
    const value = rate(tube.name, key);
    count(node, value, format.rate(value ?? 0));
  }
  count(row.waiting, tube.consumers);
  remark(row.why, format.why(tube, now));
  row.tr.classList.toggle("paused", tube.paused);
  draw(row.spark, tube.name);
}

// Shows the tubes whose name contains `filter` and returns how many do; `open` is called with the
// name of a tube that was clicked.
export function show(body, tubes, now, filter, open) {
  const wanted = tubes.filter((tube) => tube.name.toLowerCase().includes(filter.toLowerCase()));
  const shown = wanted.slice(0, ROWS_MAX);
  const names = new Set(shown.map((tube) => tube.name));
  for (const [name, { tr }] of rows) {
    if (!names.has(name)) {
      tr.remove();
      rows.delete(name);
    }
  }
  shown.forEach((tube, index) => {
    if (!rows.has(tube.name)) rows.set(tube.name, row(tube.name, open));
    const { tr } = rows.get(tube.name);
    if (body.children[index] !== tr) body.insertBefore(tr, body.children[index] ?? null);
    fill(rows.get(tube.name), tube, now);
  });
  return { wanted: wanted.length, shown: shown.length };
}
