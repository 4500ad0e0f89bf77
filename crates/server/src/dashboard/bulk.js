// Counts and changes tasks that match a filter, request by request, so that progress is shown and it can be stopped.

import { act } from "./api.js";

// Calls `step` for each answer until no task follows or the signal ends it. The sum of all answers is given to `report`.
async function inSteps(request, signal, report) {
  const sum = { matched: 0, changed: 0, scanned: 0, stopped: false };
  let after;
  do {
    if (signal.aborted) return { ...sum, stopped: true };
    // A request that was sent is never cut off: what it changed has to be counted.
    const answer = await request(after).catch((error) => {
      throw Object.assign(error, { changed: sum.changed });
    });
    for (const key of ["matched", "changed", "scanned"]) sum[key] += answer[key];
    after = answer.next;
    report(sum);
  } while (after !== undefined);
  return sum;
}

// How many tasks the action would change. `choice` is { ids } or { filter }.
export const count = (tube, action, choice, signal, report) =>
  inSteps((after) => act(tube, action, { ...choice, after, dry_run: true }), signal, report);

// Changes them, with further fields of the request in `options`.
export const change = (tube, action, choice, options, signal, report) =>
  inSteps((after) => act(tube, action, { ...choice, after, ...options }), signal, report);
