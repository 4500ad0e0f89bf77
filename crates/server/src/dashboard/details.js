// The panel with the details of one tube.

import { deliveriesAndConsumers, setPaused } from "./api.js";
import { draw, graph } from "./rates.js";
import { make, remark, say } from "./table.js";
import * as format from "./format.js";

const ROWS_MAX = 100;

const panel = document.getElementById("details");
const pause = document.getElementById("pause");
const confirm = document.getElementById("confirm");
const body = document.getElementById("details-body");
const spark = document.getElementById("details-graph").appendChild(graph(600, 90));

let tube = null;

// The name of the tube that is shown, if one is.
export const shown = () => (panel.open ? tube : null);

export function open(name) {
  tube = name;
  say(document.getElementById("details-name"), name);
  body.replaceChildren();
  pause.hidden = confirm.hidden = true;
  panel.showModal();
}

export const close = () => panel.close();

function pairs(title, entries) {
  const list = make("dl", "pairs");
  for (const [key, value] of entries) {
    const pair = list.appendChild(make("div"));
    pair.append(make("dt", "", key), make("dd", "", value));
  }
  return [make("h3", "", title), list];
}

function list(title, columns, lines, nothing) {
  if (!lines.length) return [make("h3", "", title), make("p", "note", nothing)];
  const table = make("table");
  const head = table.appendChild(make("thead")).appendChild(make("tr"));
  head.append(...columns.map((text) => make("th", "", text)));
  const rows = table.appendChild(make("tbody"));
  for (const line of lines) {
    rows.appendChild(make("tr")).append(...line.map((text) => make("td", "", text)));
  }
  return [make("h3", "", title), table];
}

function options(info) {
  const seconds = (value) => (value === undefined ? "none" : format.span(value));
  const limit = (value) => (value === undefined ? "none" : format.number(value));
  return [
    ["kind", info.kind], ["temporary", info.temporary ? "yes" : "no"],
    ["capacity", limit(info.capacity)], ["priority", format.number(info.pri)],
    ["ttl", seconds(info.ttl)], ["ttr", seconds(info.ttr)], ["delay", seconds(info.delay)],
    ["maximum attempts", limit(info.attempts_max)],
    ["queue number", info.queue_num ?? "none"],
    ["ttl ends deliveries", info.ttl_kills_taken ? "yes" : "no"],
  ];
}

const counters = (counts) => Object.entries(counts).map(([key, value]) => [key, format.number(value)]);

const until = (moment, now) => (moment === undefined ? "never" : format.ahead(moment, now));

// Fills the open panel with the newest numbers; the tube may be gone by now.
export async function refresh(tubes, now, signal) {
  const name = shown();
  const info = tubes.find((candidate) => candidate.name === name);
  if (!info) return close();
  remark(document.getElementById("details-why"), format.why(info, now));
  draw(spark, name);
  pause.hidden = false;
  pause.dataset.paused = info.paused;
  say(pause, info.paused ? "Resume" : "Pause");
  const found = await deliveriesAndConsumers(name, ROWS_MAX, signal).catch((error) => {
    // It was dropped just now; the next refresh shows that.
    if (error.status !== 404) throw error;
  });
  if (found && shown() === name) fill(info, found, now);
}

function fill(info, { deliveries, consumers }, now) {
  const held = deliveries.map(({ id, lease, session, time, until: end }) => [
    `${id}`, `${lease ?? "–"}`, session ?? "no session", time ? format.ago(time, now) : "–", until(end, now)]);
  const waiting = consumers.map(({ since, until: end, session }) => [
    session ?? "no session", format.ago(since, now), until(end, now)]);
  const next = info.next_wakeup === undefined ? "never" : format.ahead(info.next_wakeup, now);
  body.replaceChildren(
    ...list("Taken tasks", ["Task", "Lease", "Session", "Taken", "Ends"], held, "No taken tasks."),
    ...list("Waiting consumers", ["Session", "Since", "Ends"], waiting, "No waiting consumers."),
    ...pairs("Tasks now", [...counters(info.tasks), ["takeable now", format.number(info.takeable)], ["next due", next]]),
    ...pairs("Calls since the store was opened", counters(info.calls)),
    ...pairs("Options", options(info)),
  );
}

// Handles the pause button: a pause is confirmed first. Calls `done` after success or failure; the next refresh shows
// the state.
export function onPause(done) {
  const set = async (paused) => {
    confirm.hidden = true;
    pause.disabled = true;
    await setPaused(tube, paused).catch(() => {});
    pause.disabled = false;
    done();
  };
  pause.addEventListener("click", () => {
    if (pause.dataset.paused === "true") return set(false);
    say(document.getElementById("confirm-text"),
      `Pause tube “${tube}”? Consumers get no tasks from it until it is resumed. Puts still work.`);
    confirm.hidden = false;
    document.getElementById("confirm-yes").focus();
  });
  document.getElementById("confirm-yes").addEventListener("click", () => set(true));
  document.getElementById("confirm-no").addEventListener("click", () => {
    confirm.hidden = true;
    pause.focus();
  });
}

// A click beside the panel closes it.
panel.addEventListener("click", (event) => {
  if (event.target === panel) close();
});
