// A worker in its own process for crash.test.mjs: its handler blocks the event loop, or its listener throws.

import { Taskyard, Worker } from "taskyard";

const [url, tube, mode] = process.argv.slice(2);
const client = new Taskyard(url);

/** Blocks once for longer than the lease, after tasks so short that many are taken ahead. */
function blocks() {
  const [begun, lost] = [[], []];
  let blockedAt = 0;
  const worker = new Worker(client, tube, (task) => {
    begun.push([task.id, task.attempts]);
    if (begun.length === 200) {
      console.log(JSON.stringify({ again: begun.slice(blockedAt), lost }));
      void worker.stop();
    }
    // On a busy machine fewer tasks are taken ahead.
    if (begun.length < 50 || blockedAt > 0 || worker.waiting.length < 2) return;
    blockedAt = begun.length;
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
