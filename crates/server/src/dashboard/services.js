// What runs beside the queue, such as SQL tasks: its parts, and tables of its work.

import { services } from "./api.js";
import { make } from "./table.js";

const TITLES = { sql: "SQL tasks", pool: "Pool", manager: "Worker manager" };
const ABOUT = { manager: "Decides how many job processors the typed workers give to each queue." };

// Whether there is nothing beside the queue: that never changes while the server runs.
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

function sheet({ title, part, heads, rows }) {
  const box = make("div", "card sheet");
  box.dataset.sheet = title;
  const table = make("table");
  table.appendChild(make("caption", "", `${title}: ${part}`));
  const head = table.appendChild(make("thead")).appendChild(cells("th", heads));
  for (const cell of head.children) cell.scope = "col";
  table.appendChild(make("tbody")).append(...rows.map((row) => cells("td", row)));
  box.append(rows.length ? table : make("p", "note", `${title}: ${part}: none`));
  return box;
}

function service({ name, trouble, parts, sheets }) {
  const section = make("section", "service");
  section.dataset.service = name;
  section.append(make("h2", "", TITLES[name] ?? name));
  if (ABOUT[name]) section.append(make("p", "note", ABOUT[name]));
  if (trouble) section.appendChild(make("p", "card trouble", trouble)).setAttribute("role", "alert");
  const list = section.appendChild(make("dl", "card parts"));
  for (const { part, words } of parts) {
    list.appendChild(make("div")).append(make("dt", "", part), make("dd", "", words));
  }
  section.append(...sheets.map(sheet));
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

// Forgets what is shown, because whoever looks may no longer see it.
export function forget(place) {
  shown = "";
  none = false;
  place.replaceChildren();
}
