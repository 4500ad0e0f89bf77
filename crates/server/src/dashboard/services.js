// Services hosted beside the queue: SQL tasks and the pool, with their parts and tables about their work.

import { poolStatus, services } from "./api.js";
import { make, say, show } from "./dom.js";
import * as format from "./format.js";
import { at } from "./router.js";
import { grid } from "./table.js";

function cells(tag, texts) {
  return make("tr", {}, texts.map((text) => make(tag, { title: text, scope: tag === "th" ? "col" : null }, text)));
}

function table({ title, part, columns, rows }) {
  const box = make("div", { class: "card status-table", "data-table": title });
  if (!rows.length) box.append(make("p", { class: "note" }, `${title}: ${part}: none`));
  else {
    box.append(make("table", {}, make("caption", {}, `${title}: ${part}`),
      make("thead", {}, cells("th", columns)), make("tbody", {}, rows.map((row) => cells("td", row)))));
  }
  return box;
}

// The parts of one service and its tables; `show` changes the page only if something differs.
export function servicePart(name) {
  const problem = make("p", { class: "card problem", role: "alert", hidden: true });
  const body = make("div", { class: "stack" });
  const element = make("div", { class: "stack service", "data-service": name }, problem, body);
  let shown = "";
  return {
    element,
    show(service) {
      const text = JSON.stringify(service);
      // A selection survives when nothing has changed.
      if (text === shown) return;
      shown = text;
      show(problem, Boolean(service.problem));
      say(problem, service.problem ?? "");
      const parts = service.parts.map(({ part, status }) => make("div", {}, make("dt", {}, part), make("dd", {}, status)));
      body.replaceChildren(make("dl", { class: "card parts" }, parts), ...service.tables.map(table));
    },
  };
}

function serviceView(name, title, absent, extra) {
  return (_, { setTitle }) => {
    const nothing = make("p", { class: "card note", hidden: true }, absent);
    const part = servicePart(name);
    const further = extra?.();
    const element = make("div", { class: "stack", id: "services" }, make("h2", { tabindex: "-1" }, title), nothing,
      further?.element, part.element);
    setTitle(title);
    return { element, async refresh(signal) {
      const service = (await services(signal)).services.find((one) => one.name === name);
      show(nothing, !service);
      show(part.element, Boolean(service));
      if (service) part.show(service);
      if (further) await further.refresh(Boolean(service), signal);
    } };
  };
}

export const sql = serviceView("sql", "SQL tasks",
  "This server runs no SQL tasks. To run them, start it with --sql FILE --database URL.");

const CLASSES = [
  { label: "Class", head: true, text: ({ name }) => name },
  { label: "May run for", class: "count", text: ({ seconds }) => format.span(seconds) },
  { label: "Running", class: "count", text: ({ running, limit }) => `${running} of ${limit}` },
  { label: "Waiting", class: "count", text: ({ queued }) => format.number(queued) },
];

// The classes of the pool, from its own status, and a link to its page.
function poolPart() {
  const summary = make("p");
  const classes = grid({ label: "Classes of the pool", columns: CLASSES, key: ({ name }) => name });
  const element = make("div", { class: "stack", hidden: true }, summary, classes.element,
    make("p", {}, make("a", { href: at("pool"), target: "_self" }, "Run a program on the page of the pool")));
  return { element, async refresh(isHosted, signal) {
    show(element, isHosted);
    if (!isHosted) return;
    const status = await poolStatus(signal);
    const state = status.paused ? "Paused. " : "";
    say(summary, `${state}${format.many(status.backends, "backend")}, ${format.number(status.running)} running, ` +
      `${format.number(status.interactive)} of them interactive, ${format.number(status.queued)} waiting`);
    classes.show(status.classes);
  } };
}

export const pool = serviceView("pool", "Pool", "This server has no pool. To host one, start it with --pool FILE.", poolPart);
