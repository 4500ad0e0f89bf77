// The programs of the README; readme.test.mjs runs them.

import assert from "node:assert/strict";

// docs: begin testing
import { runTask } from "taskyard";

const outcome = await runTask(sendMail, { to: "ann" }, { attempts: 2 });
assert.deepEqual(outcome, { verb: "ack", result: { sent: true } });
// docs: end

async function sendMail(task) {
  task.result({ sent: true });
}

async function send(data) {
  console.log(`sent to ${data.to}`);
}

// docs: begin quick
import { Taskyard, Worker } from "taskyard";

const client = new Taskyard("http://127.0.0.1:7070");
await client.put("mail", { to: "ann" }, { delay: 0.1 });

const worker = new Worker(client, "mail", async (task) => {
  await send(task.data, { signal: task.signal });
}, { concurrency: 10 });
// docs: end
worker.once("done", () => worker.stop());
