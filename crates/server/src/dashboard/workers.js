// Workers that take tasks from this server and its peers, what each runs, and the manager of typed workers.

import { now, services, workers as fetchWorkers } from "./api.js";
import { make, mark, say, section, show } from "./dom.js";
import * as format from "./format.js";
import { setQuery, to } from "./router.js";
import { servicePart } from "./services.js";
import { grid } from "./table.js";

const ROWS_MAX = 100;
const RUNNING_MAX = 20;

// The running tasks of a worker as links, the oldest first.
function runningCell(cell) {
  const count = make("summary");
  const list = make("ul", { class: "running" });
  const details = cell.appendChild(make("details", {}, count, list));
  const none = cell.appendChild(make("span", { class: "zero" }, "0"));
  return ({ running = [], running_count: total = running.length }) => {
    show(details, total > 0);
    show(none, total === 0);
    say(count, format.number(total));
    const shown = running.slice(0, RUNNING_MAX);
    while (list.children.length > shown.length) list.lastChild.remove();
    shown.forEach(({ tube, id, age }, i) => {
      const item = list.children[i] ?? list.appendChild(make("li", {}, make("a"), make("small")));
      mark(item.firstChild, "href", to.task(tube, id));
      say(item.firstChild, `${tube} / ${id}`);
      say(item.lastChild, ` for ${format.span(Math.round(age))}`);
    });
  };
}

const perMinute = (value) => (value === undefined ? "–" : format.rate(value));

const COLUMNS = [
  { label: "Worker", head: true, class: "worker", create: (cell) => {
    const [name, about] = [cell.appendChild(make("span", { class: "name" })), cell.appendChild(make("small"))];
    return (worker) => {
      say(name, worker.name);
      const version = worker.version ? ` ${worker.version}` : "";
      say(about, [worker.program && `${worker.program}${version}`, worker.host && `on ${worker.host}`,
        worker.process && `process ${worker.process}`].filter(Boolean).join(", "));
    };
  } },
  { label: "Address", text: ({ address }) => address ?? "–" },
  { label: "Tubes", class: "tube-list", create: (cell) => (worker) => {
    const tubes = worker.tubes ?? [];
    if (cell.textContent === tubes.join(", ")) return;
    cell.replaceChildren(...tubes.flatMap((tube, i) => [i ? ", " : "", make("a", { href: to.tube(tube) }, tube)]));
  } },
  { label: "Running", class: "running-cell", create: runningCell },
  { label: "Last seen", class: "time", text: (worker) => (worker.last_seen === undefined ? "–" : format.ago(worker.last_seen, now())) },
  { label: "Done", class: "count", text: ({ done }) => format.number(done ?? 0) },
  { label: "Done/min", class: "count", text: (worker) => perMinute(worker.done_per_minute) },
  { label: "Failed", class: "count", text: ({ failed }) => format.number(failed ?? 0), tone: ({ failed }) => (failed ? "bad" : null) },
  { label: "Failed/min", class: "count", text: (worker) => perMinute(worker.failed_per_minute) },
];

export function workers(route, { setTitle }) {
  let query = route.query;
  let newest = [];
  let isAbsent = false;
  const search = make("input", { id: "filter", type: "search", placeholder: "Search workers", "aria-label": "Search workers by name or tube",
    input: () => setQuery({ search: search.value }, { replace: true }) });
  const shown = make("span", { class: "note" });
  const table = grid({ label: "Workers", columns: COLUMNS, key: ({ name }) => name, className: "workers" });
  const nothing = make("p", { class: "card note", hidden: true });
  const cut = make("p", { class: "note", hidden: true }, "So many tasks are taken that not all of them are shown and counted.");
  const without = make("p", { class: "note missing", hidden: true });
  const first = make("a", { class: "button" }, "First page");
  const following = make("a", { class: "button" }, "Next page");
  const pager = make("nav", { class: "bar pager", "aria-label": "Pages" }, first, following);
  const bar = make("div", { class: "bar" }, search, shown);
  const manager = servicePart("manager");
  const managerSection = section("Worker manager",
    make("p", { class: "note" }, "Decides how many job processors the typed workers give to each queue."), manager.element);
  const element = make("div", { class: "stack" }, make("h2", { tabindex: "-1" }, "Workers"), nothing, bar, table.element, cut, without, pager, managerSection);
  managerSection.hidden = true;

  function draw() {
    const text = (query.search ?? "").toLowerCase();
    const found = newest.filter(({ name, tubes }) => [name, ...(tubes ?? [])].some((word) => word.toLowerCase().includes(text)));
    table.show(found.slice(0, ROWS_MAX));
    show(table.element, found.length > 0);
    show(bar, newest.length > 0);
    const part = found.length > ROWS_MAX ? `${ROWS_MAX} of ${format.number(found.length)} shown; search for others` : "";
    say(shown, found.length ? part : "No worker matches");
  }

  async function fetchAll(signal) {
    if (isAbsent) return;
    try {
      const answer = await fetchWorkers(query.after, signal);
      newest = answer.workers;
      show(cut, Boolean(answer.cut));
      say(without, format.missingServers(answer.missing));
      show(without, without.textContent !== "");
      show(first, Boolean(query.after));
      show(following, answer.next !== undefined);
      show(pager, Boolean(query.after) || answer.next !== undefined);
      mark(first, "href", to.workers({ search: query.search }));
      mark(following, "href", to.workers({ search: query.search, after: answer.next }));
      show(nothing, !newest.length);
      say(nothing, "No worker has taken a task from this server recently.");
    } catch (error) {
      if (error.status !== 404) throw error;
      isAbsent = true;
      newest = [];
      show(pager, false);
      show(nothing, true);
      say(nothing, "This server does not list workers.");
    }
  }

  setTitle("Workers");
  search.value = query.search ?? "";
  return {
    element,
    update(newRoute) {
      query = newRoute.query;
      if (document.activeElement !== search) search.value = query.search ?? "";
      draw();
    },
    async refresh(signal) {
      await fetchAll(signal);
      draw();
      const service = (await services(signal)).services.find(({ name }) => name === "manager");
      show(managerSection, Boolean(service));
      if (service) manager.show(service);
    },
  };
}
