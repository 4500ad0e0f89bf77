// Handlers without a server, as the tests of programs run them.

import assert from "node:assert/strict";
import { test } from "node:test";

import { runTask } from "taskyard";

test("a handler runs without a server", async () => {
  const send = async (task) => {
    if (!task.data.to) return task.bury("no address");
    if (task.attempts > 2) return task.release({ delay: 60, counted: false });
    if (task.signal.aborted) throw task.signal.reason;
    if (task.data.to === "unknown@") throw new TypeError("no such mailbox");
    await task.touch(5);
    task.result({ to: task.data.to, raw: Buffer.of(1) });
    return undefined;
  };
  assert.deepEqual(await runTask(send, { to: "ann" }), { verb: "ack", result: { to: "ann", raw: Buffer.of(1) } });
  assert.deepEqual(await runTask(send, {}), { verb: "bury", error: "no address" });
  assert.deepEqual(await runTask(send, { to: "ann" }, { attempts: 3 }), { verb: "release", delay: 60, counted: false });
  const failed = await runTask(send, { to: "unknown@" });
  assert.equal(failed.verb, "fail");
  assert.ok(failed.thrown instanceof TypeError);
  assert.match(failed.error, /^TypeError: no such mailbox\n/);
  const cancelled = await runTask(send, { to: "ann" }, { signal: AbortSignal.abort(new Error("stop")) });
  assert.equal(cancelled.thrown.message, "stop");
  assert.deepEqual(await runTask(() => undefined, 1), { verb: "ack" });
});
