// The list of tasks of a tube: a page by state, or the results of a search that goes on in steps.

import { actionLabel, actionsFor, actOnTasks } from "./actions.js";
import { now, positions, tasks as fetchTasks } from "./api.js";
import { announce, make, mark, say, show } from "./dom.js";
import { startCell, startOf, waits } from "./estimates.js";
import { actionFilter, filterForm, filterOf, isSearch } from "./filter.js";
import * as format from "./format.js";
import { to } from "./router.js";
import { grid } from "./table.js";
import { may } from "./user.js";

const ROWS_MAX = 100;
// A page without conditions is cheap; it is fetched again while it is shown.
const EVERY_MS = 2_000;

// A payload on one line.
function preview(task) {
  if (task.cut) return `${task.data ?? ""}…`;
  if (task.data_base64 !== undefined) return `binary, ${format.bytes(Math.floor((task.data_base64.length * 3) / 4))}`;
  return task.data === undefined ? "" : JSON.stringify(task.data);
}

// When and why a task in its state changes next.
function situation(task, time) {
  if (task.state === "taken") {
    const until = task.lease_until === undefined ? "" : `, lease ends ${format.ahead(task.lease_until, time)}`;
    return `${task.worker ?? "worker without a name"}${until}`;
  }
  if (task.state === "delayed" && task.due !== undefined) return `due ${format.ahead(task.due, time)}`;
  if (task.state === "done" && task.finished !== undefined) return `finished ${format.ago(task.finished, time)}`;
  if (task.state === "buried" && task.failed_at !== undefined) return `failed ${format.ago(task.failed_at, time)}`;
  return format.reason(task.reason);
}

function columns(tube, selection) {
  const select = { class: "pick", hiddenLabel: "Select",
    create: (cell, { id }) => {
      const box = cell.appendChild(make("input", { type: "checkbox", "aria-label": `Select task ${id}`,
        change: () => selection.toggle(id, box.checked) }));
      return () => { box.checked = selection.has(id); };
    } };
  return [
    ...(actionsFor(tube).length ? [select] : []),
    { label: "Task", head: true, class: "number", text: (task) => `${task.id}`, href: (task) => to.task(tube, task.id) },
    { label: "State", class: "state", create: (cell) => {
      const badge = cell.appendChild(make("span", { class: "state-badge" }));
      return (task) => { say(badge, task.state); mark(badge, "data-state", task.state); };
    } },
    { label: "Created", class: "time", text: (task) => format.ago(task.created, now()), title: (task) => format.moment(task.created) },
    { label: "Attempts", class: "count", text: (task) => format.number(task.attempts) },
    { label: "Details", class: "situation", text: (task) => situation(task, now()) },
    { label: "Starts in", class: "starts", text: startCell, title: (task) => startOf(task) || null },
    { label: "Error", class: "error one-line", text: (task) => task.error ?? "", title: (task) => task.error ?? null },
    { label: "Payload", class: "payload one-line", text: preview },
  ];
}

// The chosen tasks: ids, or all that match.
function createSelection(changed) {
  const ids = new Set();
  let all = false;
  return {
    has: (id) => all || ids.has(id),
    get size() { return ids.size; },
    get all() { return all; },
    choice: (filter) => (all ? { filter } : { ids: [...ids] }),
    toggle(id, wanted) {
      all = false;
      ids[wanted ? "add" : "delete"](id);
      changed();
    },
    set(some, everything = false) {
      ids.clear();
      some.forEach((id) => ids.add(id));
      all = everything;
      changed();
    },
  };
}

