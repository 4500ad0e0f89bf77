// Schedules: the list, and one schedule with its next times and its actions.

import { nextTimes, now, removeSchedule, runSchedule, schedule as fetchSchedule, schedules as fetchSchedules, setSchedulePaused } from "./api.js";
import { ask } from "./dialog.js";
import { hasActions, make, mark, pairs, say, section, show } from "./dom.js";
import * as format from "./format.js";
import { go, setQuery, to } from "./router.js";
import { CATCH_UP, OVERLAP, editSchedule } from "./schedule_form.js";
import { grid } from "./table.js";
import { mayWithAny, offers } from "./user.js";

const ROWS_MAX = 100;
const TIMES_MAX = 20;

const times = ({ cron, zone, every, start }) => (every === undefined
  ? [cron, zone].filter(Boolean).join(" ")
  : `every ${format.span(every)}${start === undefined ? "" : ` from ${format.moment(start)}`}`);
const next = ({ next: at, paused }) => (at === undefined ? "over" : paused ? "paused" : format.ahead(at, now()));
const last = ({ last: at }) => (at === undefined ? "–" : format.ago(at, now()));

const COLUMNS = [
  { label: "Schedule", head: true, class: "key-name", text: ({ name }) => name, href: ({ name }) => to.schedule(name) },
  { label: "Tube", text: ({ tube }) => tube, href: ({ tube }) => to.tube(tube) },
  { label: "Times", text: times },
  { label: "Next", class: "time", text: next, tone: ({ paused }) => (paused ? "busy" : null) },
  { label: "Last", class: "time", text: last },
  { label: "Fired", class: "count", text: ({ fired }) => format.number(fired) },
  { label: "Skipped", class: "count", text: ({ skipped }) => format.number(skipped) },
  { label: "Error", text: ({ error }) => error ?? "", tone: ({ error }) => (error ? "bad" : null) },
];

export function schedules(route, { setTitle }) {
  let query = route.query;
  let newest = [];
  const search = make("input", { id: "filter", type: "search", placeholder: "Search schedules", "aria-label": "Search schedules of this page by name or tube",
    input: () => setQuery({ search: search.value }, { replace: true }) });
  const shown = make("span", { class: "note" });
  const table = grid({ label: "Schedules", columns: COLUMNS, key: ({ name }) => name, className: "schedules" });
  const nothing = make("p", { class: "card note", hidden: true });
  const first = make("a", { class: "button" }, "First page");
  const following = make("a", { class: "button" }, "Next page");
  const pager = make("nav", { class: "bar pager", "aria-label": "Pages" }, first, following);
  const bar = make("div", { class: "bar" }, search, shown);
  const add = make("button", { type: "button", "data-action": "add", hidden: true,
    click: () => editSchedule(null, (name) => go(to.schedule(name))) }, "New schedule");
  const title = make("div", { class: "bar title" }, make("h2", { tabindex: "-1" }, "Schedules"), add);
  const element = make("div", { class: "stack" }, title, nothing, bar, table.element, pager);

  function draw() {
    const text = (query.search ?? "").toLowerCase();
    const found = newest.filter(({ name, tube }) => [name, tube].some((word) => word.toLowerCase().includes(text)));
    table.show(found);
    show(bar, newest.length > 0);
    show(table.element, found.length > 0);
    say(shown, found.length || !newest.length ? "" : "No schedule of this page matches");
  }

  setTitle("Schedules");
  search.value = query.search ?? "";
  return {
    element,
    update(newRoute) {
      query = newRoute.query;
      if (document.activeElement !== search) search.value = query.search ?? "";
      draw();
    },
    async refresh(signal) {
      try {
        const page = await fetchSchedules({ count: ROWS_MAX, after: query.after }, signal);
        newest = page.schedules;
        show(following, page.next !== undefined);
        mark(following, "href", to.schedules({ search: query.search, after: page.next }));
        say(nothing, "No schedules. A schedule puts a task at certain times; “New schedule”, “taskyard schedule add” or “PUT /v1/schedules/NAME” creates one.");
        show(add, hasActions && mayWithAny("set_schedule"));
      } catch (error) {
        // The store of this server has none.
        if (error.status !== 501) throw error;
        newest = [];
        show(following, false);
        show(add, false);
        say(nothing, `${error.message}.`);
      }
      show(nothing, !newest.length);
      show(first, Boolean(query.after));
      mark(first, "href", to.schedules({ search: query.search }));
      show(pager, !first.hidden || !following.hidden);
      draw();
    },
  };
}

