// Words for estimates: when a task starts, when the backlog of a tube has started, and how well earlier estimates held.

import { many, number, span } from "./format.js";

// What decides an estimate, by its name in the API.
const BASES = {
  idle_consumer: "a consumer waits for tasks",
  run_times: "run times and number of consumers",
  subqueue: "the tasks of its sub-queue",
  rate_limit: "the rate limit of the tube",
  semaphore: "the semaphore of the tube",
  delay: "its own delay",
};
// Why there is no estimate, in a cell of a table.
const REASONS = { no_consumer: "no consumer", tube_paused: "tube paused", no_history: "no history" };

const soon = (seconds) => (seconds < 1 ? "under 1 s" : span(seconds));
const times = ({ p50, p90 }) => `${soon(p50)}, 90 % in ${soon(p90)}`;
const share = (part, whole) => `${Math.round((100 * part) / whole)} %`;

const basisOf = ({ basis }) => BASES[basis] ?? basis;
const because = (estimate) => `because ${estimate.basis === "idle_consumer" ? "" : "of "}${basisOf(estimate)}`;

// Whether a task in this state has a position in its queue.
export const waits = (state) => state === "ready" || state === "delayed";

// Position and estimate of a waiting task as a sentence; empty for a task without a position.
export function startOf({ ahead, approximate, estimate, no_estimate: none }) {
  if (ahead === undefined) return "";
  const parts = [`${approximate ? "about " : ""}${number(ahead)} ahead`];
  if (estimate) parts.push(`half start in ${times(estimate)}`, because(estimate));
  else if (none) parts.push(`no estimate: ${none.text}`);
  return parts.join(" · ");
}

// The same in a cell of a table.
export function startCell({ ahead, estimate, no_estimate: none }) {
  if (ahead === undefined) return "";
  if (!estimate) return none ? REASONS[none.name] ?? none.text : "–";
  // A line break is only between the two times.
  return times(estimate).split(", ").map((time) => time.replaceAll(" ", "\u00a0")).join(", ");
}

// When all ready tasks of a tube will have started, as a short remark; null if it has none or nothing is known.
export const drainRemark = ({ tasks, drain }) => (tasks.ready && drain ? `drains in ${times(drain)}` : null);

// How many of the estimates held that were compared with the start of their tasks.
const held = (estimates) => `p90 held for ${share(estimates.within_p90, estimates.checked)} of ${many(estimates.checked, "estimate")}`;

// The backlog of a tube and the quality of its estimates as a sentence; empty if there is nothing to say.
export function backlog(tube) {
  const { tasks, drain, no_drain: none, estimates } = tube;
  const parts = [];
  if (tasks.ready && drain) parts.push(`Backlog ${drainRemark(tube)}`, because(drain));
  else if (tasks.ready && none) parts.push(`No estimate: ${none.text}`);
  if (estimates) parts.push(held(estimates));
  return parts.join(" · ");
}

// The same as pairs of a name and a function of the tube.
export const BACKLOG = [
  ["drains in (50 %)", ({ tasks, drain }) => (tasks.ready && drain ? soon(drain.p50) : null)],
  ["drains in (90 %)", ({ tasks, drain }) => (tasks.ready && drain ? soon(drain.p90) : null)],
  ["because", ({ tasks, drain }) => (tasks.ready && drain ? basisOf(drain) : null)],
  ["no estimate", ({ tasks, no_drain: none }) => (tasks.ready && none ? none.text : null)],
  ["estimates checked", ({ estimates }) => number(estimates?.checked ?? 0)],
  ["started within p50", ({ estimates }) => (estimates ? share(estimates.within_p50, estimates.checked) : null)],
  ["started within p90", ({ estimates }) => (estimates ? share(estimates.within_p90, estimates.checked) : null)],
];
