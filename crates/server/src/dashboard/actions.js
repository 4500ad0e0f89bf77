// The actions on tasks and tubes, each with its question.

import { setPaused, truncate, tube as fetchTube } from "./api.js";
import { change, count } from "./bulk.js";
import { ask } from "./dialog.js";
import { make } from "./dom.js";
import * as format from "./format.js";
import { offers } from "./user.js";

const tasksText = (number) => format.many(number, "task");

// Name, label, explanation, and the states of tasks that it changes.
const ACTIONS = {
  kick: { label: "Retry", past: "Retried", states: ["buried"], about: "Retried tasks are ready at once." },
  release: { label: "Release", past: "Released", states: ["taken"],
    about: "Released tasks are ready for other workers; a worker that still runs one cannot finish it." },
  bury: { label: "Bury", past: "Buried", states: ["ready", "delayed", "taken"], 
    about: "Buried tasks are set aside until they are retried." },
  delete: { label: "Delete", past: "Deleted", states: ["ready", "delayed", "taken", "buried", "done"], danger: true,
    about: "Deleted tasks are removed with their payloads. This cannot be undone." },
};

// The names of the actions for tasks of the tube in this state, or in any state, that the user may do; none in read-only mode.
export const actionsFor = (tube, state) =>
  Object.keys(ACTIONS).filter((name) => offers(name, tube) && (!state || ACTIONS[name].states.includes(state)));

export const actionLabel = (name) => ACTIONS[name].label;

// The further field of an action: its elements, and the field of the request.
function optionsOf(action) {
  if (action === "kick") {
    const input = make("input", { type: "checkbox", name: "reset_attempts" });
    return { body: [make("p", {}, make("label", {}, input, " Count the attempts from zero again"))],
      read: () => (input.checked ? { reset_attempts: true } : {}) };
  }
  if (action === "bury") {
    const input = make("input", { name: "error", maxlength: "1000", autocomplete: "off" });
    return { body: [make("label", { class: "field" }, make("span", {}, "Reason, kept with the tasks (optional)"), input)],
      read: () => (input.value ? { error: input.value } : {}) };
  }
  if (action === "release") {
    const input = make("input", { type: "number", name: "delay", min: "0", step: "any", value: "0" });
    return { body: [make("label", { class: "field" }, make("span", {}, "Ready again after, in seconds"), input)],
      read: () => (Number(input.value) > 0 ? { delay: Number(input.value) } : {}) };
  }
  return { body: [], read: () => ({}) };
}

// Whether every task of a state is meant, so that the counter of the tube is the number of tasks.
const isWholeState = ({ filter }) => filter && Object.keys(filter).length === 1 && filter.state;

async function matching(tube, action, choice, signal, progress, total) {
  if (isWholeState(choice)) {
    const { tasks } = await fetchTube(tube, signal);
    if (Number.isInteger(tasks[choice.filter.state]) && choice.filter.state !== "done") return tasks[choice.filter.state];
  }
  const found = await count(tube, action, choice, signal, ({ matched, scanned }) =>
    progress({ value: scanned, max: total, text: `Counting: ${tasksText(matched)} of ${format.number(scanned)} match…` }));
  return found.matched;
}

// Asks, and changes the tasks of a choice ({ ids } or { filter }). `total` is how many tasks a filter is compared with.
export function actOnTasks({ tube, action, choice, total, done }) {
  const { label, past, about, danger } = ACTIONS[action];
  const options = optionsOf(action);
  let matched = 0;
  return ask({
    title: `${label} tasks of “${tube}”`,
    confirm: label,
    danger,
    body: options.body,
    async prepare(signal, progress) {
      matched = await matching(tube, action, choice, signal, progress, total);
      if (signal.aborted) return null;
      if (!matched) {
        progress({ text: "No task matches." });
        return null;
      }
      return `${label} ${tasksText(matched)}? ${about}`;
    },
    async act(signal, progress) {
      const sum = await change(tube, action, choice, options.read(), signal, ({ changed, matched: seen }) =>
        progress({ value: seen, max: matched, text: `${tasksText(changed)} of ${format.number(matched)} changed…` }));
      const rest = sum.matched - sum.changed;
      const stopped = sum.stopped ? "Stopped. " : "";
      const others = rest > 0 ? `; ${tasksText(rest)} ${rest === 1 ? "was" : "were"} in another state` : "";
      return `${stopped}${past} ${tasksText(sum.changed)}${others}.`;
    },
    done,
  });
}

// Pauses a tube after a question, or resumes it at once.
export async function pauseOrResume(tube, isPaused, done) {
  if (isPaused) {
    try {
      await setPaused(tube, false);
    } catch (error) {
      return done(`The tube is still paused: ${error.message}.`);
    }
    return done("Resumed.");
  }
  ask({
    title: `Pause tube “${tube}”?`,
    confirm: "Pause the tube",
    body: [make("p", {}, "Consumers get no tasks from it until it is resumed. Puts still work.")],
    async act() {
      await setPaused(tube, true);
      return "Paused.";
    },
    done,
  });
}

// Removes all tasks of a tube once its name is typed.
export function truncateTube(tube, done) {
  const name = make("input", { name: "confirmation", autocomplete: "off", spellcheck: "false" });
  ask({
    title: `Remove all tasks of “${tube}”?`,
    confirm: "Remove all tasks",
    danger: true,
    body: [make("label", { class: "field" }, make("span", {}, "Type the name of the tube to confirm"), name)],
    isReady: () => name.value === tube,
    async prepare(signal) {
      const { tasks, keep_done: keepDone } = await fetchTube(tube, signal);
      const done = keepDone === undefined ? "" : " So will the done tasks that are kept, with their results.";
      return `${tasksText(tasks.total)} in any state, also taken ones, will be removed.${done} This cannot be undone.`;
    },
    async act() {
      await truncate(tube);
      return "All tasks removed.";
    },
    done,
  });
}
