// The details of a tube: taken tasks, waiting consumers, counters and options.

import { deliveriesAndConsumers, now } from "./api.js";
import { make, pairs, say, section, show } from "./dom.js";
import { BACKLOG } from "./estimates.js";
import * as format from "./format.js";
import { to } from "./router.js";
import { grid } from "./table.js";

const ROWS_MAX = 100;

const until = (moment) => (moment === undefined ? "never" : format.ahead(moment, now()));
const seconds = (value) => (value === undefined ? "none" : format.span(value));
const limit = (value) => (value === undefined ? "none" : format.number(value));
const policy = ({ delay, factor, delay_max, jitter }) =>
  `${format.span(delay)} × ${factor}, at most ${format.span(delay_max)}, ± ${Math.round(jitter * 100)} %`;
const rate = ({ count, per, burst }) => `${format.number(count)} in ${format.span(per)}, at most ${format.number(burst)} at once`;
const yesNo = (value) => (value ? "yes" : "no");

const OPTIONS = [
  ["Kind", (info) => info.kind], ["Temporary", (info) => yesNo(info.temporary)],
  ["Capacity", (info) => limit(info.capacity)], ["Priority", (info) => format.number(info.pri)],
  ["Time to live", (info) => seconds(info.ttl)], ["Time to run", (info) => seconds(info.ttr)],
  ["Delay", (info) => seconds(info.delay)], ["Maximum attempts", (info) => limit(info.attempts_max)],
  ["Queue number", (info) => `${info.queue_num ?? "none"}`], ["Semaphore", (info) => info.semaphore ?? "none"],
  ["Time to live ends deliveries", (info) => yesNo(info.ttl_kills_taken)],
  ["Keeps finished tasks", (info) => (info.keep_done === undefined ? null : seconds(info.keep_done))],
  ["Most finished tasks", (info) => (info.keep_done === undefined ? null : limit(info.keep_done_max))],
  ["Retries after", (info) => (info.retry === undefined ? null : policy(info.retry))],
  ["Retries lost deliveries", (info) => (info.retry === undefined ? null : yesNo(info.retry_lost))],
  ["Rate limit", (info) => (info.rate === undefined ? null : rate(info.rate))],
];
const NOW = [
  ...["ready", "delayed", "taken", "buried", "total"].map((key) => [key, (info) => format.number(info.tasks[key])]),
  ["takeable now", (info) => format.number(info.takeable)],
  ["oldest ready", (info) => (info.oldest_ready === undefined ? "none" : format.ago(info.oldest_ready, now()))],
  ["next due", (info) => until(info.next_wakeup)],
];
const CALLS = ["put", "take", "ack", "release", "bury", "kick", "delete", "touch", "ttl", "ttr", "delay"];

// Pairs that are filled from the info of a tube.
function filled(entries) {
  const list = pairs(entries.map(([name]) => name));
  return { element: list.element, show: (info) => list.fill(entries.map(([, value]) => value(info))) };
}

// A table with a text for the case without rows.
function listed(title, none, columns, key) {
  const table = grid({ label: title, columns, key });
  const note = make("p", { class: "note" }, none);
  const element = section(title, note, table.element);
  return { element, show(items) {
    table.show(items);
    show(table.element, items.length > 0);
    show(note, items.length === 0);
    say(note, items.length >= ROWS_MAX ? `The first ${ROWS_MAX} are shown.` : none);
  } };
}

export function tubeDetails(tube) {
  const deliveries = listed("Taken tasks", "No taken tasks.", [
    { label: "Task", head: true, class: "number", text: ({ id }) => `${id}`, href: ({ id }) => to.task(tube, id) },
    { label: "Worker", text: ({ worker }) => worker ?? "–" },
    { label: "Session", text: ({ session }) => session ?? "no session" },
    { label: "Lease", class: "count", text: ({ lease }) => (lease === undefined ? "–" : format.exact(lease)) },
    { label: "Taken", class: "time", text: ({ time }) => (time ? format.ago(time, now()) : "–") },
    { label: "Ends", class: "time", text: (held) => until(held.until) },
  ], ({ id }) => id);
  const consumers = listed("Waiting consumers", "No waiting consumers.", [
    { label: "Session", head: true, text: ({ session }) => session ?? "no session" },
    { label: "Since", class: "time", text: ({ since }) => format.ago(since, now()) },
    { label: "Ends", class: "time", text: (waiting) => until(waiting.until) },
  ], ({ number }) => number);
  const tasksNow = filled(NOW);
  const calls = filled(CALLS.map((key) => [key, (info) => format.number(info.calls[key])]));
  const options = filled(OPTIONS);
  const estimates = filled(BACKLOG);
  const element = make("div", { class: "stack", id: "tube-details" },
    deliveries.element, consumers.element,
    make("div", { class: "columns" }, section("Tasks now", tasksNow.element),
      section("Calls since the store was opened", calls.element), section("Options", options.element),
      section("Estimates", estimates.element)));

  return {
    element,
    async refresh(signal, info) {
      for (const part of [tasksNow, calls, options, estimates]) part.show(info);
      const found = await deliveriesAndConsumers(tube, ROWS_MAX, signal);
      deliveries.show(found.deliveries);
      consumers.show(found.consumers.map((consumer, number) => ({ ...consumer, number })));
    },
  };
}
