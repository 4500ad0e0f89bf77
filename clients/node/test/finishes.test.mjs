// How outcomes reach the server: lost answers, proxies, dead connections, odd errors, tubes without delays.

import assert from "node:assert/strict";
import { describe, it } from "node:test";

import { Taskyard, Worker } from "taskyard";

import { Collected, gate, proxied, scripted, Server, work } from "./fixture.mjs";

const isFinish = (line) => line.endsWith("/finish");

describe("finishes", { concurrency: 8 }, () => {
  /** The page of a proxy was taken for an answer, and the ack was dropped. */
  it("an ack is repeated until Taskyard answers", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const answers = [502, 503, 504, 429, 200, 404, 500].map((status) => [status, "<html>"]);
    answers.push([500, JSON.stringify({ error: { code: "internal", message: "bug" } })], "request");
    proxy.intercept = (line) => (isFinish(line) ? answers.shift() : undefined);
    await near.put("a", 1);
    const { done } = work(t, far, "a", () => undefined);
    await done.atLeast(1);
    assert.equal(proxy.lines.filter(isFinish).length, 10);
    assert.equal((await near.tube("a")).tasks.total, 0);
  });

  /** While a token was replaced, the acks of finished tasks became failures, and the tasks ran again. */
  it("an ack that is refused for another reason than its task is repeated", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const answers = [[401, "unauthorized"], [403, "forbidden"], [429, "too_many_requests"], [404, "route_not_found"]];
    const refusals = answers.map(([status, code]) => [status, JSON.stringify({ error: { code, message: "no" } })]);
    proxy.intercept = (line) => (isFinish(line) ? refusals.shift() : undefined);
    await near.put("a", 1);
    let runs = 0;
    const { done, failed, lost } = work(t, far, "a", () => void (runs += 1));
    await done.atLeast(1);
    assert.deepEqual([runs, failed.values.length, lost.values.length], [1, 0, 0]);
    assert.equal(proxy.lines.filter(isFinish).length, 5);
    assert.equal((await near.tube("a")).tasks.total, 0);
  });

  it("a refused ack is repeated as long as its lease, and never becomes a failure", async (t) => {
    const { near, far, proxy } = await proxied(t);
    let takes = 0;
    proxy.intercept = async (line) => {
      if (isFinish(line)) return [403, JSON.stringify({ error: { code: "forbidden", message: "no" } })];
      // The worker does not get the task again.
      if (line.endsWith("/take") && takes++ > 0) return new Promise(() => undefined);
    };
    await near.put("a", 1);
    const { done, failed, lost, problem } = work(t, far, "a", () => undefined, { lease: 6 });
    await lost.atLeast(1);
    assert.deepEqual([done.values.length, failed.values.length], [0, 0]);
    // On a busy machine an answer may come too late.
    const codes = new Set(problem.values.map(([error]) => error.code));
    codes.delete("outcome_unknown");
    assert.deepEqual([...codes], ["forbidden"]);
    assert.ok(proxy.lines.filter(isFinish).length > 1);
    // For the server the lease expired; nothing failed.
    const [again] = await near.take("a", { wait: 60 });
    assert.deepEqual((await near.task("a", again.id)).failures.map(({ error }) => error), ["lease expired"]);
  });

  it("an ack without a result that the server refuses is no failure", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const refusals = [[400, JSON.stringify({ error: { code: "invalid", message: "no" } })]];
    proxy.intercept = (line) => (isFinish(line) ? refusals.shift() : undefined);
    await near.put("a", 1);
    const { failed, problem } = work(t, far, "a", () => undefined);
    await problem.atLeast(1);
    assert.deepEqual([failed.values.length, (await near.task("a", 0)).state], [0, "taken"]);
  });

  it("a worker uses one connection for takes and one for finishes", async (t) => {
    const { near, far, proxy } = await proxied(t);
    await near.putMany("a", Array.from({ length: 200 }, (_, n) => ({ data: n })));
    const { done } = work(t, far, "a", (task) => new Promise((resolve) => setImmediate(resolve, task)), { concurrency: 16 });
    await done.atLeast(200);
    for (let n = 200; n < 220; n++) {
      await near.put("a", n);
      await done.atLeast(n + 1);
    }
    assert.equal(proxy.opened, 2);
  });

  it("requests beyond the limit of connections wait for those before", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const { opened, open } = gate();
    const held = new Collected();
    proxy.intercept = async (line) => {
      if (!isFinish(line)) return;
      held.add(line);
      await opened;
    };
    await near.putMany("a", Array.from({ length: 100 }, (_, n) => ({ data: n })));
    const tasks = await near.take("a", { count: 100 });
    const acks = tasks.map((task) => far.ack("a", task));
    await held.atLeast(16);
    // A request of another kind has connections of its own, and arrives after those would have.
    await far.tubes();
    assert.equal(held.values.length, 16);
    open();
    await Promise.all(acks);
    assert.equal((await near.tube("a")).tasks.total, 0);
  });

  it("the acks of a moment travel together", async (t) => {
    const { near, far, proxy } = await proxied(t);
    await near.putMany("a", Array.from({ length: 100 }, (_, n) => ({ data: n })));
    const begun = new Collected();
    const { opened, open } = gate();
    const { done } = work(t, far, "a", (task) => {
      begun.add(task.id);
      return opened;
    }, { concurrency: 100 });
    await begun.atLeast(100);
    open();
    await done.atLeast(100);
    assert.equal(proxy.lines.filter(isFinish).length, 1);
  });

  it("an ack whose answer was lost is done", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const answers = ["answer", "request", "answer"];
    proxy.intercept = (line) => (isFinish(line) ? answers.shift() : undefined);
    await near.put("a", 1);
    let runs = 0;
    const { done, lost } = work(t, far, "a", () => void (runs += 1));
    await done.atLeast(1);
    assert.deepEqual([runs, lost.values.length, (await near.tube("a")).tasks.total], [1, 0, 0]);
  });

  /** After one lost answer every outcome counted as done, even if another worker had the task by then. */
  it("an ack whose answer was lost and whose lease is over is unknown", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const { opened, open } = gate();
    const answers = ["request"];
    let takes = 0;
    proxy.intercept = async (line) => {
      if (isFinish(line)) return answers.shift() ?? (await opened);
      // The worker does not get the task again.
      if (line.endsWith("/take") && takes++ > 0) await opened;
    };
    await near.put("a", 1);
    const { done, problem } = work(t, far, "a", () => undefined, { lease: 1 });
    await problem.atLeast(1);
    // When the lease is over, another client gets the task.
    const [again] = await near.take("a", { wait: 60 });
    assert.equal(again.attempts, 1);
    open();
    // The worker may have reported it before, when the lease was over.
    for (let count = 1; ; count++) {
      const problems = await problem.atLeast(count);
      if (problems.some(([error]) => error.code === "outcome_unknown")) break;
    }
    assert.deepEqual(done.values, []);
  });

  /** Acks waited 60 s for the answer on a connection that a firewall had dropped. */
  it("an ack on a dead connection is sent over another", async (t) => {
    const { near, far, proxy } = await proxied(t);
    await near.put("a", 1);
    const begun = new Collected();
    const { opened, open } = gate();
    const { done, lost } = work(t, far, "a", async (task) => {
      begun.add(task.id);
      if (task.data === 2) await opened;
    }, { lease: 9 });
    await done.atLeast(1);
    await near.put("a", 2);
    await begun.atLeast(2);
    proxy.freeze();
    open();
    await done.atLeast(2);
    assert.deepEqual([begun.values.length, lost.values.length], [2, 0]);
  });

  /** The server ignores the delay there, so that a failing task was delivered again at once, hundreds of times in a second. */
  it("a tube without delays gets failures later", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { kind: "fifo" });
    await client.put("a", "fails");
    const { worker, done, failed } = work(t, client, "a", (task) => {
      if (task.data === "fails") throw new Error("no");
    }, { lease: 6, backoff: () => 3600 });
    await failed.atLeast(1);
    await client.put("a", "good");
    await done.atLeast(1);
    // Longer than the lease, which is extended meanwhile.
    await client.put("clock", 1, { delay: 7 });
    await client.take("clock", { wait: 60 });
    assert.deepEqual((await client.peek("a", 0)).map(({ state, attempts }) => [state, attempts]), [["taken", 0]]);
    await worker.stop();
    assert.deepEqual((await client.peek("a", 0)).map(({ state, attempts }) => [state, attempts]), [["ready", 1]]);
    assert.equal(failed.values.length, 1);
  });

  it("a wrong backoff follows the retry policy", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { retry: { delay: 500, jitter: 0 } });
    const wrong = [Number.NaN, Infinity, -1, "soon", undefined];
    await client.putMany("a", wrong.map((data) => ({ data: String(data) })));
    t.mock.method(console, "error", () => undefined);
    const { worker, failed } = work(t, client, "a", () => Promise.reject(new Error("no")), { backoff: () => wrong.pop() });
    await failed.atLeast(5);
    await worker.stop();
    for (let id = 0; id < 5; id++) {
      const task = await client.task("a", id);
      assert.equal(Math.round(task.due - task.failed_at), 500);
    }
    await assert.rejects(async () => client.createTube("b", { ttl: Number.NaN }), TypeError);
  });

  /** The end was sent and answered, but the lease was extended as before, and the task was reported as lost. */
  it("a task that its handler acked is not lost", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", 1);
    const ended = new Collected();
    const { lost } = work(t, client, "a", async (task) => {
      await task.ack();
      await client.put("clock", 1, { delay: 4 });
      await client.take("clock", { wait: 60 });
      ended.add(task.id);
    }, { lease: 3 });
    await ended.atLeast(1);
    assert.deepEqual(lost.values, []);
  });

  /** An unhandled rejection ends the process. */
  it("the end of a lost delivery may be ignored", async (t) => {
    const client = (await Server.start(t)).client();
    await client.putMany("a", [{ data: 1 }, { data: 2 }]);
    const ended = new Collected();
    work(t, client, "a", async (task) => {
      await client.delete("a", task.id);
      if (task.data === 1) void task.touch(1);
      void task.release();
      ended.add(task.id);
    });
    await ended.atLeast(2);
    // A request after those, whose answers have arrived then.
    await client.tubes();
  });

  /** An error in the path of failures rejected a promise of the worker, and the place of the handler stayed taken. */
  it("errors that cannot be shown fail their task", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { attempts_max: 1 });
    const odd = [
      Object.defineProperty(new Error("x"), "message", { get: () => { throw new Error("no message"); } }),
      Object.assign(new Error("y"), { stack: 7 }),
      Object.create(null),
      new Error("half \ud800 of a character"),
      null,
    ];
    await client.putMany("a", [...odd.keys()].map((data) => ({ data })));
    const { worker, failed } = work(t, client, "a", (task) => Promise.reject(odd[task.data]), { concurrency: 1 });
    await failed.atLeast(5);
    await worker.stop();
    const tasks = (await client.tasks("a")).tasks;
    assert.deepEqual(tasks.map(({ state }) => state), Array(5).fill("buried"));
  });

  it("a handler that hangs after its lease was lost frees its place", async (t) => {
    const client = (await Server.start(t)).client();
    await client.put("a", "hangs");
    const begun = new Collected();
    const { done } = work(t, client, "a", (task) => {
      begun.add(task.id);
      return task.data === "hangs" ? new Promise(() => undefined) : undefined;
    }, { lease: 3, concurrency: 1 });
    await begun.atLeast(1);
    await client.delete("a", 0);
    await client.put("a", "good");
    await done.atLeast(1);
    assert.deepEqual(done.values.map(([task]) => task.data), ["good"]);
  });

  /** Takes waited for one second only, because a stop waited for the last one. */
  it("a stop ends a take that waits, and loses no task", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const client = near;
    await client.createTube("a");
    let ran = 0;
    for (let round = 0; round < 20; round++) {
      const worker = new Worker(client, "a", () => void (ran += 1), { signals: false });
      while ((await client.consumers("a")).length === 0);
      await Promise.all([client.put("a", round), worker.stop()]);
      assert.equal((await client.tube("a")).tasks.taken, 0);
    }
    assert.equal((await client.tube("a")).tasks.ready + ran, 20);
    work(t, far, "a", () => undefined);
    while ((await client.consumers("a")).length === 0);
    const takes = proxy.lines.filter((line) => line.endsWith("/take")).length;
    await client.put("clock", 1, { delay: 2 });
    await client.take("clock", { wait: 60 });
    assert.equal(proxy.lines.filter((line) => line.endsWith("/take")).length, takes);
  });

  /** A regular expression went through the string and used up the stack. */
  it("answers with long strings and large integers are read", async (t) => {
    for (const long of ["x".repeat(10 << 20), "\\n\\\"".repeat(2 << 20), "\\\\".repeat(5 << 20)]) {
      const { url } = await scripted(t, () => [200, {}, `{"tubes":[{"name":"${long}","n":12345678901234567890,"m":-1.5e300}]}`]);
      const [tube] = await new Taskyard(url).tubes();
      assert.equal(tube.name, JSON.parse(`"${long}"`));
      assert.deepEqual([tube.n, tube.m], [12345678901234567890n, -1.5e300]);
    }
  });
});
