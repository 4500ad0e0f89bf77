// A worker in its own process for crash.test.mjs: its handler blocks the event loop, or its listener throws.

import { Taskyard, Worker } from "taskyard";

const [url, tube, mode] = process.argv.slice(2);
const client = new Taskyard(url);

/** Blocks once for longer than the lease, after tasks so short that many are taken ahead. */
function blocks() {
  const [begun, lost] = [[], []];
  let blocked = false;
  const worker = new Worker(client, tube, (task) => {
    begun.push([task.id, task.attempts]);
    if (begun.length === 200) {
      console.log(JSON.stringify({ begun, lost }));
      void worker.stop();
    }
    if (begun.length < 100 || blocked) return;
    blocked = true;
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3500);
  }, { lease: 3, concurrency: 2 });
  worker.on("lost", (task) => lost.push(task.id));
  worker.on("problem", () => undefined);
}

function listens() {
  let errors = 0;
  const worker = new Worker(client, tube, () => undefined);
  process.on("uncaughtException", (error) => {
    console.log(error.message);
    errors += 1;
    if (errors === 3) void worker.stop();
  });
  worker.on("done", (task) => {
    throw new Error(`listener ${task.id}`);
  });
}

({ blocks, listens })[mode]();
