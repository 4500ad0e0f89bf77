// Tables whose rows are kept as long as their item exists, so that focus and selection survive an update.

import { make, mark, say } from "./dom.js";

function headCell(column, onSort) {
  const label = column.label ?? "";
  const th = make("th", { scope: "col", class: column.class });
  if (column.head) th.classList.add("head");
  if (column.sortable) {
    th.append(make("button", { type: "button", class: "sort", click: () => onSort(column.name) }, label));
  } else if (column.hiddenLabel) {
    th.append(make("span", { class: "hidden-text" }, column.hiddenLabel));
  } else {
    th.append(column.headNode ?? label);
  }
  return th;
}

// A cell and the function that updates it. `create` of a column builds other content than a text or a link.
function bodyCell(column, item) {
  const cell = make(column.head ? "th" : "td", { class: column.class, "data-label": column.label || null });
  if (column.head) cell.scope = "row";
  if (column.create) return [cell, column.create(cell, item) ?? (() => {})];
  const link = column.href && cell.appendChild(make("a"));
  const update = (value) => {
    const text = column.text(value);
    const href = column.href?.(value);
    if (link) mark(link, "href", href);
    say(link || cell, text);
    if (column.title) mark(cell, "title", column.title(value));
    if (column.tone) mark(cell, "data-tone", column.tone(value));
  };
  return [cell, update];
}

// A table. Each column has a `label` and `text(item)`, and may have `href(item)`, `create(cell, item)`, `class`, `head` (the
// name of the row) and `sortable`. `key(item)` identifies a row, `mark(tr, item)` changes the row itself.
export function grid({ label, columns, key, onSort, markRow, className = "" }) {
  const heads = columns.map((column) => headCell(column, onSort));
  const body = make("tbody");
  const table = make("table", { class: `grid ${className}` },
    make("caption", { class: "hidden-text" }, label), make("thead", {}, make("tr", {}, heads)), body);
  const rows = new Map();

  function create(item) {
    const cells = columns.map((column) => bodyCell(column, item));
    return { tr: make("tr", {}, cells.map(([cell]) => cell)), updates: cells.map(([, update]) => update) };
  }

  // Shows these items in this order.
  function show(items) {
    const wanted = new Set(items.map(key));
    for (const [name, { tr }] of rows) {
      if (wanted.has(name)) continue;
      tr.remove();
      rows.delete(name);
    }
    items.forEach((item, index) => {
      const name = key(item);
      if (!rows.has(name)) rows.set(name, create(item));
      const { tr, updates } = rows.get(name);
      if (body.children[index] !== tr) body.insertBefore(tr, body.children[index] ?? null);
      for (const update of updates) update(item);
      markRow?.(tr, item);
    });
  }

  // Shows by which column the rows are sorted.
  function sorted(name, descending) {
    columns.forEach((column, i) => {
      const order = column.name === name ? (descending ? "descending" : "ascending") : null;
      mark(heads[i], "aria-sort", order);
    });
  }

  const element = make("div", { class: "card wide" }, table);
  return { element, table, body, show, sorted };
}

// Sorts by a value of each item, and equal values by their order in `items`.
export function sortedBy(items, value, descending) {
  const sign = descending ? -1 : 1;
  const keyed = items.map((item) => [value(item), item]);
  keyed.sort(([a], [b]) => (a < b ? -sign : a > b ? sign : 0));
  return keyed.map(([, item]) => item);
}
