// Every call of the client, against a real server.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Taskyard, TaskyardError } from "taskyard";

import { Server } from "./fixture.mjs";

const code = (wanted) => (error) => error instanceof TaskyardError && error.code === wanted;

test("put, take and every way to finish", async (t) => {
  const client = (await Server.start(t)).client();
  const placed = await client.putMany("mail", [1, 2, 3, 4, 5, 6].map((n) => ({ data: { n } })));
  assert.deepEqual(placed, [0, 1, 2, 3, 4, 5].map((id) => ({ id, state: "ready" })));
  const taken = await client.take("mail", { count: 6, lease: 30, worker: "ann" });
  assert.deepEqual(taken.map((task) => [task.id, task.data, task.tube, task.attempts]), placed.map(({ id }) => [id, { n: id + 1 }, "mail", 0]));
  assert.deepEqual(await client.ack("mail", taken[0]), ["done"]);
  assert.deepEqual(await client.ack("mail", taken[0]), ["missing"]);
  assert.deepEqual(await client.release("mail", taken[1], { delay: 60 }), ["done"]);
  assert.deepEqual(await client.bury("mail", taken[2], { error: "no address" }), ["done"]);
  assert.deepEqual(await client.fail("mail", taken[3], "no route", { delay: 60 }), ["done"]);
  assert.deepEqual(await client.touch("mail", taken[4], 30), ["done"]);
  assert.deepEqual(await client.finish("mail", [
    { verb: "ack", id: taken[4].id, lease: taken[4].lease, result: { pages: 3 } },
    { verb: "release", id: taken[5].id, lease: taken[5].lease, counted: false },
    { verb: "ack", id: 99, lease: 7 },
  ]), ["done", "done", "missing"]);
  assert.deepEqual(await client.release("mail", taken[5]), ["stale"]);
  const failed = await client.task("mail", 3);
  assert.deepEqual([failed.state, failed.attempts, failed.error, failed.failures[0].worker], ["delayed", 1, "no route", "ann"]);
  assert.deepEqual((await client.peek("mail", [1, 2, 99])).map((task) => [task.id, task.state, task.data]), [[1, "delayed", { n: 2 }], [2, "buried", { n: 3 }]]);
  assert.equal(await client.task("mail", 0), undefined);
  assert.equal(await client.kick("mail", 10), 1);
  assert.deepEqual(await client.delete("mail", [1, 2, 0]), ["done", "done", "missing"]);
  assert.deepEqual(await client.take("mail", { count: 9, wait: 0 }).then((tasks) => tasks.map(({ id, attempts }) => [id, attempts])), [[5, 0]]);
  await assert.rejects(client.take("nowhere"), code("tube_not_found"));
});

test("options of a put", async (t) => {
  const client = (await Server.start(t)).client();
  await client.put("a", "later", { delay: 60, pri: 5, ttl: 90, ttr: 9, attempts_max: 3, meta: { trace: "x" } });
  const [task] = await client.peek("a", 0);
  assert.deepEqual([task.state, task.pri, task.ttr, task.attempts_max, task.meta], ["delayed", 5, 9, 3, { trace: "x" }]);
  const first = await client.put("a", 1, { key: "k", unique_for: 60 });
  assert.deepEqual(first, { id: 1, state: "ready" });
  assert.deepEqual(await client.put("a", 2, { key: "k" }), { id: 1, state: "ready", existing: true });
  assert.deepEqual(await client.put("a", 3, { key: "k", on_conflict: "replace" }), { id: 1, state: "ready", existing: true });
  assert.deepEqual((await client.peek("a", 1)).map((found) => [found.key, found.data]), [["k", 3]]);
  await client.createTube("small", { kind: "limfifottl", capacity: 1 });
  await client.put("small", 1);
  await assert.rejects(client.put("small", 2), code("tube_full"));
  await assert.rejects(client.put("a", 1, { delay: 1, at: 1 }), code("invalid"));
});

