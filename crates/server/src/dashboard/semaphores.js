// Semaphores: the list, and one semaphore with its holders and waiting tasks.

import { members, now, semaphore as fetchSemaphore, semaphores as fetchSemaphores } from "./api.js";
import { make, mark, pairs, say, section, show } from "./dom.js";
import * as format from "./format.js";
import { setQuery, to } from "./router.js";
import { grid } from "./table.js";

const ROWS_MAX = 100;

const held = (semaphore) => semaphore.acquired + semaphore.revoking;

const COLUMNS = [
  { label: "Semaphore", head: true, class: "key-name", text: ({ key }) => key, href: ({ key }) => to.semaphore(key) },
  { label: "Held", class: "count", text: (one) => `${format.number(held(one))} of ${format.number(one.active)}`,
    tone: (one) => (one.waiting && held(one) >= one.active ? "busy" : null) },
  { label: "Waiting", class: "count", text: ({ waiting }) => format.number(waiting) },
  { label: "Delayed", class: "count", text: ({ delayed }) => format.number(delayed) },
  { label: "Asked to release", class: "count", text: ({ revoking }) => format.number(revoking) },
  { label: "Events not acknowledged", class: "count", text: ({ events }) => format.number(events) },
];

export function semaphores(route, { setTitle }) {
  let query = route.query;
  let newest = [];
  const search = make("input", { id: "filter", type: "search", placeholder: "Search semaphores", "aria-label": "Search semaphores by key",
    input: () => setQuery({ search: search.value }, { replace: true }) });
  const shown = make("span", { class: "note" });
  const table = grid({ label: "Semaphores", columns: COLUMNS, key: ({ key }) => key, className: "semaphores" });
  const nothing = make("p", { class: "card note", hidden: true }, "No semaphores. A semaphore limits how many tasks run at the same time; the first “PUT /v1/semaphores/KEY” creates it.");
  const filled = make("div", { class: "stack" }, make("div", { class: "bar" }, search, shown), table.element);
  const element = make("div", { class: "stack" }, make("h2", { tabindex: "-1" }, "Semaphores"), nothing, filled);

  function draw() {
    const text = (query.search ?? "").toLowerCase();
    const found = newest.filter(({ key }) => key.toLowerCase().includes(text));
    table.show(found.slice(0, ROWS_MAX));
    show(nothing, !newest.length);
    show(filled, newest.length > 0);
    show(table.element, found.length > 0);
    const part = found.length > ROWS_MAX ? `${ROWS_MAX} of ${format.number(found.length)} shown; search for others` : "";
    say(shown, found.length ? part : "No semaphore matches");
  }

  setTitle("Semaphores");
  search.value = query.search ?? "";
  return {
    element,
    update(newRoute) {
      query = newRoute.query;
      if (document.activeElement !== search) search.value = query.search ?? "";
      draw();
    },
    async refresh(signal) {
      newest = (await fetchSemaphores(signal)).semaphores;
      draw();
    },
  };
}

const STATUS = { waiting: "waiting", delayed: "waits again later", granted: "holds a grant", try_release: "asked to release" };
const since = (at) => (at === undefined ? "–" : format.ago(at, now()));
const until = (at) => (at === undefined ? "–" : format.ahead(at, now()));

const TASK = { label: "Task", head: true, class: "number", text: ({ tube, task }) => (tube ? `${tube} / ${task}` : `${task}`),
  href: ({ tube, task }) => (tube ? to.task(tube, task) : null) };
const PRIORITY = { label: "Priority", class: "count", text: ({ priority }) => `${priority}` };
const HOLDERS = [TASK, PRIORITY,
  { label: "Status", text: ({ status, pinned }) => STATUS[status] + (pinned ? ", declined to release" : "") },
  { label: "Grant", class: "count", text: ({ grant }) => `${grant ?? "–"}` },
  { label: "Granted", class: "time", text: ({ granted }) => since(granted) },
  { label: "Lease ends", class: "time", text: ({ lease_until: end }) => until(end) },
];
const WAITING = [TASK, PRIORITY,
  { label: "Status", text: ({ status }) => STATUS[status] },
  { label: "Enqueued", class: "time", text: ({ enqueued }) => since(enqueued) },
  { label: "Waits again", class: "time", text: ({ not_before: at }) => until(at) },
];

