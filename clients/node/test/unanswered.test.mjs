// What becomes of finishes until they are answered: requests that are too large, and stops.

import assert from "node:assert/strict";
import { once } from "node:events";
import net from "node:net";
import { describe, it } from "node:test";

import { Taskyard } from "taskyard";

import { atEnd, Collected, gate, proxied, refusal, Server, work } from "./fixture.mjs";

/** Whether a request ends deliveries. */
const isEnd = (line, body) => line.endsWith("/finish") && !body.includes('"touch"');
const numbers = (count) => Array.from({ length: count }, (_, data) => ({ data }));

describe("unanswered finishes", { concurrency: 8 }, () => {
  /** It was sent again unchanged until the leases of its tasks ended. */
  it("a request that is too large is sent in parts", async (t) => {
    for (const refused of [[413, "<html>"], [413, '{"message":"no"}'], refusal(413, "payload_too_large"), refusal(413, "too_large")]) {
      const { near, far, proxy } = await proxied(t);
      proxy.intercept = (line, body) => (line.endsWith("/finish") && body.length > 300 ? refused : undefined);
      await near.putMany("a", numbers(100));
      const begun = new Collected();
      const { opened, open } = gate();
      const { done, failed } = work(t, far, "a", (task) => {
        begun.add(task.id);
        return opened;
      }, { concurrency: 100 });
      await begun.atLeast(100);
      open();
      await done.atLeast(100);
      assert.equal(failed.values.length, 0);
      assert.equal((await near.tube("a")).tasks.total, 0);
    }
  });

  it("a finish that is too large is sent without its result or with a shorter error", async (t) => {
    const { near, far, proxy } = await proxied(t);
    await near.createTube("a", { keep_done: 60 });
    proxy.intercept = (line, body) => (line.endsWith("/finish") && body.length > 500 ? [413, "<html>"] : undefined);
    await near.putMany("a", ["ack", "throw", "bury", "fail"].map((data) => ({ data })));
    const ended = new Collected();
    const { worker, done, failed } = work(t, far, "a", async (task) => {
      const ways = {
        ack: () => task.result("r".repeat(1000)),
        throw: () => Promise.reject(new Error("t".repeat(5000))),
        bury: () => task.bury("b".repeat(1000)),
        fail: () => task.fail("f".repeat(1000), { delay: 60 }),
      };
      await ways[task.data]();
      ended.add(task.data);
    }, { concurrency: 4, backoff: () => 60 });
    await Promise.all([done.atLeast(1), failed.atLeast(1), ended.atLeast(3)]);
    await worker.stop();
    const tasks = await Promise.all([0, 1, 2, 3].map((id) => near.task("a", id)));
    assert.deepEqual(tasks.map(({ state, result, error }) => [state, result, error]), [
      ["done", undefined, undefined],
      ["delayed", undefined, `Error: ${"t".repeat(193)}`],
      ["buried", undefined, "b".repeat(200)],
      ["delayed", undefined, "f".repeat(200)],
    ]);
  });

  it("a proxy may refuse a request before it has read it", async (t) => {
    const listener = net.createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => socket.end("HTTP/1.1 413 Content Too Large\r\ncontent-length: 6\r\n\r\n<html>", () => socket.destroy()));
    });
    listener.listen(0, "127.0.0.1");
    await once(listener, "listening");
    atEnd(t, () => listener.close());
    const client = new Taskyard(`http://127.0.0.1:${listener.address().port}`, { retry: 0 });
    atEnd(t, () => client.close());
    await assert.rejects(client.put("a", "x".repeat(32 << 20)), { code: "too_large", status: 413 });
  });

  it("a stop sends all failures that wait", async (t) => {
    const client = (await Server.start(t)).client();
    await client.createTube("a", { kind: "fifo" });
    await client.putMany("a", numbers(50));
    const { worker, failed } = work(t, client, "a", () => Promise.reject(new Error("no")), { concurrency: 5, backoff: () => 3600 });
    await failed.atLeast(50);
    await worker.stop();
    const { tasks } = await client.tasks("a");
    assert.deepEqual(tasks.map(({ state, attempts }) => [state, attempts]), Array(50).fill(["ready", 1]));
    assert.equal(worker.leases.size, 0);
  });

  /** The stop had waited for the ack only. */
  it("a stop sends the failure that follows from a refused ack", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const { opened, open } = gate();
    const held = new Collected();
    proxy.intercept = async (line, body) => {
      if (!isEnd(line, body)) return;
      held.add(line);
      await opened;
    };
    await near.put("a", 1);
    const nested = JSON.parse("[".repeat(100) + "]".repeat(100));
    const { worker } = work(t, far, "a", (task) => task.result(nested), { backoff: () => 60 });
    await held.atLeast(1);
    const stopped = worker.stop();
    open();
    await stopped;
    const { state, attempts } = await near.task("a", 0);
    assert.deepEqual([state, attempts, worker.leases.size], ["delayed", 1, 0]);
  });
});
