// The TypeScript code of a contract: compiled, and compared with the bytes that the Rust code writes.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

import { decodeMessagePack, encodeMessagePack, Worker } from "taskyard";

import { atEnd, Collected, Server } from "./fixture.mjs";

const modules = process.env.TASKYARD_NODE_MODULES;
/** The folder of the contract's own test data. */
const data = process.env.TASKYARD_CONTRACT_TESTS;
const skip = !modules || !data;

/** Generates and compiles the classes of a contract. */
async function classes(contract) {
  const folder = mkdtempSync(join(tmpdir(), "taskyard-node-contract-"));
  process.once("exit", () => rmSync(folder, { recursive: true }));
  const source = execFileSync(process.env.TASKYARD_BINARY, ["contract", "generate", contract, "--language", "typescript"]);
  writeFileSync(join(folder, "queues.mts"), source);
  const settings = ["--ignoreConfig", "--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "--noUnusedLocals", "--target", "es2022", "--module", "nodenext"];
  const types = ["--typeRoots", join(modules, "@types"), "--types", "node"];
  execFileSync(process.execPath, [join(modules, "typescript", "bin", "tsc"), ...settings, ...types, join(folder, "queues.mts")], { stdio: "inherit" });
  return import(pathToFileURL(join(folder, "queues.mjs")).href);
}

const everyType = skip ? undefined : classes(join(data, "every_type.yaml"));
const FIELDS = { int: "int", int64: "match", string: "list", bool: "from", "[]byte": "field", "[]int": "encode", "[]int64": "numbers" };
const ORDER = Object.values(FIELDS);
const ZEROS = ["00", "00", "a0", "c2", "c400", "90", "90"];

test("TypeScript writes and reads the same bytes as Rust", { skip }, async (t) => {
  const { TypeTask } = await everyType;
  assert.deepEqual([TypeTask.QUEUE_NUM, TypeTask.QUEUE_NAME], [7, "type"]);
  assert.equal(encodeMessagePack(new TypeTask().values()).toString("hex"), `97${ZEROS.join("")}`);
  // Integers that a JSON parser would round.
  const text = readFileSync(join(data, "vectors.json"), "utf8").replace(/(?<=[:[,] ?)-?\d{16,}/g, '"int:$&"');
  const vectors = JSON.parse(text, (_, value) => (typeof value === "string" && value.startsWith("int:") ? BigInt(value.slice(4)) : value));
  for (const { type, value, payload } of vectors) {
    const name = FIELDS[type];
    const bytes = [...ZEROS];
    bytes[ORDER.indexOf(name)] = payload.slice(2);
    const wanted = `97${bytes.join("")}`;
    const task = new TypeTask({ [name]: type === "[]byte" ? Buffer.from(value, "hex") : value });
    assert.equal(encodeMessagePack(task.values()).toString("hex"), wanted);
    const read = (hex) => encodeMessagePack(TypeTask.from(decodeMessagePack(Buffer.from(hex, "hex"))).values()).toString("hex");
    assert.equal(read(wanted), wanted);
    // An older producer knows the fields up to this one only; a newer one knows one more.
    const until = ORDER.indexOf(name) + 1;
    assert.equal(read(`9${until}${bytes.slice(0, until).join("")}`), wanted);
    assert.equal(read(`98${bytes.join("")}81a161cb0000000000000000`), wanted);
  }
  assert.ok(vectors.length > 20);
  for (const wrong of [{}, null, "x", [1.5], ["a"], [1, 2, Buffer.from([255, 254])], [1, 2, "a", 1], [1, 2, "a", true, 7], [1, 2, "", true, "", [null]], [2n ** 63n]]) {
    assert.throws(() => TypeTask.from(wrong), TypeError);
  }
  assert.throws(() => new TypeTask({ int: -(2n ** 63n) - 1n }), /int: .* does not fit/);
});

test("typed tasks travel between a client and a worker", { skip }, async (t) => {
  const { TypeTask } = await everyType;
  const client = (await Server.start(t)).client();
  const sent = new TypeTask({ int: 2n ** 62n, match: -3, list: "ü", from: true, field: Buffer.of(0, 255), encode: [1, 2n ** 60n] });
  await client.put(TypeTask.QUEUE_NAME, sent.values());
  const got = new Collected();
  const worker = new Worker(client, TypeTask.QUEUE_NAME, (task) => got.add(TypeTask.from(task.data)), { signals: false });
  atEnd(t, () => worker.stop());
  assert.deepEqual((await got.atLeast(1))[0].values(), sent.values());
});

test("fields may have names of the language", { skip }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "taskyard-node-names-"));
  atEnd(t, () => rmSync(folder, { recursive: true }));
  const names = ["constructor", "values", "class", "from", "to_int", "fields", "prototype", "this", "string", "data"];
  const fields = names.map((name) => `      - {name: ${name}, type: int}\n`).join("");
  writeFileSync(join(folder, "odd.yaml"), `queues:\n  - id: 1\n    name: odd\n    fields:\n${fields}`);
  const { OddTask } = await classes(join(folder, "odd.yaml"));
  const task = new OddTask({ constructor_: 1, values_: 2, class: 3, this: 4 });
  assert.deepEqual(task.values(), [1n, 2n, 3n, 0n, 0n, 0n, 0n, 4n, 0n, 0n]);
  assert.deepEqual(OddTask.from(task.values()).values(), task.values());
});