const seconds = (value) => (value === undefined ? "none" : format.span(value));
const OPTIONS = [
  ["Grants at the same time", ({ active }) => format.number(active)],
  ["May be asked to release", (one) => format.number(one.try_release)],
  ["Better by at least", ({ margin }) => `${margin}`],
  ["Held at least", (one) => seconds(one.min_hold)],
  ["Cool-down after a yield", (one) => seconds(one.cool_down)],
  ["Grace period", (one) => seconds(one.revoke_grace)],
  ["Revoked after it", ({ force }) => (force ? "yes" : "no")],
  ["Lease", ({ lease }) => seconds(lease)],
  ["Acknowledged within", (one) => seconds(one.ack_timeout)],
];
const COUNTS = [
  ["Held", (one) => `${format.number(held(one))} of ${format.number(one.active)}`],
  ["Waiting", ({ waiting }) => format.number(waiting)],
  ["Waiting again later", ({ delayed }) => format.number(delayed)],
  ["Asked to release", ({ revoking }) => format.number(revoking)],
  ["Events not acknowledged", ({ events }) => format.number(events)],
  ["Next event", (one) => (one.next_event === undefined ? null : format.ahead(one.next_event, now()))],
];

// One page of holders or waiting tasks; its cursor is in the query under the name of the group.
function memberPart(key, group, title, none, columns) {
  const table = grid({ label: title, columns, key: ({ tube, task }) => `${tube} ${task}` });
  const note = make("p", { class: "note" }, none);
  const first = make("a", { class: "button" }, "First page");
  const next = make("a", { class: "button" }, "Next page");
  const pager = make("nav", { class: "bar pager", "aria-label": `Pages of ${title.toLowerCase()}` }, first, next);
  const element = section(title, note, table.element, pager);
  element.dataset.group = group;
  return { element, async refresh(query, signal) {
    const found = await members(key, group, { count: ROWS_MAX, after: query[group] }, signal);
    table.show(found.tasks);
    show(table.element, found.tasks.length > 0);
    show(note, !found.tasks.length);
    show(first, Boolean(query[group]));
    mark(first, "href", to.semaphore(key, { ...query, [group]: null }));
    show(next, found.next !== undefined);
    mark(next, "href", to.semaphore(key, { ...query, [group]: found.next }));
    show(pager, Boolean(query[group]) || found.next !== undefined);
  } };
}

export function semaphore(route, { setTitle }) {
  const [key] = route.args;
  let query = route.query;
  const counts = pairs(COUNTS.map(([name]) => name));
  const options = pairs(OPTIONS.map(([name]) => name));
  const missing = make("p", { class: "card", role: "alert", hidden: true });
  const holders = memberPart(key, "holders", "Holders", "No task holds a grant.", HOLDERS);
  const waiting = memberPart(key, "waiting", "Waiting tasks", "No task waits.", WAITING);
  const content = make("div", { class: "stack" }, make("div", { class: "columns" }, section("Now", counts.element), section("Options", options.element)),
    holders.element, waiting.element);
  const element = make("div", { class: "stack" },
    make("nav", { class: "crumbs", "aria-label": "Path" }, make("a", { href: to.semaphores() }, "Semaphores")),
    make("div", { class: "bar title" }, make("h2", { tabindex: "-1" }, key)), missing, content);

  setTitle(`Semaphore ${key}`);
  return {
    element,
    update(newRoute) {
      query = newRoute.query;
    },
    async refresh(signal) {
      try {
        const found = await fetchSemaphore(key, signal);
        counts.fill(COUNTS.map(([, value]) => value(found)));
        options.fill(OPTIONS.map(([, value]) => value(found)));
        await holders.refresh(query, signal);
        await waiting.refresh(query, signal);
      } catch (error) {
        if (error.status !== 404 && error.status !== 400) throw error;
        say(missing, error.status === 404 ? `There is no semaphore “${key}” on this server.` : `${error.message}.`);
        show(missing, true);
        show(content, false);
        return;
      }
      show(missing, false);
      show(content, true);
    },
  };
}
