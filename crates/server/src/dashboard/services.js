// Shows the services hosted beside the queue, such as SQL tasks: their parts, and tables about their work.

import { services } from "./api.js";
import { make } from "./table.js";

const TITLES = { sql: "SQL tasks", pool: "Pool", manager: "Worker manager" };
const ABOUT = { manager: "Decides how many job processors the typed workers give to each queue." };

// Whether the server hosts no services: that never changes while it runs.
let none = false;
// What is shown, as text, so that a selection survives when nothing has changed.
let shown = "";

function cells(tag, texts) {
  const tr = make("tr");
  for (const text of texts) {
    const cell = tr.appendChild(make(tag, "", text));
    cell.title = text;
  }
  return tr;
}

function table({ title, part, columns, rows }) {
  const box = make("div", "card status-table");
  box.dataset.table = title;
  const grid = make("table");
  grid.appendChild(make("caption", "", `${title}: ${part}`));
  const head = grid.appendChild(make("thead")).appendChild(cells("th", columns));
  for (const cell of head.children) cell.scope = "col";
  grid.appendChild(make("tbody")).append(...rows.map((row) => cells("td", row)));
  box.append(rows.length ? grid : make("p", "note", `${title}: ${part}: none`));
  return box;
}

function service({ name, problem, parts, tables }) {
  const section = make("section", "service");
  section.dataset.service = name;
  section.append(make("h2", "", TITLES[name] ?? name));
  if (ABOUT[name]) section.append(make("p", "note", ABOUT[name]));
  if (problem) section.appendChild(make("p", "card problem", problem)).setAttribute("role", "alert");
  const list = section.appendChild(make("dl", "card parts"));
  for (const { part, status } of parts) {
    list.appendChild(make("div")).append(make("dt", "", part), make("dd", "", status));
  }
  section.append(...tables.map(table));
  return section;
}

export async function refresh(place, signal) {
  if (none) return;
  const found = (await services(signal)).services;
  none = !found.length;
  const text = JSON.stringify(found);
  if (text === shown) return;
  shown = text;
  place.replaceChildren(...found.map(service));
}

// Clears the section, because the user may no longer see it.
export function forget(place) {
  shown = "";
  none = false;
  place.replaceChildren();
}
