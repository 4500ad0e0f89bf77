// For how long leases are extended. The tests move the clock of the package.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Collected, gate, proxied, Server, work } from "./fixture.mjs";

/** Whether a request ends deliveries. */
const isEnd = (line, body) => line.endsWith("/finish") && !body.includes('"touch"');

/** Lets half of a lease of an hour pass, and resolves when the server has extended the leases of all these tasks. */
function clock(t, client) {
  const now = performance.now.bind(performance);
  let passed = 0;
  t.mock.method(performance, "now", () => now() + passed);
  const leases = async (ids) => (await client.peek("a", ids)).map(({ lease_until }) => lease_until);
  return async (ids) => {
    const before = await leases(ids);
    passed += 1_800_000;
    for (let after = []; after.length !== ids.length || after.some((until, at) => !(until > before[at])); ) after = await leases(ids);
  };
}

/** The lease was not extended any more when the end was sent, and ran out while that was repeated. */
test("a lease is extended until the end of its task is answered", async (t) => {
  const { near, far, proxy } = await proxied(t);
  const halfPassed = clock(t, near);
  const ends = new Collected();
  let away = true;
  proxy.intercept = (line, body) => {
    if (!away || !isEnd(line, body)) return undefined;
    ends.add(body);
    return "request";
  };
  const ways = ["ack", "throw", "own ack", "release"];
  await near.putMany("a", ways.map((data) => ({ data })));
  const begun = new Collected();
  const { worker, done, failed, lost } = work(t, far, "a", async (task) => {
    begun.add(task.data);
    if (task.data === "throw") throw new Error("no");
    if (task.data === "own ack") await task.ack();
    if (task.data === "release") void task.release({ delay: 60 });
  }, { concurrency: 4, lease: 3600, timeout: 1_000_000, backoff: () => 60 });
  await begun.atLeast(4);
  await ends.atLeast(2);
  for (let round = 0; round < 4; round++) await halfPassed([0, 1, 2, 3]);
  away = false;
  await Promise.all([done.atLeast(1), failed.atLeast(1)]);
  await worker.stop();
  assert.deepEqual([begun.values.length, lost.values.length], [4, 0]);
  assert.deepEqual((await near.peek("a", [0, 1, 2, 3])).map(({ id, state }) => [id, state]), [[1, "delayed"], [3, "delayed"]]);
  assert.deepEqual((await near.task("a", 1)).failures.map(({ error }) => error.split("\n", 1)[0]), ["Error: no"]);
  assert.equal(worker.leases.size, 0);
});

/** A touch that came after the ack found no task, which is no loss. */
test("a task whose ack was executed is not lost while its answer is", async (t) => {
  const { near, far, proxy } = await proxied(t);
  const now = performance.now.bind(performance);
  let passed = 0;
  t.mock.method(performance, "now", () => now() + passed);
  const [touches, { opened, open }] = [new Collected(), gate()];
  const answers = ["answer"];
  proxy.intercept = async (line, body) => {
    if (isEnd(line, body)) return answers.shift() ?? (await opened);
    if (line.endsWith("/finish")) touches.add(body);
    return undefined;
  };
  await near.put("a", 1);
  const { done, lost, problem } = work(t, far, "a", () => undefined, { lease: 3600 });
  await problem.atLeast(1);
  passed += 1_800_000;
  await touches.atLeast(1);
  open();
  await done.atLeast(1);
  assert.deepEqual([lost.values.length, touches.values.length], [0, 1]);
});

test("leases are extended in parts if a request is too large", async (t) => {
  const { near, far, proxy } = await proxied(t);
  const halfPassed = clock(t, near);
  proxy.intercept = (line, body) => (line.endsWith("/finish") && body.length > 300 ? [413, "<html>"] : undefined);
  await near.putMany("a", Array.from({ length: 20 }, (_, data) => ({ data })));
  const begun = new Collected();
  const { opened, open } = gate();
  const { done, lost } = work(t, far, "a", (task) => {
    begun.add(task.id);
    return opened;
  }, { concurrency: 20, lease: 3600, timeout: 1_000_000 });
  await begun.atLeast(20);
  await halfPassed(begun.values);
  open();
  await done.atLeast(20);
  assert.deepEqual([begun.values.length, lost.values.length], [20, 0]);
});

/** Such tasks stayed leased, up to a thousand, while other workers were idle. */
test("tasks that wait behind slow ones are given back uncounted", async (t) => {
  const server = await Server.start(t);
  const client = server.client();
  const now = performance.now.bind(performance);
  let passed = 0;
  t.mock.method(performance, "now", () => now() + passed);
  await client.putMany("a", Array.from({ length: 300 }, (_, data) => ({ data })));
  const taken = async () => (await client.tube("a")).tasks.taken;
  const begun = new Collected();
  const { opened, open } = gate();
  const { worker, done, lost } = work(t, client, "a", (task) => {
    begun.add(task.id);
    // Short tasks first, so that many are taken ahead of the two that last.
    if (begun.values.length > 100) return opened;
  }, { concurrency: 2, prefetch: 100, lease: 3600, timeout: 1_000_000 });
  await begun.atLeast(102);
  while ((await taken()) < 50);
  for (let round = 0; (await taken()) > 2; round++) {
    assert.ok(round < 5000, "they are given back");
    passed += 100;
  }
  assert.deepEqual([begun.values.length, lost.values.length, worker.waiting.length], [102, 0, 0]);
  assert.equal(worker.wanted(), 0, "no more are taken ahead of slow tasks");
  for await (const task of client.eachTask("a", { limit: 1000 })) assert.equal(task.attempts, 0);
  open();
  await done.atLeast(300);
  assert.equal(new Set(begun.values).size, 300);
});