export function taskList(tube, { refresh: refreshAll, total }) {
  let query = {};
  let found = [];
  let next;
  let fetched = -Infinity;
  // When the starts of the results of a search were fetched.
  let startsFetched = -Infinity;
  let search = null;
  const selection = createSelection(() => showSelection());
  const form = filterForm();
  const table = grid({ label: "Tasks", columns: columns(tube, selection), key: (task) => task.id, className: "tasks" });
  const nothing = make("p", { class: "card note", hidden: true });

  const progress = make("progress", { "aria-label": "Search" });
  const progressText = make("span");
  const stop = make("button", { type: "button", click: () => search?.abort.abort() }, "Stop");
  const resume = make("button", { type: "button", click: () => runSearch(search.next, true) }, "Continue");
  const progressBar = make("div", { class: "bar progress", hidden: true }, progress, progressText, stop, resume);

  const chosen = make("span", { class: "chosen", role: "status" });
  const pickPage = make("button", { type: "button", click: () => selection.set(found.map((task) => task.id)) }, "Select page");
  const pickAll = make("button", { type: "button", click: () => selection.set([], true) }, "Select all that match");
  const unpick = make("button", { type: "button", click: () => selection.set([]) }, "Clear selection");
  const buttons = make("span", { class: "buttons", role: "group", "aria-label": "Actions on the selected tasks" });
  const result = make("p", { class: "note", hidden: true });
  const toolbar = make("div", { class: "bar toolbar" }, chosen, pickPage, pickAll, unpick, buttons);

  const first = make("a", { class: "button" }, "First page");
  const following = make("a", { class: "button" }, "Next page");
  const pager = make("nav", { class: "bar pager", "aria-label": "Pages" }, first, following);
  const element = make("div", { class: "stack", id: "task-list" }, form.element, progressBar, result,
    actionsFor(tube).length > 0 && toolbar, nothing, table.element, pager);

  function act(action) {
    const choice = selection.choice(actionFilter(query));
    actOnTasks({ tube, action, choice, total: total(query.state), done: (text) => {
      if (text) {
        say(result, text);
        show(result, true);
        selection.set([]);
      }
      fetched = -Infinity;
      if (isSearch(query)) runSearch(query.after);
      refreshAll();
    } });
  }

  function showSelection() {
    const word = query.state ? `${query.state} ` : "";
    const everything = isSearch(query) ? `All ${word}tasks that match` : `All ${word}tasks`;
    say(chosen, selection.all ? `${everything} selected` : selection.size ? `${format.many(selection.size, "task")} selected` : "No task selected");
    say(pickAll, `Select ${everything[0].toLowerCase()}${everything.slice(1)}`);
    for (const button of [pickPage, pickAll]) mark(button, "disabled", found.length ? null : "");
    mark(unpick, "disabled", selection.all || selection.size ? null : "");
    for (const button of buttons.children) mark(button, "disabled", selection.all || selection.size ? null : "");
    table.show(found);
  }

  // Estimates are asked for only where the state may have waiting tasks.
  const showsStarts = () => !query.state || query.state.split(",").some(waits);

  function showFound() {
    table.show(found);
    show(table.element, found.length > 0);
    const isBusy = search && !search.done;
    show(nothing, !found.length && !isBusy);
    say(nothing, isSearch(query) ? "No task matches." : query.after ? "No further tasks." : `No ${query.state ?? ""} tasks.`.replace("  ", " "));
    show(first, Boolean(query.after));
    mark(first, "href", hrefWith({ after: null }));
    show(following, next !== undefined && !isBusy);
    mark(following, "href", next === undefined ? null : hrefWith({ after: next }));
    show(pager, Boolean(query.after) || (next !== undefined && !isBusy));
    for (const button of [pickPage, pickAll]) mark(button, "disabled", found.length ? null : "");
  }

  const hrefWith = (changes) => to.tube(tube, { ...query, ...changes });

  function showProgress() {
    const count = total(query.state);
    if (count) {
      progress.max = count;
      progress.value = Math.min(search.scanned, count);
    } else {
      progress.removeAttribute("value");
    }
    const state = search.done ? "" : search.isStopped ? "Stopped. " : "Searching… ";
    say(progressText, `${state}${format.number(search.scanned)} tasks searched, ${format.number(found.length)} found`);
    show(progress, !search.done && !search.isStopped);
    show(stop, !search.done && !search.isStopped);
    show(resume, search.isStopped);
    show(progressBar, true);
  }

  // Searches until the page is full, no task follows, or it is stopped. `goesOn` continues a stopped search.
  async function runSearch(after, goesOn = false) {
    search?.abort.abort();
    const mine = { abort: new AbortController(), scanned: goesOn ? search.scanned : 0, next: after, done: false, isStopped: false };
    search = mine;
    if (!goesOn) found = [];
    next = undefined;
    startsFetched = -Infinity;
    showProgress();
    try {
      do {
        const filter = { ...filterOf(query), after: mine.next, limit: ROWS_MAX - found.length };
        const answer = await fetchTasks(tube, filter, mine.abort.signal);
        if (search !== mine) return;
        found = [...found, ...answer.tasks];
        mine.scanned += answer.scanned;
        mine.next = answer.next;
        showProgress();
        showFound();
      } while (mine.next !== undefined && found.length < ROWS_MAX);
      mine.done = true;
      next = mine.next;
      announce(`${format.many(found.length, "task")} found`);
    } catch (error) {
      if (search !== mine) return;
      mine.isStopped = true;
      announce("The search is stopped");
      if (!mine.abort.signal.aborted) say(result, `The search failed: ${error.message}.`);
      show(result, !mine.abort.signal.aborted);
    }
    showProgress();
    showFound();
  }

  // Results stay as they were found; only when they start is fetched again.
  async function refreshStarts(signal) {
    const waiting = new Set(found.filter(({ state }) => waits(state)).map(({ id }) => id));
    if (!waiting.size || performance.now() - startsFetched < EVERY_MS) return;
    const fresh = new Map((await positions(tube, [...waiting], signal)).map((position) => [position.id, position]));
    startsFetched = performance.now();
    found = found.map((task) => {
      if (!waiting.has(task.id)) return task;
      const { ahead, approximate, estimate, no_estimate } = fresh.get(task.id) ?? {};
      return { ...task, ahead, approximate, estimate, no_estimate };
    });
  }

  function update(newQuery) {
    const before = JSON.stringify(filterOf(query)) + query.after;
    query = newQuery;
    form.update(query);
    if (before === JSON.stringify(filterOf(query)) + query.after && fetched !== -Infinity) return;
    search?.abort.abort();
    search = null;
    found = [];
    next = undefined;
    fetched = -Infinity;
    startsFetched = -Infinity;
    table.table.classList.toggle("without-starts", !showsStarts());
    show(progressBar, false);
    show(result, false);
    buttons.replaceChildren(...actionsFor(tube, query.state).map((name) =>
      make("button", { type: "button", "data-action": name, class: name === "delete" ? "danger" : null, click: () => act(name) }, actionLabel(name))));
    selection.set([]);
    if (isSearch(query) && may("peek", tube)) runSearch(query.after);
  }

  async function refresh(signal) {
    const isAllowed = may("peek", tube);
    for (const one of [form.element, toolbar]) show(one, isAllowed);
    if (!isAllowed) {
      for (const one of [table.element, pager]) show(one, false);
      say(nothing, "You may not see the tasks of this tube: the role “operate” is needed. Charts and details show their numbers.");
      return show(nothing, true);
    }
    if (isSearch(query)) {
      await refreshStarts(signal);
      // Times are shown relative to now.
      if (found.length) table.show(found);
      return;
    }
    if (performance.now() - fetched < EVERY_MS) return table.show(found);
    const wanted = { ...filterOf(query), after: query.after, limit: ROWS_MAX, estimate: showsStarts() || null };
    const answer = await fetchTasks(tube, wanted, signal);
    fetched = performance.now();
    found = answer.tasks;
    next = answer.next;
    showFound();
  }

  return { element, update, refresh, leave: () => search?.abort.abort() };
}
