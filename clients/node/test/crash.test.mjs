// Killed workers and servers: no task is lost, and no ack that could be delivered.

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { Worker } from "taskyard";

import { atEnd, Collected, RUNS, Server, WorkerProcess } from "./fixture.mjs";

describe("crash", { concurrency: 4 }, () => {
  it("tasks of a killed worker are delivered again", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", [{ data: 1 }, { data: 2 }]);
    const killed = new WorkerProcess(t, "crash_worker.mjs", [client.connection.url, "a", "dies"]);
    assert.deepEqual([await killed.line(), await killed.line()], ["begun 0 0", "begun 1 0"]);
    killed.signal("SIGKILL");
    await killed.ended;
    const worker = new Worker(client, "a", () => undefined, { signals: false });
    atEnd(t, () => worker.stop({ grace: 0 }));
    const done = new Collected();
    worker.on("done", (task) => done.add([task.id, task.attempts]));
    assert.deepEqual((await done.atLeast(2)).sort(), [[0, 1], [1, 1]]);
  });

  it("SIGTERM lets handlers finish, and the process ends by the signal", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", 1);
    const worker = new WorkerProcess(t, "crash_worker.mjs", [client.connection.url, "a", "finishes"]);
    assert.equal(await worker.line(), "begun 0 0");
    worker.signal("SIGTERM");
    assert.equal(await worker.line(), "stopped");
    assert.deepEqual(await worker.ended, [null, "SIGTERM"]);
    assert.equal((await client.tube("a")).tasks.total, 0);
  });

  it("SIGINT gives back what does not finish in its grace, uncounted", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", [{ data: 1 }, { data: 2 }, { data: 3 }]);
    const worker = new WorkerProcess(t, "crash_worker.mjs", [client.connection.url, "a", "hangs"]);
    assert.equal(await worker.line(), "begun 0 0");
    worker.signal("SIGINT");
    assert.deepEqual(await worker.ended, [null, "SIGINT"]);
    const { tasks } = await client.tasks("a");
    assert.deepEqual(tasks.map(({ state, attempts }) => [state, attempts]), [["ready", 0], ["ready", 0], ["ready", 0]]);
  });

  it("a task whose lease is over before its turn is not begun", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", Array.from({ length: 200 }, (_, n) => ({ data: n })));
    const worker = new WorkerProcess(t, "odd_worker.mjs", [client.connection.url, "a", "blocks"]);
    const { again: begun, lost } = JSON.parse(await worker.line());
    assert.ok(lost.length > 0);
    const again = begun.filter(([id]) => lost.includes(id));
    assert.ok(again.length > 0 && again.every(([, attempts]) => attempts > 0), JSON.stringify(again));
  });

  /** A listener that threw stopped the queue of acks for good. */
  it("an error in a listener is an uncaught exception and does not stop the worker", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", [{ data: 1 }, { data: 2 }, { data: 3 }]);
    const worker = new WorkerProcess(t, "odd_worker.mjs", [client.connection.url, "a", "listens"]);
    assert.deepEqual([await worker.line(), await worker.line(), await worker.line()], ["listener 0", "listener 1", "listener 2"]);
    assert.deepEqual(await worker.ended, [0, null]);
    assert.equal((await client.tube("a")).tasks.total, 0);
  });

  it("a killed server loses nothing, and acks arrive when it is back", async (t) => {
    const server = await Server.inFolder(t);
    const client = server.client();
    const count = 40;
    await client.createTube("a", { keep_done: 3600 });
    await client.putMany("a", Array.from({ length: count }, (_, n) => ({ data: n })));
    const runs = new Map();
    const begun = new Collected();
    const restarted = new Collected();
    const worker = new Worker(client, "a", async (task) => {
      runs.set(task.data, (runs.get(task.data) ?? 0) + 1);
      begun.add(task.id);
      // The first four end while the server is dead.
      if (task.id < 4) await restarted.atLeast(1);
    }, { signals: false, concurrency: 4, prefetch: 0 });
    atEnd(t, () => worker.stop({ grace: 0 }));
    const [done, problems] = [new Collected(), new Collected()];
    worker.on("done", (task) => done.add(task.id)).on("problem", (error) => problems.add(error.code));
    await begun.atLeast(4);
    await server.kill();
    restarted.add(true);
    await problems.atLeast(1);
    await server.restart();
    await done.atLeast(count);
    assert.equal((await client.tube("a")).tasks.total, 0);
    assert.deepEqual([...runs.keys()].sort((a, b) => a - b), Array.from({ length: count }, (_, n) => n));
  });

  it("puts and work go on while the server is killed again and again", async (t) => {
    const server = await Server.inFolder(t);
    const client = server.client();
    const count = 150;
    const seen = new Map();
    await client.createTube("a");
    const worker = new Worker(client, "a", (task) => void seen.set(task.data, (seen.get(task.data) ?? 0) + 1), {
      signals: false,
      concurrency: 8,
      lease: 5,
    });
    worker.on("problem", () => undefined);
    atEnd(t, () => worker.stop({ grace: 0 }));
    const done = new Collected();
    worker.on("done", (task) => done.add(task.data));
    const putting = (async () => {
      for (let n = 0; n < count * RUNS; n++) await client.put("a", n);
    })();
    for (let kill = 1; kill <= 3 * RUNS; kill++) {
      await done.atLeast(kill * 30);
      await server.kill();
      await server.restart();
    }
    await putting;
    // Done events of acks that were lost with the server are missing; the tasks are not.
    while ((await client.tube("a")).tasks.total > 0) await new Promise((resolve) => setImmediate(resolve));
    assert.equal(seen.size, count * RUNS);
    assert.equal((await client.put("a", "last")).id, count * RUNS, "no put added a second task");
  });
});
