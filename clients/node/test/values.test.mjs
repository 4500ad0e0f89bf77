// Values that travel: JSON with large integers, and MessagePack.

import assert from "node:assert/strict";
import { test } from "node:test";

import { decodeMessagePack, encodeMessagePack, Extension } from "taskyard";

import { RUNS, Server } from "./fixture.mjs";

test("values arrive as they were put", async (t) => {
  const client = (await Server.start(t)).client();
  const values = [
    null,
    true,
    0,
    -1.5,
    "",
    "ü\u0000\"\\ 9007199254740993 \ud83d\ude00",
    [],
    {},
    [[1, [2, { a: [3] }]]],
    { __proto__: null, constructor: 1, toString: 2 },
    JSON.parse('{"__proto__": 1}'),
    Number.MAX_SAFE_INTEGER,
    2n ** 53n,
    2n ** 64n - 1n,
    -(2n ** 63n),
    { text: "9007199254740993", number: 9007199254740993n, list: [9007199254740993n, 1e300, 0.1234567890123456] },
    Buffer.from([0, 255, 128]),
    { bytes: Buffer.alloc(300, 7), infinite: Number.POSITIVE_INFINITY },
    new Map([[1, "one"], [null, [2n ** 60n]]]),
  ];
  await client.putMany("a", values.map((data) => ({ data })));
  const taken = await client.take("a", { count: 100 });
  const plain = (value) => (value && Object.getPrototypeOf(value) === null ? { ...value } : value);
  for (const [at, value] of values.entries()) assert.deepEqual(taken[at].data, plain(value));
});

test("what JSON leaves out is left out, and what it converts is converted", async (t) => {
  const client = (await Server.start(t)).client();
  const moment = new Date(0);
  for (const [data, wanted] of [
    [undefined, null],
    [{ a: undefined, b: [undefined], moment }, { b: [null], moment: moment.toJSON() }],
    [{ bytes: new Uint8Array([1]), a: undefined, moment }, { bytes: Buffer.of(1), moment: moment.toJSON() }],
  ]) {
    await client.put("a", data);
    const [task] = await client.take("a");
    assert.deepEqual(task.data, wanted);
  }
  const circle = {};
  circle.self = circle;
  await assert.rejects(client.put("a", circle), TypeError);
  await assert.rejects(client.put("a", { circle, bytes: Buffer.of(1) }), Error);
  await assert.rejects(client.put("a", 2n ** 64n), { code: "invalid" });
  await assert.rejects(client.put("a", "x".repeat(2 << 20)), { code: "too_large" });
});

test("MessagePack in its shortest form", () => {
  for (const [value, hex] of [
    [127, "7f"], [128, "cc80"], [255, "ccff"], [256, "cd0100"], [65535, "cdffff"], [65536, "ce00010000"],
    [4294967295, "ceffffffff"], [4294967296, "cf0000000100000000"], [2n ** 64n - 1n, "cfffffffffffffffff"],
    [-1, "ff"], [-32, "e0"], [-33, "d0df"], [-128, "d080"], [-129, "d1ff7f"], [-32769, "d2ffff7fff"],
    [-2147483649, "d3ffffffff7fffffff"], [-(2n ** 63n), "d38000000000000000"], [1.5, "cb3ff8000000000000"],
    ["", "a0"], ["a".repeat(32), `d920${"61".repeat(32)}`], [Buffer.of(1), "c40101"], [[1, null], "9201c0"],
    [{ a: true }, "81a161c3"], [new Extension(-5, Buffer.of(9)), "c701fb09"],
  ]) {
    assert.equal(encodeMessagePack(value).toString("hex"), hex);
    assert.deepEqual(decodeMessagePack(Buffer.from(hex, "hex")), value);
  }
  for (const size of [15, 16, 31, 32, 255, 256, 65535, 65536]) {
    for (const value of ["x".repeat(size), Buffer.alloc(size)]) assert.deepEqual(decodeMessagePack(encodeMessagePack(value)), value);
    const list = decodeMessagePack(encodeMessagePack(Array(size).fill(7)));
    assert.equal(list.length, size);
    const map = decodeMessagePack(encodeMessagePack(Object.fromEntries(Array.from({ length: size }, (_, n) => [n, n]))));
    assert.equal(Object.keys(map).length, size);
  }
});

test("random bytes are decoded or refused", () => {
  const seed = Number(process.env.TASKYARD_SEED ?? Date.now() % 1e9);
  let state = seed;
  // The generator of Park and Miller.
  const random = (below) => (state = (state * 48271) % 2147483647) % below;
  for (let run = 0; run < 3000 * RUNS; run++) {
    const bytes = Buffer.from(Array.from({ length: random(40) }, () => random(256)));
    try {
      const value = decodeMessagePack(bytes);
      assert.deepEqual(decodeMessagePack(encodeMessagePack(value)), value, `seed ${seed}`);
    } catch (error) {
      assert.ok(error instanceof RangeError, `seed ${seed}: ${error.stack}`);
    }
  }
});