const FACTS = [
  ["Tube", ({ tube }) => tube],
  ["Times", times],
  ["Next", next],
  ["Last", last],
  ["Fired", ({ fired }) => format.number(fired)],
  ["Skipped", ({ skipped }) => format.number(skipped)],
  ["Missed times", ({ catch_up: rule }) => CATCH_UP[rule]],
  ["While an earlier task exists", ({ overlap }) => OVERLAP[overlap]],
  ["Until", ({ until }) => (until === undefined ? null : format.moment(until))],
  ["Error", ({ error }) => error],
];

// The buttons of a schedule; none on a page without actions.
function actions(name, refresh) {
  let paused = false;
  let newest = null;
  const change = make("button", { type: "button", "data-action": "change", click: () => editSchedule(newest, refresh) }, "Change");
  const pause = make("button", { type: "button", "data-action": "pause", click: () => {
    const resumes = paused;
    ask({ title: resumes ? `Resume ${name}?` : `Pause ${name}?`, confirm: resumes ? "Resume" : "Pause", done: refresh,
      prepare: async () => (resumes ? "Times that it missed are caught up if it does so." : "No time fires until it is resumed."),
      act: async () => {
        await setSchedulePaused(name, !resumes);
        return resumes ? `Resumed ${name}` : `Paused ${name}`;
      } });
  } }, "Pause");
  const run = make("button", { type: "button", "data-action": "run", click: () => ask({
    title: `Run ${name} now?`, confirm: "Run", prepare: async () => "Its task is put now; its times stay.", done: refresh,
    act: async () => {
      const [task] = (await runSchedule(name)).tasks;
      return task.existing ? `Task ${task.id} of this schedule exists; nothing was added` : `Added task ${task.id}`;
    } }) }, "Run now");
  const remove = make("button", { type: "button", class: "danger", "data-action": "remove", click: () => ask({
    title: `Remove ${name}?`, confirm: "Remove", danger: true, prepare: async () => "Its tasks stay.",
    act: async () => {
      await removeSchedule(name);
      return `Removed ${name}`;
    }, done: (text) => text && go(to.schedules()) }) }, "Remove");
  const element = make("div", { class: "bar actions" });
  return { element, show(one) {
    paused = one.paused;
    newest = one;
    say(pause, paused ? "Resume" : "Pause");
    const wanted = [offers("pause_schedule", name) && pause, offers("put", one.tube) && run,
      offers("set_schedule", name) && change, offers("set_schedule", name) && remove]
      .filter(Boolean);
    // Replacing buttons would take the focus from them.
    if (wanted.length !== element.children.length) element.replaceChildren(...wanted);
  } };
}

export function schedule(route, { refresh, setTitle }) {
  const [name] = route.args;
  const facts = pairs(FACTS.map(([label]) => label));
  const list = make("ol", { class: "times" });
  const none = make("p", { class: "note" }, "There are no more times.");
  const payload = make("pre", { class: "payload" });
  const missing = make("p", { class: "card", role: "alert", hidden: true });
  const buttons = actions(name, refresh);
  const content = make("div", { class: "stack" }, make("div", { class: "columns" },
    section("Now", facts.element), section("Next times", none, list)), section("Task", payload));
  const element = make("div", { class: "stack" },
    make("nav", { class: "crumbs", "aria-label": "Path" }, make("a", { href: to.schedules() }, "Schedules")),
    make("div", { class: "bar title" }, make("h2", { tabindex: "-1" }, name), buttons.element), missing, content);

  function showTimes(found) {
    while (list.children.length > found.length) list.lastChild.remove();
    found.forEach((at, i) => say(list.children[i] ?? list.appendChild(make("li")), format.moment(at)));
    show(none, !found.length);
  }

  setTitle(`Schedule ${name}`);
  return {
    element,
    async refresh(signal) {
      try {
        const found = await fetchSchedule(name, signal);
        facts.fill(FACTS.map(([, value]) => value(found)));
        buttons.show(found);
        say(payload, JSON.stringify(found.task, null, 2));
        showTimes((await nextTimes(name, TIMES_MAX, signal)).times);
      } catch (error) {
        if (error.status !== 404 && error.status !== 400) throw error;
        say(missing, error.status === 404 ? `There is no schedule “${name}” on this server.` : `${error.message}.`);
        for (const part of [content, buttons.element]) show(part, false);
        show(missing, true);
        return;
      }
      for (const part of [content, buttons.element]) show(part, true);
      show(missing, false);
    },
  };
}
