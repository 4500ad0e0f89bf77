// Schedules: the requests that are sent, and a real server.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Taskyard } from "taskyard";

import { scripted, Server } from "./fixture.mjs";

test("requests on schedules", async (t) => {
  const pages = [{ schedules: [{ name: "a" }], next: "a" }, { schedules: [{ name: "b" }] }];
  const { url, bodies, lines } = await scripted(t, (_, count) => [200, {}, count <= 2 ? pages[count - 1] : { times: [1], tasks: [{ id: 7, state: "ready" }] }]);
  const { schedules } = new Taskyard(url);
  assert.deepEqual((await schedules.list()).map(({ name }) => name), ["a", "b"]);
  await schedules.set("every day", "mail", { data: { n: 2n ** 60n }, pri: 1 }, { cron: "0 9 * * 1-5", zone: "Europe/Berlin", overlap: "skip" });
  await schedules.show("a");
  assert.deepEqual(await schedules.times("a", 3), [1]);
  assert.deepEqual(await schedules.run("a"), { id: 7, state: "ready" });
  await schedules.pause("a");
  await schedules.resume("a");
  await schedules.drop("a");
  assert.deepEqual(lines, [
    "GET /v1/schedules?count=1000",
    "GET /v1/schedules?count=1000&after=a",
    "PUT /v1/schedules/every%20day",
    "GET /v1/schedules/a",
    "GET /v1/schedules/a/next?count=3",
    "POST /v1/schedules/a/run",
    "POST /v1/schedules/a/pause",
    "POST /v1/schedules/a/resume",
    "DELETE /v1/schedules/a",
  ]);
  assert.deepEqual(bodies[2], { task: { data: { n: 2 ** 60 }, pri: 1 }, tube: "mail", cron: "0 9 * * 1-5", zone: "Europe/Berlin", overlap: "skip" });
});

test("schedules of a server", async (t) => {
  const client = (await Server.start(t)).client();
  const { schedules } = client;
  await client.createTube("mail");
  const set = await schedules.set("daily", "mail", { data: { to: "ann" } }, { cron: "0 9 * * *", zone: "Europe/Berlin" });
  assert.deepEqual([set.name, set.tube, set.created, set.paused, set.fired], ["daily", "mail", true, false, 0]);
  await schedules.run("daily");
  assert.deepEqual((await client.take("mail")).map(({ data }) => data), [{ to: "ann" }]);
  assert.equal((await schedules.times("daily", 3)).length, 3);
  assert.equal((await schedules.pause("daily")).paused, true);
  assert.equal((await schedules.resume("daily")).paused, false);
  assert.deepEqual((await schedules.list()).map(({ name }) => name), ["daily"]);
  await schedules.drop("daily");
  await assert.rejects(schedules.show("daily"), { code: "schedule_not_found" });
  await assert.rejects(schedules.set("never", "mail", { data: 1 }, { cron: "0 0 30 2 *" }), { code: "invalid" });
});
