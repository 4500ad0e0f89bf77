// Tasks whose payload cannot be decoded. One after the other: thousands of them keep the process from reading the answers of others.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Taskyard } from "taskyard";

import { atEnd, Collected, refusal, scripted, work } from "./fixture.mjs";

/** The first task, after which the worker knows the rules of the tube. */
const FIRST = 1_000_000;

/** A server that gives tasks whose payload cannot be decoded once, and notes what ids are peeked at. */
async function undecodable(t, count, peek) {
  const fields = { attempts: 30, state: "taken", pri: 0, created: 0, data_base64: "wQ==" };
  const given = (ids) => [200, {}, { tasks: ids.map((id) => ({ id, lease: id, ...fields })) }];
  const takes = [[FIRST], Array.from({ length: count }, (_, id) => id)];
  const [peeked, first, ends] = [[], new Collected(), new Collected()];
  const { url } = await scripted(t, async (body) => {
    if (body === undefined) return [200, {}, { kind: "fifottl" }];
    if (body.wait !== undefined) {
      const ids = takes.shift();
      // Nothing more comes.
      if (ids === undefined) return new Promise(() => undefined);
      if (ids[0] !== FIRST) await first.atLeast(1);
      return given(ids);
    }
    if (body.ids?.[0] === FIRST) return [200, {}, { tasks: [{ id: FIRST }] }];
    if (body.ids !== undefined) {
      peeked.push(body.ids.length);
      const [status, answer] = peek(body.ids);
      return [status, {}, answer];
    }
    for (const part of body.tasks) (part.id === FIRST ? first : ends).add(part);
    return [200, {}, { outcomes: body.tasks.map(() => "done") }];
  });
  const client = new Taskyard(url);
  atEnd(t, () => client.close());
  const { worker } = work(t, client, "a", () => undefined, { concurrency: 10 });
  await ends.atLeast(count);
  await worker.stop();
  assert.deepEqual(first.values.map(({ verb }) => verb), ["bury"]);
  return { peeked, verbs: ends.values.sort((a, b) => a.id - b.id).map(({ verb }) => verb) };
}

/** Each was read in a request of its own. */
test("the limits of many tasks that cannot be decoded are read together", async (t) => {
  const limit = (id) => (id % 10 === 0 ? 50 : null);
  const { peeked, verbs } = await undecodable(t, 1000, (ids) => [200, { tasks: ids.map((id) => ({ id, attempts_max: limit(id) })) }]);
  assert.ok(peeked.length <= 3, `${peeked}`);
  assert.deepEqual(verbs, Array.from({ length: 1000 }, (_, id) => (id % 10 === 0 ? "fail" : "bury")));
});

test("tasks whose payloads are too large together are read in parts", async (t) => {
  const { verbs } = await undecodable(t, 8, (ids) => {
    if (ids.length > 3 || ids.includes(7)) return refusal(413, "too_large");
    return [200, { tasks: ids.map((id) => ({ id })) }];
  });
  assert.deepEqual(verbs, [...Array(7).fill("bury"), "fail"]);
});

/** One attempt while the token was replaced buried tasks whose own limit was not reached. */
test("a task is buried without its limit only if its token may never read it", async (t) => {
  const verb = async (answer) => (await undecodable(t, 1, () => answer)).verbs[0];
  assert.equal(await verb(refusal(403, "forbidden")), "bury");
  const others = [[401, "unauthorized"], [404, "tube_not_found"], [400, "invalid"], [429, "too_many_requests"], [503, "overloaded"]];
  for (const [status, code] of others) assert.equal(await verb(refusal(status, code)), "fail", code);
  assert.equal(await verb([403, "<html>"]), "fail");
});

/** Each of them began the next one before it ended, and used up the stack. */
test("10,000 tasks that cannot be decoded fail", async (t) => {
  const { verbs } = await undecodable(t, 10_000, (ids) => [200, { tasks: ids.map((id) => ({ id })) }]);
  assert.equal(verbs.filter((verb) => verb === "bury").length, 10_000);
});