test("lists of tasks and actions on chosen ones", async (t) => {
  const client = (await Server.start(t)).client();
  await client.putMany("a", Array.from({ length: 25 }, (_, n) => ({ data: { n } })));
  const ids = [];
  for await (const task of client.eachTask("a", { limit: 10 })) ids.push(task.id);
  assert.deepEqual(ids, Array.from({ length: 25 }, (_, id) => id));
  const page = await client.tasks("a", { state: ["ready", "buried"], limit: 2, match: "\"n\":7" });
  assert.deepEqual(page.tasks.map((task) => task.data), [{ n: 7 }]);
  assert.equal((await client.buryTasks("a", { ids: [1, 2, 3], error: "stop" })).changed, 3);
  assert.deepEqual((await client.kickTasks("a", { ids: [1, 9], reset_attempts: true })).outcomes, ["done", "stale"]);
  assert.equal((await client.kickTasks("a", { filter: { error: "stop" }, dry_run: true })).matched, 2);
  await client.take("a", { count: 2 });
  assert.equal((await client.releaseTasks("a", { filter: {} })).changed, 2);
  assert.equal((await client.deleteTasks("a", { filter: { match: "\"n\":2" } })).changed, 6);
});

test("positions and estimates", async (t) => {
  const client = (await Server.start(t)).client();
  const reason = { name: "no_consumer", text: "no consumer takes tasks of this tube" };
  assert.deepEqual(await client.put("a", 0, { estimate: true }), { id: 0, state: "ready", ahead: 0, no_estimate: reason });
  assert.deepEqual(await client.put("a", 1), { id: 1, state: "ready" });
  const placed = await client.putMany("a", [{ data: 2, pri: 9 }, { data: 3, delay: 60 }], { estimate: true });
  assert.deepEqual(placed.map(({ id, ahead }) => [id, ahead]), [[2, 2], [3, 2]]);
  assert.deepEqual((await client.positions("a", [3, 99, 2])).map(({ id, ahead }) => [id, ahead]), [[3, 2], [2, 2]]);
  const many = Array.from({ length: 101 }, (_, data) => ({ data }));
  await assert.rejects(client.putMany("a", many, { estimate: true }), code("too_large"));
  // A finished task and a taken one: run times and the number of consumers are known.
  const [first] = await client.take("a", { count: 2 });
  await client.ack("a", first);
  let position;
  do [position] = await client.positions("a", 2); while (!position.estimate);
  const { estimate, ahead, no_estimate } = position;
  assert.deepEqual([ahead, estimate.ahead, estimate.basis, no_estimate], [0, 1, "run_times", undefined]);
  assert.ok(estimate.p50 <= estimate.p90);
  const known = (tasks) => tasks.map((task) => [task.id, task.estimate !== undefined]);
  assert.deepEqual(known(await client.peek("a", [1, 2], { estimate: true })), [[1, false], [2, true]]);
  assert.deepEqual(known(await client.peek("a", [1, 2])), [[1, false], [2, false]]);
  assert.deepEqual(known([await client.task("a", 2, { estimate: true })]), [[2, true]]);
  assert.deepEqual(known((await client.tasks("a", { estimate: true })).tasks), [[1, false], [2, true], [3, true]]);
  for await (const task of client.eachTask("a", { state: "ready", estimate: true })) assert.equal(task.ahead, 0);
  assert.equal((await client.tube("a")).drain, undefined);
  assert.equal((await client.tube("a", { estimate: true })).drain.basis, "run_times");
  assert.deepEqual((await client.tubes({ estimate: true })).map(({ drain }) => drain.ahead), [2]);
  assert.ok((await client.stats({ estimate: true })).tubes[0].drain.p90 >= 0);
  await client.take("a");
  let checked;
  do ({ estimates: checked } = await client.tube("a", { estimate: true })); while (!checked);
  assert.equal(checked.checked, 1);
});

test("tubes", async (t) => {
  const client = (await Server.start(t)).client();
  assert.equal(await client.createTube("a", { kind: "fifottl", keep_done: 60, retry: { delay: 5 } }), true);
  assert.equal(await client.createTube("a", { if_not_exists: true }), false);
  await assert.rejects(client.createTube("a"), code("tube_exists"));
  assert.equal((await client.pause("a")).paused, true);
  assert.equal((await client.resume("a")).paused, false);
  assert.equal((await client.alterTube("a", { attempts_max: 3, retry: null })).attempts_max, 3);
  assert.equal((await client.renameTube("a", "b/ü ?".replace("/", "."))).name, "b.ü ?");
  await client.put("b.ü ?", 1);
  const [task] = await client.take("b.ü ?", { worker: "ann" });
  assert.deepEqual((await client.deliveries("b.ü ?")).map(({ id, worker }) => [id, worker]), [[0, "ann"]]);
  await client.ack("b.ü ?", task, { result: { pages: 12 } });
  assert.deepEqual((await client.task("b.ü ?", 0)).result, { pages: 12 });
  await client.put("b.ü ?", 2);
  await client.take("b.ü ?");
  await client.releaseAll("b.ü ?");
  await client.truncate("b.ü ?");
  assert.deepEqual((await client.tubes()).map((tube) => [tube.name, tube.tasks.total]), [["b.ü ?", 0]]);
  assert.deepEqual(await client.consumers("b.ü ?"), []);
  await client.dropTube("b.ü ?");
  await assert.rejects(client.tube("b.ü ?"), code("tube_not_found"));
});

