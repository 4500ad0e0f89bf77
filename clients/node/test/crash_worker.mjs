// A worker in its own process for crash.test.mjs: prints each task that it begins, and works on it until it may end.

import { Taskyard, Worker } from "taskyard";

const [url, tube, mode] = process.argv.slice(2);
const worker = new Worker(new Taskyard(url), tube, (task) => {
  console.log(`begun ${task.id} ${task.attempts}`);
  if (mode === "quick") return undefined;
  return new Promise((resolve) => {
    if (mode === "finishes") process.once("SIGTERM", resolve);
  });
}, { concurrency: 2, lease: mode === "dies" ? 4 : 60, grace: mode === "hangs" ? 0.1 : 30 });
worker.stopped.then(() => console.log("stopped"));
