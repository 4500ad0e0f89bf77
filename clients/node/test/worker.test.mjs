// Workers against a real server: how tasks end, leases, stops.

import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, it } from "node:test";

import { PayloadError, Taskyard, Worker } from "taskyard";

import { aborted, atEnd, Collected, gate, scripted, Server } from "./fixture.mjs";

/** A worker without signal handlers that stops with the test. */
function work(t, client, tube, handler, options) {
  const worker = new Worker(client, tube, handler, { signals: false, ...options });
  atEnd(t, () => worker.stop({ grace: 0 }));
  return worker;
}

/** Collects an event of a worker. */
function collect(worker, event) {
  const collected = new Collected();
  worker.on(event, (...values) => collected.add(values));
  return collected;
}

describe("worker", { concurrency: 8 }, () => {
  it("what a handler does decides how its task ends", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("mail", { keep_done: 60 });
    await client.putMany("mail", ["done", "result", "throw", "release", "bury", "fail", "early"].map((data) => ({ data })));
    const ended = new Collected();
    const worker = work(t, client, "mail", async (task) => {
      const ways = {
        done: () => ({ ignored: true }),
        result: () => task.result({ pages: 3 }),
        throw: () => {
          throw new TypeError("no route", { cause: new Error("cable") });
        },
        release: () => task.release({ delay: 60, counted: false }),
        bury: () => task.bury("no address"),
        fail: () => task.fail("busy", { delay: 60 }),
        early: async () => {
          await task.ack();
          throw new Error("after the ack");
        },
      };
      try {
        return await ways[task.data]();
      } finally {
        ended.add(task.id);
      }
    }, { concurrency: 3, name: "web1:7:mailer", backoff: () => 60 });
    const failed = collect(worker, "failed");
    await ended.atLeast(7);
    await worker.stop();
    const tasks = Object.fromEntries((await Promise.all([0, 1, 2, 3, 4, 5, 6].map((id) => client.task("mail", id)))).map((task) => [task.data, task]));
    assert.deepEqual(Object.values(tasks).map(({ data, state, attempts, result }) => [data, state, attempts, result]), [
      ["done", "done", 0, undefined],
      ["result", "done", 0, { pages: 3 }],
      ["throw", "delayed", 1, undefined],
      ["release", "delayed", 0, undefined],
      ["bury", "buried", 0, undefined],
      ["fail", "delayed", 1, undefined],
      ["early", "done", 0, undefined],
    ]);
    assert.match(tasks.throw.error, /^TypeError: no route\ncaused by Error: cable\n +at /);
    assert.equal(tasks.throw.failures[0].worker, "web1:7:mailer");
    assert.equal(tasks.bury.error, "no address");
    assert.deepEqual(failed.values.map(([task]) => task.data), ["throw"]);
  });

  it("as many handlers run at a time as allowed", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", Array.from({ length: 20 }, (_, n) => ({ data: n })));
    let running = 0;
    let most = 0;
    const begun = new Collected();
    const { opened, open } = gate();
    const worker = work(t, client, "a", async (task) => {
      most = Math.max(most, ++running);
      begun.add(task.id);
      await opened;
      running -= 1;
    }, { concurrency: 4 });
    const done = collect(worker, "done");
    await begun.atLeast(4);
    assert.deepEqual((await client.tube("a")).tasks.taken, 4, "tasks that would wait for long are left to others");
    open();
    await done.atLeast(20);
    assert.equal(most, 4);
  });

  /** The time limit of the request was a third of the lease, and a limit that is no whole number of milliseconds threw. */
  it("the lease is extended while a handler runs", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", 1);
    const worker = work(t, client, "a", async (task) => {
      // Longer than the lease: the time is over when a task that was put with this delay arrives.
      await client.put("clock", 1, { delay: 7 });
      await client.take("clock", { wait: 60 });
      assert.equal(task.signal.aborted, false);
    }, { lease: 6 });
    const done = collect(worker, "done");
    const [[task]] = await done.atLeast(1);
    assert.equal(task.attempts, 0);
  });

  it("a lost lease cancels the handler, and its outcome is ignored", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", 1);
    const begun = new Collected();
    const worker = work(t, client, "a", async (task) => {
      begun.add(task);
      if (task.attempts === 0) await aborted(task.signal);
      else await new Promise((resolve) => setImmediate(resolve));
    }, { lease: 9, concurrency: 2 });
    const [lost, done] = [collect(worker, "lost"), collect(worker, "done")];
    await begun.atLeast(1);
    assert.equal((await client.releaseTasks("a", { ids: [0] })).changed, 1);
    const [[first]] = await lost.atLeast(1);
    assert.equal(first.signal.reason.code, "lease_lost");
    const [[second]] = await done.atLeast(1);
    assert.deepEqual([second.id, second.attempts, done.values.length], [0, 1, 1]);
  });

  it("a handler that runs for too long is cancelled, and its task fails", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { attempts_max: 1 });
    await client.put("a", "hears");
    await client.put("a", "hangs");
    const worker = work(t, client, "a", async (task) => {
      if (task.data === "hangs") return new Promise(() => undefined);
      await aborted(task.signal);
      throw task.signal.reason;
    }, { lease: 60, timeout: 0.3, concurrency: 2 });
    const failed = collect(worker, "failed");
    await failed.atLeast(2);
    await worker.stop();
    const tasks = await client.peek("a", [0, 1]);
    assert.deepEqual(tasks.map(({ state }) => state), ["buried", "buried"]);
    for (const { id } of tasks) assert.match((await client.task("a", id)).error, /ran longer than 0.3 s/);
  });

  it("a stop waits for running handlers and gives back the rest uncounted", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", Array.from({ length: 300 }, (_, n) => ({ data: n })));
    const begun = new Collected();
    const { opened, open } = gate();
    const worker = work(t, client, "a", async (task) => {
      begun.add(task.id);
      // Short tasks first, so that many are taken ahead of the one that lasts.
      if (begun.values.length > 100) await opened;
    }, { concurrency: 2 });
    await begun.atLeast(102);
    const stopped = worker.stop();
    assert.equal(worker.stopping, true);
    open();
    await stopped;
    const { ready, taken, total } = (await client.tube("a")).tasks;
    assert.deepEqual({ ready, taken, total }, { ready: 198, taken: 0, total: 198 });
    for await (const task of client.eachTask("a", { limit: 1000 })) assert.equal(task.attempts, 0);
  });

  it("a stop cancels handlers when its grace is over", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", ["hears", "hangs", "ignores"].map((data) => ({ data })));
    const begun = new Collected();
    const worker = work(t, client, "a", async (task) => {
      begun.add(task.id);
      if (task.data === "hangs") return new Promise(() => undefined);
      await aborted(task.signal);
      if (task.data === "hears") throw task.signal.reason;
    }, { concurrency: 3 });
    const failed = collect(worker, "failed");
    await begun.atLeast(3);
    await worker.stop({ grace: 0 });
    const tasks = await client.peek("a", [0, 1, 2]);
    assert.deepEqual(tasks.map(({ data, state, attempts }) => [data, state, attempts]), [["hears", "ready", 0], ["hangs", "ready", 0]]);
    assert.deepEqual(failed.values, []);
  });

  it("failed tasks wait as the retry policy says, or longer each time without one", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("policy", { retry: { delay: 500, jitter: 0 } });
    await client.createTube("own");
    await client.createTube("plain");
    await client.createTube("fifo", { kind: "fifo", attempts_max: 2 });
    for (const tube of ["policy", "own", "plain", "fifo"]) await client.put(tube, 1);
    const delays = [];
    for (const [tube, options] of [["policy", {}], ["own", { backoff: (attempt) => 100 * attempt }], ["plain", {}], ["fifo", {}]]) {
      const worker = work(t, client, tube, () => Promise.reject(new Error("no")), options);
      await collect(worker, "failed").atLeast(tube === "fifo" ? 2 : 1);
      await worker.stop();
      // The delay of a second may be over by now; a taken task tells when it was ready.
      if (tube === "plain") await client.take(tube, { wait: 10 });
      const task = await client.task(tube, 0);
      delays.push([tube, task.state, task.due == null ? 0 : Math.round(task.due - task.failed_at)]);
    }
    assert.deepEqual(delays, [["policy", "delayed", 500], ["own", "delayed", 100], ["plain", "taken", 1], ["fifo", "buried", 0]]);
  });

  /** Such tasks were tried again every hour for ever, and no list of buried tasks showed them. */
  it("a payload of the wrong shape is buried after ten attempts", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("limited", { attempts_max: 3 });
    await client.putMany("a", [{ data: "wrong" }, { data: "wrong", attempts_max: 12 }, { data: { to: "ann" } }]);
    await client.put("limited", "wrong");
    const decode = (payload) => {
      if (typeof payload.to !== "string") throw new TypeError("to: not a string");
      return payload.to;
    };
    const got = new Collected();
    for (const tube of ["a", "limited"]) work(t, client, tube, (task) => got.add(task.data), { decode, backoff: () => 0 }).on("failed", () => undefined);
    for (const tube of ["a", "limited"]) {
      const wanted = tube === "a" ? 2 : 1;
      while ((await client.tube(tube)).tasks.buried < wanted);
    }
    assert.deepEqual(got.values, ["ann"]);
    const [first, second, limited] = await Promise.all([client.task("a", 0), client.task("a", 1), client.task("limited", 0)]);
    // Nine failures, then it was buried.
    assert.deepEqual([first.attempts, second.attempts, limited.attempts], [9, 12, 3]);
    assert.match(first.error, /^PayloadError: cannot decode the payload: TypeError: to: not a string\n/);
  });

  it("a handler may say that a payload is not for it, and other errors have no limit", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", [{ data: "payload" }, { data: "other" }]);
    const worker = work(t, client, "a", (task) => {
      throw task.data === "payload" ? new PayloadError("not an address") : new TypeError("bug");
    }, { backoff: () => 0 });
    const failed = collect(worker, "failed");
    while ((await client.tube("a")).tasks.buried < 1 || failed.values.filter(([task]) => task.id === 1).length < 12);
    assert.equal((await client.task("a", 0)).state, "buried");
    assert.notEqual((await client.task("a", 1)).state, "buried");
  });

  /** One payload that could not be read kept all tasks of its take from their handlers until their leases ended. */
  it("a payload that is not MessagePack fails alone", async (t) => {
    const fields = { attempts: 0, state: "taken", pri: 0, created: 0 };
    let takes = 0;
    const { url, bodies } = await scripted(t, (body) => {
      if (body?.wait !== undefined) {
        const tasks = takes++ > 0 ? [] : [{ id: 0, lease: 1, data_base64: "wQ==", ...fields }, { id: 1, lease: 2, data: "good", ...fields }];
        return [200, {}, { tasks }];
      }
      return [200, {}, body === undefined ? { kind: "fifottl" } : { outcomes: body.tasks.map(() => "done") }];
    });
    const client = new Taskyard(url);
    atEnd(t, () => client.close());
    const worker = work(t, client, "a", () => undefined, { concurrency: 2 });
    const [failed, done] = [collect(worker, "failed"), collect(worker, "done")];
    await Promise.all([failed.atLeast(1), done.atLeast(1)]);
    await worker.stop();
    assert.deepEqual([failed.values[0][0].id, done.values[0][0].data], [0, "good"]);
    const parts = bodies.flatMap((body) => body?.tasks ?? []).filter(({ verb }) => verb === "fail");
    assert.deepEqual(parts.map(({ id }) => id), [0]);
    assert.match(parts[0].error, /^PayloadError: cannot decode the payload/);
  });

  it("a task is buried after its retries, also if they ended its workers", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", "fails");
    await client.put("a", "ends its worker");
    // Two deliveries that were lost.
    for (let round = 0; round < 2; round++) {
      const tasks = await client.take("a", { count: 2 });
      await client.release("a", tasks.filter(({ id }) => id === 1), { counted: true });
      await client.release("a", tasks.filter(({ id }) => id === 0), { counted: false });
    }
    const begun = [];
    const worker = work(t, client, "a", (task) => {
      begun.push([task.id, task.attempts]);
      throw new Error("no");
    }, { retries: 1, backoff: () => 0 });
    await collect(worker, "failed").atLeast(3);
    await worker.stop();
    assert.deepEqual(begun, [[0, 0], [0, 1]]);
    const tasks = [await client.task("a", 0), await client.task("a", 1)];
    assert.deepEqual(tasks.map(({ state }) => state), ["buried", "buried"]);
    assert.match(tasks[1].error, /^Error: 2 deliveries failed or were lost/);
    assert.throws(() => new Worker(client, "a", () => undefined, { retries: -1 }), RangeError);
  });

  /** Such tasks were tried again for ever. */
  it("a failure that a handler reports itself buries its task after the retries", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", [{ data: { delay: 0 } }, { data: {} }]);
    const begun = new Collected();
    const worker = work(t, client, "a", async (task) => {
      await task.fail(`busy ${task.attempts}`, task.data);
      begun.add([task.id, task.attempts]);
    }, { retries: 1 });
    await begun.atLeast(4);
    await worker.stop();
    assert.deepEqual(begun.values.sort(), [[0, 0], [0, 1], [1, 0], [1, 1]]);
    const tasks = [await client.task("a", 0), await client.task("a", 1)];
    assert.deepEqual(tasks.map(({ state, error }) => [state, error]), [["buried", "busy 1"], ["buried", "busy 1"]]);
  });

  it("a payload that JSON cannot represent arrives, and one that the handler cannot process is buried alone", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { attempts_max: 1 });
    const odd = new Map([[1, Buffer.from([255])], ["n", 2n ** 63n], ["x", Number.NaN]]);
    await client.putMany("a", [{ data: odd }, { data: null }, { data: { user: { name: "ann" } } }]);
    const got = new Collected();
    const worker = work(t, client, "a", (task) => {
      got.add(task.data);
      if (!(task.data instanceof Map)) assert.equal(task.data.user.name, "ann");
    });
    const [failed, done] = [collect(worker, "failed"), collect(worker, "done")];
    await failed.atLeast(1);
    await done.atLeast(2);
    await worker.stop();
    assert.deepEqual(got.values[0], odd);
    assert.deepEqual((await client.tasks("a")).tasks.map(({ id, state }) => [id, state]), [[1, "buried"]]);
    assert.match((await client.task("a", 1)).error, /^TypeError: Cannot read properties of null/);
  });

  /** The acks of a moment travel in one request, which the server refuses as a whole if one result is wrong. */
  it("a result that the server refuses fails its own task only", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { attempts_max: 1, keep_done: 60 });
    await client.putMany("a", Array.from({ length: 40 }, (_, n) => ({ data: n })));
    const nested = JSON.parse("[".repeat(100) + "]".repeat(100));
    const worker = work(t, client, "a", (task) => task.result(task.data % 20 === 3 ? nested : task.data), { concurrency: 40 });
    const [failed, done] = [collect(worker, "failed"), collect(worker, "done")];
    await done.atLeast(38);
    await failed.atLeast(2);
    await worker.stop();
    const buried = (await client.tasks("a", { state: "buried" })).tasks;
    assert.deepEqual(buried.map(({ id }) => id), [3, 23]);
    assert.match(buried[0].error, /nest/);
  });

  /** The work was done again, although only its result could not be kept. */
  it("a result that is too large is dropped, and its task is done", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { attempts_max: 1, keep_done: 60 });
    await client.putMany("a", Array.from({ length: 40 }, (_, n) => ({ data: n })));
    const worker = work(t, client, "a", async (task) => {
      task.result(task.data % 20 === 3 ? "x".repeat(100_000) : task.data);
      // The handler may send the ack itself.
      if (task.data === 23) await task.ack();
    }, { concurrency: 40 });
    const [done, problem] = [collect(worker, "done"), collect(worker, "problem")];
    await done.atLeast(39);
    await worker.stop();
    const tasks = await Promise.all(Array.from({ length: 40 }, (_, id) => client.task("a", id)));
    assert.deepEqual(tasks.filter(({ result }) => result == null).map(({ id }) => id), [3, 23]);
    assert.ok(tasks.every(({ state }) => state === "done"));
    assert.ok(problem.values.every(([error]) => error.code === "too_large") && problem.values.length > 0);
  });

  it("a worker waits for its tube, and for its server", async (t) => {
    const server = await Server.inFolder(t);
    const client = server.client();
    const worker = work(t, client, "late", () => undefined);
    const [problem, done] = [collect(worker, "problem"), collect(worker, "done")];
    const [[missing]] = await problem.atLeast(1);
    assert.equal(missing.code, "tube_not_found");
    await client.put("late", 1);
    await done.atLeast(1);
    await server.kill();
    await problem.atLeast(2);
    await server.restart();
    await client.put("late", 2);
    await done.atLeast(2);
  });

  it("a worker is listed with its name and version", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", 1);
    const worker = work(t, client, "a", () => undefined, { name: "web1:7:mailer" });
    await once(worker, "done");
    const { workers } = await client.workers();
    assert.deepEqual(workers.map(({ name, version, done }) => [name, version, done]), [["web1:7:mailer", "0.1.0", 1]]);
  });

  it("wrong options are refused", async (t) => {
    const client = (await Server.start(t)).client();
    for (const options of [{ concurrency: 0 }, { lease: 0 }, { grace: -1 }, { timeout: Number.NaN }]) {
      assert.throws(() => new Worker(client, "a", () => undefined, options), RangeError);
    }
  });
});