test("the server", async (t) => {
  const client = (await Server.start(t)).client();
  await client.put("a", 1);
  await client.take("a");
  assert.equal((await client.health()).status, "ok");
  assert.equal((await client.stats()).total.tubes, 1);
  assert.match(await client.metrics(), /taskyard_/);
  assert.equal((await client.openapi()).info.title, "Taskyard");
  const { workers } = await client.workers();
  assert.deepEqual([workers[0].process, workers[0].version, workers[0].tubes], [process.pid, "0.1.0", ["a"]]);
  assert.ok(Array.isArray((await client.series({ tube: "a", from: -5 })).puts));
  assert.equal((await client.series({ all: true })).servers, 1);
  const { entries } = await client.audit({ limit: 5 });
  assert.deepEqual(entries.map(({ action, target }) => [action, target]), [["create_tube", "a"]]);
  assert.ok(Array.isArray(await client.services()));
  assert.equal(typeof (await client.manager()).led, "boolean");
});

test("semaphores", async (t) => {
  const { semaphores } = (await Server.start(t)).client();
  assert.equal((await semaphores.set("yang", { active: 1 })).active, 1);
  const [first, second] = await semaphores.enqueue("yang", [{ task: 17, priority: 2 }, { task: 18, priority: 1 }]);
  assert.deepEqual([first.status, second.status], ["granted", "waiting"]);
  assert.deepEqual((await semaphores.holders("yang")).tasks.map((member) => member.task), [17]);
  assert.deepEqual((await semaphores.waiting("yang")).tasks.map((member) => member.task), [18]);
  const events = await semaphores.events({ semaphore: "yang", wait: 5 });
  assert.deepEqual(events.map(({ kind, task }) => [kind, task]), [["acquired", 17]]);
  assert.equal(await semaphores.ackEvents(events.map(({ id }) => id)), 1);
  assert.deepEqual(await semaphores.finish("yang", [{ task: 17, grant: first.grant, finish: "release" }]), ["done"]);
  assert.deepEqual((await semaphores.peek("yang", [18])).map((member) => member.status), ["granted"]);
  assert.deepEqual((await semaphores.list()).map(({ key }) => key), ["yang"]);
  assert.equal((await semaphores.show("yang")).waiting, 0);
  await semaphores.drop("yang", { force: true });
  await assert.rejects(semaphores.show("yang"), code("semaphore_not_found"));
});

test("a token is sent, and a wrong one is an error that says so", async (t) => {
  const server = await Server.start(t, ["--store", "memory:", "--token", "secret-0123456789"]);
  assert.deepEqual(await server.client({ token: " secret-0123456789\n" }).tubes(), []);
  await assert.rejects(server.client({ token: "wrong" }).tubes(), code("unauthorized"));
  process.env.TASKYARD_TOKEN = "secret-0123456789";
  process.env.TASKYARD_URL = server.url;
  t.after(() => {
    delete process.env.TASKYARD_TOKEN;
    delete process.env.TASKYARD_URL;
  });
  assert.deepEqual(await new Taskyard().tubes(), []);
  assert.throws(() => server.client({ token: "a b" }), TypeError);
});

test("wrong addresses are explained", async (t) => {
  for (const url of ["localhost:7070", "ftp://a", "", "7070"]) assert.throws(() => new Taskyard(url), /is not the URL of a server/);
  const server = await Server.start(t);
  const client = server.client({ retry: 0 });
  await server.kill();
  await assert.rejects(client.tubes(), (error) => code("unreachable")(error) && /ECONNREFUSED/.test(error.message));
});

test("a waiting take ends with its signal", async (t) => {
  const client = (await Server.start(t)).client();
  await client.createTube("a");
  const controller = new AbortController();
  const taking = client.take("a", { wait: 60, signal: controller.signal });
  controller.abort(new Error("enough"));
  await assert.rejects(taking, /enough/);
});
