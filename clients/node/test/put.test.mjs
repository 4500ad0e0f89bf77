// Puts whose answer is lost.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Taskyard } from "taskyard";

import { LossyProxy, RUNS, scripted, Server } from "./fixture.mjs";

test("a put whose answer is lost is repeated and adds one task", async (t) => {
  const server = await Server.start(t);
  const proxy = await LossyProxy.start(t, server.port);
  const client = new Taskyard(proxy.url);
  const puts = 20 * RUNS;
  for (let n = 0; n < puts; n++) {
    proxy.lose = n % 3;
    assert.deepEqual(await client.put("a", n), { id: n, state: "ready" });
  }
  proxy.lose = 1;
  const many = await client.putMany("a", [{ data: "x" }, { data: "y" }]);
  assert.deepEqual(many.map(({ id }) => id), [puts, puts + 1]);
  proxy.lose = 1;
  assert.deepEqual(await client.put("a", "z", { key: "k", unique_for: 60 }), { id: puts + 2, state: "ready", existing: true });
  assert.ok(proxy.lost > puts * 0.9);
  assert.equal((await server.client().tube("a")).tasks.total, puts + 3);
});

test("a put that could add a second task is not repeated", async (t) => {
  const server = await Server.start(t);
  const proxy = await LossyProxy.start(t, server.port);
  const client = new Taskyard(proxy.url);
  await client.tubes();
  for (const options of [{ idempotent: false }, { key: "k" }, { key: "l", unique_for: 1 }]) {
    proxy.lose = 1;
    await assert.rejects(client.put("a", 1, options), { code: "outcome_unknown" });
  }
  proxy.lose = 1;
  await assert.rejects(new Taskyard(proxy.url, { idempotent: false }).put("a", 1), { code: "outcome_unknown" });
  assert.equal((await server.client().tube("a")).tasks.total, 4);
  proxy.lose = 1;
  await assert.rejects(new Taskyard(proxy.url, { retry: 0 }).put("a", 1), { code: "outcome_unknown" });
});

const PLACED = [200, {}, { tasks: [{ id: 0, state: "ready" }] }];
const refusal = (status, code) => [status, {}, { error: { code, message: code } }];

test("on a store without keys puts have none and are not repeated", async (t) => {
  let cut = false;
  const { url, bodies } = await scripted(t, (body) => (cut ? [0] : body.key ? refusal(501, "missing_feature") : PLACED));
  const client = new Taskyard(url);
  await assert.rejects(client.put("a", 1, { key: "mine" }), { code: "missing_feature" });
  assert.deepEqual(await client.put("a", 1), { id: 0, state: "ready" });
  assert.deepEqual(await client.put("a", 2), { id: 0, state: "ready" });
  assert.deepEqual(bodies.map((body) => "key" in body), [true, true, false, false]);
  cut = true;
  await assert.rejects(client.put("a", 3), { code: "outcome_unknown" });
  assert.equal(bodies.length, 5);
});

/** A put with `attempts_max` was refused for that option, and the client took keys for missing from then on. */
test("another missing feature does not turn keys off", async (t) => {
  const { url, bodies } = await scripted(t, (body) => (body.attempts_max ? refusal(501, "missing_feature") : PLACED));
  const client = new Taskyard(url);
  await assert.rejects(client.put("a", 1, { attempts_max: 3 }), { code: "missing_feature" });
  await client.put("a", 2);
  assert.ok(bodies.at(-1).key);
});

test("a server that asks to try again is asked again, and a refusal is final", async (t) => {
  const { url, bodies } = await scripted(t, (_, count) => (count < 3 ? refusal(503, "overloaded") : PLACED));
  await new Taskyard(url).put("a", 1);
  assert.equal(bodies.length, 3);
  assert.equal(new Set(bodies.map((body) => body.key)).size, 1);
  const refusing = await scripted(t, () => refusal(400, "invalid"));
  await assert.rejects(new Taskyard(refusing.url).put("a", 1), { code: "invalid", status: 400 });
  assert.equal(refusing.bodies.length, 1);
});

test("another program at the address is named as such", async (t) => {
  for (const answer of [[200, {}, "<html>"], [404, {}, {}], [500, {}, "<html>"]]) {
    const { url } = await scripted(t, () => answer);
    await assert.rejects(new Taskyard(url).put("a", 1), { code: "not_taskyard" });
  }
});

/** The page of a proxy before a server that restarts was taken for another program, and the put was given up. */
test("the page of a proxy is no answer", async (t) => {
  const pages = [502, 503, 504, 429].map((status) => [status, {}, "<html>"]);
  const { url, bodies } = await scripted(t, () => pages.shift() ?? PLACED);
  await new Taskyard(url).put("a", 1);
  assert.equal(bodies.length, 5);
  assert.equal(new Set(bodies.map((body) => body.key)).size, 1);
  const failing = await scripted(t, () => [502, {}, "<html>"]);
  await assert.rejects(new Taskyard(failing.url).put("a", 1, { idempotent: false }), { code: "outcome_unknown" });
  assert.equal(failing.bodies.length, 1);
});

test("an empty TASKYARD_URL is none", (t) => {
  process.env.TASKYARD_URL = "";
  t.after(() => delete process.env.TASKYARD_URL);
  assert.equal(new Taskyard().connection.url, "http://127.0.0.1:7070");
});
