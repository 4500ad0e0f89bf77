// Requests while a client is closed: they fail with a clear error, are not repeated, and leave no connection.

import assert from "node:assert/strict";
import { once } from "node:events";
import { describe, it } from "node:test";

import { Taskyard } from "taskyard";

import { aborted, atEnd, Collected, gate, proxied, scripted, work } from "./fixture.mjs";

/** Resolves when a proxy has no connections any more. */
async function disconnected(proxy) {
  for (const socket of proxy.sockets) if (!socket.destroyed) await once(socket, "close");
}

/** A proxy that holds all requests of a client; the gate lets them go on. */
async function holding(t) {
  const { near, far, proxy } = await proxied(t);
  const [held, { opened, open }] = [new Collected(), gate()];
  atEnd(t, open);
  proxy.intercept = async (line) => {
    held.add(line);
    await opened;
  };
  return { near, far, proxy, held };
}

describe("close", { concurrency: 8 }, () => {
  /** It was repeated over a new connection, which stayed open after the close. */
  it("a request in progress fails and is not repeated", async (t) => {
    const { far, proxy, held } = await holding(t);
    const asked = far.tubes();
    await held.atLeast(1);
    far.close();
    await assert.rejects(asked, { code: "outcome_unknown", message: /the client was closed before the answer/ });
    await disconnected(proxy);
    proxy.intercept = () => undefined;
    assert.deepEqual(await far.tubes(), [], "the client can still be used");
    assert.deepEqual([held.values.length, proxy.lines.length], [1, 2]);
  });

  /** It failed only when it got a connection, and kept that one open. */
  it("requests that wait for a connection fail at once", async (t) => {
    const { far, proxy, held } = await holding(t);
    const asked = Array.from({ length: 100 }, () => far.tubes());
    const settled = Promise.allSettled(asked);
    await held.atLeast(64);
    far.close();
    const codes = (await settled).map(({ reason }) => reason?.code);
    assert.deepEqual([codes.filter((code) => code === "outcome_unknown").length, codes.filter((code) => code === "unreachable").length], [64, 36]);
    await disconnected(proxy);
    assert.equal(held.values.length, 64);
    assert.deepEqual(Object.values(far.connection.agents).flatMap((agent) => Object.values(agent.freeSockets)), []);
  });

  it("a request that waits for a connection can be cancelled", async (t) => {
    const { far, held } = await holding(t);
    const asked = Array.from({ length: 64 }, () => far.tubes());
    void Promise.allSettled(asked);
    await held.atLeast(64);
    const over = new AbortController();
    const last = far.connection.once({ method: "GET", path: "/v1/tubes", signal: over.signal });
    over.abort(new Error("enough"));
    await assert.rejects(last, /enough/);
    await assert.rejects(far.connection.once({ method: "GET", path: "/v1/tubes", signal: over.signal }), /enough/);
  });

  it("a pause before a repeated request ends", async (t) => {
    const answer = [503, { "retry-after": "5" }, { error: { code: "overloaded", message: "later" } }];
    const { url, lines } = await scripted(t, () => answer);
    const client = new Taskyard(url);
    const paused = new Collected();
    const add = client.connection.inProgress.add.bind(client.connection.inProgress);
    client.connection.inProgress.add = (end) => {
      paused.add(end);
      return add(end);
    };
    const asked = client.tubes();
    // The first is the request itself.
    await paused.atLeast(2);
    client.close();
    await assert.rejects(asked, { code: "overloaded" });
    assert.equal(lines.length, 1);
  });

  it("a worker goes on when its client is closed, and stops", async (t) => {
    const { near, far, proxy } = await proxied(t);
    const begun = new Collected();
    const { opened, open } = gate();
    await near.put("a", 1);
    const { worker, done, lost } = work(t, far, "a", async (task) => {
      begun.add(task.id);
      await opened;
    }, { concurrency: 2 });
    await begun.atLeast(1);
    while ((await near.consumers("a")).length === 0);
    far.close();
    open();
    await done.atLeast(1);
    await worker.stop();
    assert.equal(lost.values.length, 0);
    assert.equal((await near.tube("a")).tasks.total, 0);
    far.close();
    await disconnected(proxy);
  });

  it("a stop and a close at once end", async (t) => {
    const { near, far, proxy } = await proxied(t);
    await near.put("a", 1);
    const begun = new Collected();
    const { worker } = work(t, far, "a", async (task) => {
      begun.add(task.id);
      await aborted(task.signal);
    });
    await begun.atLeast(1);
    const stopped = worker.stop({ grace: 0 });
    far.close();
    await stopped;
    far.close();
    await disconnected(proxy);
    assert.equal((await near.tube("a")).tasks.taken, 0);
  });
});
