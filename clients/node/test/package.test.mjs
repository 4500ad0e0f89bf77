// The package as it is installed: entries, types, files.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import * as esm from "taskyard";

const require = createRequire(import.meta.url);
const folder = dirname(require.resolve("taskyard/package.json"));

test("ESM and CommonJS export the same objects", () => {
  const commonjs = require("taskyard");
  for (const name of Object.keys(commonjs)) assert.equal(esm[name], commonjs[name], name);
  assert.deepEqual(Object.keys(commonjs).filter((name) => /^[A-Z]/.test(name)).sort(), [
    "Extension", "PayloadError", "Taskyard", "TaskyardError", "VERSION", "Worker", "WorkerTask",
  ]);
});

test("the package says its version, depends on nothing, and contains its licenses", () => {
  const manifest = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  assert.equal(manifest.version, esm.VERSION);
  assert.equal(manifest.dependencies, undefined);
  assert.equal(manifest.license, "MIT OR Apache-2.0");
  assert.equal(manifest.author, "The Taskyard contributors");
  assert.ok(manifest.description.length > 0 && manifest.keywords.includes("queue"));
  const begins = {
    "README.md": /^# taskyard\n/,
    "LICENSE-MIT": /Permission is hereby granted/,
    "LICENSE-APACHE": /Apache License/,
    "CHANGELOG.md": /^# Changelog\n/,
    "dist/index.d.ts": /export/,
    "dist/index.d.mts": /export/,
  };
  for (const [file, text] of Object.entries(begins)) assert.match(readFileSync(join(folder, file), "utf8"), text);
  for (const file of ["src", "test", "scripts", "tsconfig.json"]) assert.ok(!existsSync(join(folder, file)), file);
});

/** Links into the repository led nowhere on the page of the package. */
test("the README has no relative links", () => {
  assert.doesNotMatch(readFileSync(join(folder, "README.md"), "utf8"), /\]\((?!https?:|#)/);
});

/** The list of methods had no `audit`. */
test("the README names all methods of the client", () => {
  const readme = readFileSync(join(folder, "README.md"), "utf8");
  const types = readFileSync(join(folder, "dist", "client.d.ts"), "utf8");
  const [declared] = types.match(/class Taskyard \{[^]*?\n\}/);
  const methods = [...declared.matchAll(/^ +([a-z]\w*)[<(]/gm)].map(([, name]) => name).filter((name) => name !== "constructor");
  assert.ok(methods.includes("put") && methods.includes("eachTask"));
  assert.deepEqual(methods.filter((name) => !readme.includes(`\`${name}\``)), []);
});

test("programs with the strictest settings of TypeScript compile, and wrong ones do not", { skip: !process.env.TASKYARD_NODE_MODULES }, () => {
  const modules = process.env.TASKYARD_NODE_MODULES;
  const here = fileURLToPath(new URL(".", import.meta.url));
  const settings = ["--ignoreConfig", "--noEmit", "--strict", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext"];
  const types = ["--typeRoots", join(modules, "@types"), "--types", "node"];
  const files = ["types.mts", "types.cts"].map((file) => join(here, file));
  // A line after @ts-expect-error that compiles is an error, too.
  execFileSync(process.execPath, [join(modules, "typescript", "bin", "tsc"), ...settings, ...types, ...files], { stdio: "pipe", encoding: "utf8" });
});
