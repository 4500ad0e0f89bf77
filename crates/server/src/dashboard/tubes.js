// The table of tubes on the overview: search, order, pages.

import { make, mark, remark, say, show } from "./dom.js";
import { drainRemark } from "./estimates.js";
import * as format from "./format.js";
import { draw, graph, rate } from "./rates.js";
import { setQuery, to } from "./router.js";
import { grid, sortedBy } from "./table.js";

const ROWS_MAX = 100;
const STATES = ["ready", "delayed", "taken", "buried", "done"];

function count(cell, value, text = format.number(value ?? 0)) {
  say(cell, value === null ? "–" : text);
  cell.classList.toggle("zero", !value);
}

const rateColumn = (name, label, key) => ({
  name, label, class: "count", sortable: true, value: (tube) => rate(tube.name, key) ?? 0,
  create: (cell) => (tube) => {
    const value = rate(tube.name, key);
    count(cell, value, format.rate(value ?? 0));
  },
});

const countColumn = (name, label, value) => ({
  name, label, class: `count ${name}`, sortable: true, value,
  create: (cell) => (tube) => count(cell, value(tube)),
});

function columns(now) {
  const title = (text) => text[0].toUpperCase() + text.slice(1);
  return [
    { name: "name", label: "Tube", head: true, sortable: true, value: (tube) => tube.name,
      create: (cell, { name }) => {
        const link = make("a", { class: "name", href: to.tube(name) }, name);
        const kind = make("small");
        cell.append(link, kind);
        return (tube) => say(kind, tube.kind + (tube.temporary ? ", temporary" : ""));
      } },
    ...STATES.map((state) => countColumn(state, title(state), (tube) => tube.tasks[state])),
    rateColumn("puts", "Puts/s", "put"),
    rateColumn("acks", "Acks/s", "ack"),
    { label: "Last minute", class: "spark",
      create: (cell) => {
        const svg = cell.appendChild(graph(120, 24));
        return (tube) => draw(svg, tube.name);
      } },
    countColumn("waiting", "Waiting", (tube) => tube.consumers),
    { label: "Why tasks wait", class: "why",
      create: (cell) => (tube) => remark(cell, [...format.why(tube, now()), drainRemark(tube)].filter(Boolean)) },
  ];
}

// The order and the page come from the query of the address: search, sort, descending, page, internal.
export function tubesTable(now) {
  let query = {};
  let newest = [];
  const defined = columns(now);
  const byName = Object.fromEntries(defined.filter((column) => column.sortable).map((column) => [column.name, column]));

  const onSort = (name) => {
    const current = query.sort ?? "name";
    const descending = name === current ? !query.descending : name !== "name";
    setQuery({ sort: name, descending: descending ? "1" : null, page: null }, { replace: true });
  };
  const table = grid({ label: "Tubes", columns: defined, key: (tube) => tube.name, onSort, className: "tubes",
    markRow: (tr, tube) => tr.classList.toggle("paused", tube.paused) });

  const search = make("input", { id: "filter", type: "search", placeholder: "Search tubes", "aria-label": "Search tubes by name",
    input: () => setQuery({ search: search.value, page: null }, { replace: true }) });
  const internal = make("input", { id: "internal", type: "checkbox",
    change: () => setQuery({ internal: internal.checked ? "1" : null }, { replace: true }) });
  const sorting = make("select", { id: "sort", change: () => onSort(sorting.value) },
    Object.values(byName).map((column) => make("option", { value: column.name }, column.label)));
  const range = make("span", { id: "shown" });
  const turn = (by) => () => setQuery({ page: pageOf(query) + by > 1 ? pageOf(query) + by : null });
  const previous = make("button", { type: "button", click: turn(-1) }, "Previous");
  const next = make("button", { type: "button", click: turn(1) }, "Next");
  const element = make("section", { class: "stack", "aria-label": "Tubes" },
    make("div", { class: "bar" }, make("h3", {}, "Tubes"), search,
      make("label", { class: "phone" }, "Sort by ", sorting),
      make("label", {}, internal, " Show internal tubes (taskyard.*)"),
      make("span", { class: "pager" }, range, previous, next)),
    table.element,
    make("p", { class: "note" }, make("span", { class: "key put" }), " puts ", make("span", { class: "key ack" }), " acks. ",
      "Rates are over the last five seconds; “done” counts since the store was opened; “waiting” are consumers that wait for a task on this server."));

  const pageOf = ({ page }) => Math.max(1, Math.floor(Number(page)) || 1);

  function draw() {
    const text = (query.search ?? "").toLowerCase();
    const found = newest.filter((tube) => tube.name.toLowerCase().includes(text));
    const column = byName[query.sort] ?? byName.name;
    const sorted = sortedBy(found, column.value, Boolean(query.descending));
    const first = Math.min((pageOf(query) - 1) * ROWS_MAX, Math.max(0, Math.ceil(sorted.length / ROWS_MAX) - 1) * ROWS_MAX);
    const shown = sorted.slice(first, first + ROWS_MAX);
    table.show(shown);
    table.sorted(column.name, Boolean(query.descending));
    const isAll = shown.length === newest.length;
    say(range, isAll ? "" : !found.length ? "No tube matches" :
      `${format.number(first + 1)}–${format.number(first + shown.length)} of ${format.number(found.length)}`);
    show(previous, first > 0);
    show(next, first + shown.length < sorted.length);
  }

  return {
    element,
    update(newQuery) {
      query = newQuery;
      if (document.activeElement !== search) search.value = query.search ?? "";
      internal.checked = Boolean(query.internal);
      sorting.value = (byName[query.sort] ?? byName.name).name;
      draw();
    },
    show(tubes) {
      newest = tubes;
      mark(element, "hidden", null);
      draw();
    },
  };
}
