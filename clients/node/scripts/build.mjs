// Builds dist/: compiles the sources to CommonJS, and adds an ESM entry that exports the same objects, so that a program
// that uses both has one package only. The compiler is that of node_modules, or of the folder in TASKYARD_NODE_MODULES.

import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const installed = process.env.TASKYARD_NODE_MODULES ?? join(ROOT, "node_modules");
const at = (...path) => join(ROOT, ...path);

rmSync(at("dist"), { recursive: true, force: true });
const compiler = join(installed, "typescript", "bin", "tsc");
const types = ["--typeRoots", join(installed, "@types")];
execFileSync(process.execPath, [compiler, "--project", at("tsconfig.json"), ...types], { stdio: "inherit" });
writeFileSync(at("dist", "index.mjs"), 'export * from "./index.js";\n');
writeFileSync(at("dist", "index.d.mts"), 'export * from "./index.js";\n');
for (const file of ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"]) {
  if (existsSync(at("..", "..", file))) copyFileSync(at("..", "..", file), at(file));
}
