// Many tasks with failures and retries, worked off by several workers, also while answers are lost.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Taskyard, Worker } from "taskyard";

import { atEnd, Collected, HttpProxy, RUNS, Server } from "./fixture.mjs";

/** No lease ends because the machine is busy. */
const LEASE = 3600;

/** Releases deliveries that were lost with a server, whose workers never knew of them; otherwise they end with their leases. */
async function releaseUnknown(client, killedAt) {
  const lost = [];
  for await (const { id, lease, lease_until } of client.eachTask("storm", { state: "taken", limit: 1000 })) {
    if (lease_until < killedAt + LEASE) lost.push({ id, lease });
  }
  if (lost.length > 0) await client.release("storm", lost, { counted: false });
}

test("every task of a storm is done once, however often it fails", { timeout: 600_000 }, async (t) => {
  const client = (await Server.start(t)).client();
  const count = 2000;
  await client.createTube("storm", { retry: { delay: 0.001, delay_max: 0.01, jitter: 1 }, attempts_max: 5, keep_done: 3600, keep_done_max: 100_000 });
  for (let n = 0; n < count; n += 1000) {
    await client.putMany("storm", Array.from({ length: Math.min(1000, count - n) }, (_, i) => ({ data: { n: n + i } })));
  }
  const ended = new Collected();
  const poison = (n) => n % 100 === 99;
  const workers = [0, 1, 2].map(() => {
    const worker = new Worker(client, "storm", async (task) => {
      const { n } = task.data;
      if (poison(n) || task.attempts < n % 3) throw new Error(`attempt ${task.attempts} of ${n}`);
      task.result(n);
    }, { signals: false, concurrency: 16, lease: LEASE });
    worker.on("done", (task) => ended.add(task.data.n));
    worker.on("failed", (task) => poison(task.data.n) && task.attempts === 4 && ended.add(task.data.n));
    return worker;
  });
  await ended.atLeast(count);
  await Promise.all(workers.map((worker) => worker.stop()));
  assert.equal(new Set(ended.values).size, count);
  const { tasks } = await client.tube("storm");
  assert.deepEqual([tasks.total, tasks.buried, tasks.kept], [count / 100, count / 100, count - count / 100]);
  for await (const task of client.eachTask("storm", { state: "done", limit: 1000 })) assert.equal(task.attempts, task.data.n % 3);
});

test("10,000 tasks that fail and are retried survive a kill of their server", { timeout: 600_000 }, async (t) => {
  const server = await Server.inFolder(t);
  const client = server.client();
  const [count, buried] = [10_000 * RUNS, 100 * RUNS];
  await client.createTube("storm", { retry: { delay: 0.001, delay_max: 0.01, jitter: 1 }, attempts_max: 6, keep_done: 3600, keep_done_max: 100_000 });
  for (let n = 0; n < count; n += 1000) {
    await client.putMany("storm", Array.from({ length: 1000 }, (_, i) => ({ data: n + i })));
  }
  const ran = new Map();
  const done = new Collected();
  const workers = [0, 1].map(() => {
    const worker = new Worker(client, "storm", (task) => {
      const n = task.data;
      if (n % 100 === 99 || task.attempts < n % 3) throw new Error(`attempt ${task.attempts} of ${n}`);
      ran.set(n, (ran.get(n) ?? 0) + 1);
    }, { signals: false, concurrency: 16, lease: LEASE });
    atEnd(t, () => worker.stop({ grace: 0 }));
    worker.on("done", (task) => done.add(task.data)).on("failed", () => undefined).on("problem", () => undefined);
    return worker;
  });
  await done.atLeast(count / 2);
  await server.kill();
  const killedAt = Date.now() / 1000;
  await server.restart();
  // Done events of acks that were lost with the server are missing; the tasks are not.
  for (let tasks = {}; tasks.total !== buried || tasks.buried !== buried; ) {
    ({ tasks } = await client.tube("storm"));
    assert.ok(tasks.buried <= buried, "a task was buried that would have succeeded");
    const isIdle = workers.every((worker) => worker.leases.size === 0);
    if (isIdle && tasks.taken > 0 && tasks.total === tasks.taken + tasks.buried) await releaseUnknown(client, killedAt);
  }
  await Promise.all(workers.map((worker) => worker.stop()));
  assert.equal((await client.tube("storm")).tasks.kept, count - buried);
  assert.equal(ran.size, count - buried);
  // After the kill the tasks that were running may have run again.
  const again = [...ran.values()].reduce((sum, times) => sum + times - 1, 0);
  assert.ok(again <= 2 * 1032, `${again} tasks ran again`);
});

test("no task runs again because answers to its worker were lost", { timeout: 600_000 }, async (t) => {
  const server = await Server.start(t);
  const proxy = await HttpProxy.start(t, server.port);
  const far = new Taskyard(proxy.url);
  atEnd(t, () => far.close());
  const near = server.client();
  const count = 200 * RUNS;
  await near.putMany("lossy", Array.from({ length: count }, (_, n) => ({ data: n })));
  let finishes = 0;
  proxy.intercept = (line) => {
    if (!line.endsWith("/finish")) return undefined;
    finishes += 1;
    return finishes % 3 === 0 ? "answer" : finishes % 5 === 0 ? "request" : undefined;
  };
  const runs = new Map();
  const done = new Collected();
  const worker = new Worker(far, "lossy", async (task) => {
    runs.set(task.data, (runs.get(task.data) ?? 0) + 1);
    if (task.attempts < task.data % 3) throw new Error("not yet");
  }, { signals: false, concurrency: 4, prefetch: 0, lease: LEASE, backoff: () => 0 });
  atEnd(t, () => worker.stop({ grace: 0 }));
  worker.on("failed", () => undefined);
  worker.on("problem", () => undefined);
  worker.on("done", (task) => done.add(task.data));
  await done.atLeast(count);
  assert.deepEqual([...runs].filter(([n, times]) => times !== (n % 3) + 1), []);
  assert.equal((await near.tube("lossy")).tasks.total, 0);
});
