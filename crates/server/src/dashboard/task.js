// A task: its state, why it waits and when it starts, its deadlines, its failures, its payload and its result.

import { actionLabel, actionsFor, actOnTasks } from "./actions.js";
import { now, positions, task as fetchTask } from "./api.js";
import { make, mark, pairs, say, section, show } from "./dom.js";
import { startOf, waits } from "./estimates.js";
import * as format from "./format.js";
import { payloadBox } from "./payload.js";
import { to } from "./router.js";
import { grid } from "./table.js";

// A large payload is not fetched every second.
const LARGE_CHARS = 100_000;
const LARGE_EVERY_MS = 15_000;

const past = (at) => (at === undefined ? null : `${format.moment(at)} (${format.ago(at, now())})`);
const future = (at) => (at === undefined ? null : `${format.moment(at)} (${format.ahead(at, now())})`);

const FIELDS = [
  ["Created", (task) => past(task.created)],
  ["Due", (task) => (task.state === "delayed" ? future(task.due) : null)],
  ["Expires", (task) => future(task.expires)],
  ["Key", (task) => task.key],
  ["Attempts", (task) => format.number(task.attempts)],
  ["Attempts, at most", (task) => (task.attempts_max === undefined ? null : format.number(task.attempts_max))],
  ["Priority", (task) => format.exact(task.pri)],
  ["Position", (task) => (task.position === undefined ? null : format.number(task.position))],
  ["Sub-queue", (task) => task.subqueue],
  ["Priority in the semaphore", (task) => (task.semaphore_priority === undefined ? null : `${task.semaphore_priority}`)],
  ["Time to run", (task) => (task.ttr === undefined ? null : format.span(task.ttr))],
  ["Worker", (task) => task.worker ?? (task.state === "taken" ? "gave no name" : null)],
  ["Taken", (task) => (task.state === "taken" ? past(task.start) : null)],
  ["Lease", (task) => (task.lease === undefined ? null : format.exact(task.lease))],
  ["Lease ends", (task) => future(task.lease_until)],
  ["Last failure", (task) => past(task.failed_at)],
  ["Finished", (task) => past(task.finished)],
  ["Run time", (task) => (task.run_ms === undefined ? null : format.duration(task.run_ms / 1000))],
];

const FAILURES = [
  { label: "Time", head: true, class: "time", text: ({ at }) => format.ago(at, now()), title: ({ at }) => format.moment(at) },
  { label: "Attempt", class: "count", text: ({ attempt }) => `${attempt}` },
  { label: "Run time", class: "count", text: ({ run }) => format.duration(run) },
  { label: "Worker", class: "worker", text: ({ worker }) => worker ?? "–" },
  { label: "Error", class: "error whole", text: ({ error }) => error },
];

export function task(route, { refresh: refreshAll, setTitle }) {
  const [tube, id] = route.args;
  const badge = make("span", { class: "state-badge", hidden: true });
  const buttons = make("span", { class: "buttons" });
  const reason = make("p", { id: "reason" });
  const start = make("p", { id: "start" });
  const gone = make("p", { class: "card", role: "alert", hidden: true });
  const result = make("p", { class: "note", role: "status" });
  const fields = pairs(FIELDS.map(([name]) => name), "facts");
  const failures = grid({ label: "Failures, newest first", columns: FAILURES, key: ({ at, attempt }) => `${at} ${attempt}`, className: "failures" });
  const failureSection = section("Failures", make("p", { class: "note" }, "The newest first; a task keeps its last five."), failures.element);
  const name = `${tube}-${id}`;
  const boxes = { data: payloadBox("Payload", `${name}.msgpack`), meta: payloadBox("Metadata", `${name}-meta.msgpack`),
    result: payloadBox("Result", `${name}-result.msgpack`) };
  const content = make("div", { class: "stack", hidden: true }, make("section", { class: "card", "aria-label": "Story" }, fields.element),
    failureSection, boxes.result.element, boxes.data.element, boxes.meta.element);
  const element = make("div", { class: "stack" },
    make("nav", { class: "crumbs", "aria-label": "Path" }, make("a", { href: to.overview() }, "Overview"), " / ",
      make("a", { href: to.tube(tube) }, tube)),
    make("div", { class: "bar title" }, make("h2", { tabindex: "-1" }, `Task ${id}`), badge, buttons),
    reason, start, result, gone, content);
  let shownState = null;
  let fetched = -Infinity;
  let isLarge = false;

  function act(action) {
    actOnTasks({ tube, action, choice: { ids: [Number(id)] }, done: (text) => {
      if (text) say(result, text);
      fetched = -Infinity;
      refreshAll();
    } });
  }

  function showState(state) {
    if (state === shownState) return;
    shownState = state;
    show(badge, state !== null);
    say(badge, state ?? "");
    mark(badge, "data-state", state);
    buttons.replaceChildren(...(state ? actionsFor(tube, state) : []).map((action) =>
      make("button", { type: "button", "data-action": action, class: action === "delete" ? "danger" : action === "kick" ? "primary" : null,
        click: () => act(action) }, actionLabel(action))));
  }

  function fill(found) {
    showState(found.state);
    const until = found.reason?.until === undefined ? "" : `, until ${format.moment(found.reason.until)}`;
    const text = format.reason(found.reason);
    say(reason, `${text.charAt(0).toUpperCase()}${text.slice(1)}${until}`);
    say(start, startOf(found));
    fields.fill(FIELDS.map(([, value]) => value(found) ?? null));
    const all = [...(found.failures ?? [])].reverse();
    failures.show(all);
    show(failureSection, all.length > 0);
    for (const [key, box] of Object.entries(boxes)) {
      const [packed, value] = [found[`${key}_base64`], found[key]];
      const isPresent = packed !== undefined || value !== undefined;
      show(box.element, isPresent);
      if (isPresent) box.fill(packed, value);
    }
    isLarge = (found.data_base64?.length ?? 0) > LARGE_CHARS;
  }

  // An estimate is outdated after some seconds, and fetched without the payload.
  async function refreshStart(signal) {
    if (!waits(shownState)) return;
    const [position] = await positions(tube, [Number(id)], signal).catch((error) => {
      if (error.status !== 404) throw error;
      return [];
    });
    if (position) say(start, startOf(position));
    // It does not wait any more.
    else fetched = -Infinity;
  }

  async function refresh(signal) {
    if (isLarge && performance.now() - fetched < LARGE_EVERY_MS) return refreshStart(signal);
    let found;
    try {
      found = await fetchTask(tube, id, signal);
    } catch (error) {
      if (error.status !== 404) throw error;
      showState(null);
      say(reason, "");
      say(start, "");
      say(gone, error.code === "tube_not_found" ? `There is no tube “${tube}” on this server.` :
        "This task does not exist: it was acknowledged or deleted, it has expired, or it was never put.");
      show(gone, true);
      content.classList.add("stale");
      return;
    }
    fetched = performance.now();
    show(gone, false);
    show(content, true);
    content.classList.remove("stale");
    fill(found);
  }

  setTitle(`Task ${id} in ${tube}`);
  return { element, refresh };
}
