// How long a stop sends acks while the server is away. The tests move the clock and the timers of the package.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Taskyard, Worker } from "taskyard";

import { atEnd, Collected, gate, HttpProxy, Server } from "./fixture.mjs";

/** A worker behind a proxy that loses finishes while `isAway`; the time that has passed is moved by the test. */
async function stopping(t, options, isAway) {
  const server = await Server.start(t);
  const proxy = await HttpProxy.start(t, server.port);
  const [near, far] = [server.client(), new Taskyard(proxy.url)];
  atEnd(t, () => far.close());
  const time = { ms: 0 };
  const now = performance.now.bind(performance);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  t.mock.method(performance, "now", () => now() + time.ms);
  proxy.intercept = (line) => (line.endsWith("/finish") && isAway(time.ms) ? "request" : undefined);
  await near.put("a", 1);
  const [begun, { opened, open }] = [new Collected(), gate()];
  const worker = new Worker(far, "a", async () => {
    begun.add(true);
    await opened;
  }, { signals: false, ...options });
  worker.on("problem", () => undefined);
  await begun.atLeast(1);
  let isStopped = false;
  const stopped = worker.stop().then(() => (isStopped = true));
  open();
  /** Lets time pass until the worker has stopped. */
  const pass = async (atMost) => {
    while (!isStopped && time.ms < atMost) {
      time.ms += 100;
      t.mock.timers.tick(100);
      await new Promise((resolve) => setImmediate(resolve));
    }
    if (!isStopped) throw new Error(`the worker has not stopped within ${atMost} ms`);
    await stopped;
    return time.ms;
  };
  return { near, pass };
}

/** A stop gave up after two seconds, although the server was back before the lease and the grace ended. */
test("a stop sends acks until the server is back", async (t) => {
  const { near, pass } = await stopping(t, { lease: 100_000, grace: 50_000 }, (ms) => ms < 25_000);
  await pass(40_000_000);
  assert.equal((await near.tube("a")).tasks.total, 0);
});

test("a stop gives acks up when the grace is over", async (t) => {
  const { near, pass } = await stopping(t, { lease: 100_000, grace: 20 }, () => true);
  const ms = await pass(90_000_000);
  assert.ok(ms >= 20_000 && ms < 25_000, String(ms));
  assert.equal((await near.task("a", 0)).state, "taken");
});

test("a stop without grace has ten seconds for acks", async (t) => {
  const { pass } = await stopping(t, { lease: 100_000, grace: 0 }, () => true);
  const ms = await pass(90_000_000);
  assert.ok(ms >= 10_000 && ms < 15_000, String(ms));
});

test("a stop does not send acks for longer than their lease", async (t) => {
  const { pass } = await stopping(t, { lease: 30, grace: 1_000_000 }, () => true);
  const ms = await pass(90_000_000);
  assert.ok(ms >= 20_000, String(ms));
});
