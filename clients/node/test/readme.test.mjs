// The programs of the README run as they are shown.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Server } from "./fixture.mjs";

test("the programs of the README", async (t) => {
  const { url } = await Server.start(t);
  const program = readFileSync(new URL("readme.mjs", import.meta.url), "utf8").replace("http://127.0.0.1:7070", url);
  const child = spawn(process.execPath, ["--input-type=module", "-e", program], { cwd: fileURLToPath(new URL(".", import.meta.url)), stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  child.stdout.on("data", (part) => (output += part));
  assert.deepEqual(await once(child, "exit"), [0, null]);
  assert.equal(output, "sent to ann\n");
});
