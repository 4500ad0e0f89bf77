// Writes src/api.ts, the TypeScript types of the HTTP API, from the OpenAPI document of the server.
// With --check it only compares: exit code 1 if the file is not current.

import { readFileSync, writeFileSync } from "node:fs";

const DOCUMENT = new URL("../../../crates/server/openapi.json", import.meta.url);
const TARGET = new URL("../src/api.ts", import.meta.url);
const HEAD = `// The types of the HTTP API. Generated from the OpenAPI document by scripts/api.mjs; changes here are lost.\n`;

// Values of any type: their TypeScript type is the parameter of the calls.
const ANY = new Set(["Payload", "NothingAnswer", "NothingRequest"]);

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.properties) return body(schema, "  ");
  for (const union of [schema.anyOf, schema.oneOf]) {
    if (union) return [...new Set(union.map(typeOf))].join(" | ");
  }
  if (schema.allOf) return schema.allOf.map(typeOf).join(" & ");
  if (Array.isArray(schema.type)) {
    return schema.type.map((type) => typeOf({ ...schema, type })).join(" | ");
  }
  switch (schema.type) {
    case "array": {
      const items = typeOf(schema.items);
      return items.includes(" ") ? `Array<${items}>` : `${items}[]`;
    }
    case "integer":
    case "number":
      return "number";
    case "string":
    case "boolean":
    case "null":
      return schema.type;
    case "object":
      return typeof schema.additionalProperties === "object"
        ? `Record<string, ${typeOf(schema.additionalProperties)}>`
        : "Record<string, unknown>";
    default:
      return "unknown";
  }
}

function comment(text, indent) {
  if (!text) return "";
  const lines = text.split("\n").map((line) => line.trim());
  if (lines.length === 1) return `${indent}/** ${lines[0]} */\n`;
  return `${indent}/**\n${lines.map((line) => `${indent} * ${line}\n`).join("")}${indent} */\n`;
}

// The description of a field may be inside of its union with null.
function description(schema) {
  return schema.description ?? schema.anyOf?.find((part) => part.description)?.description;
}

function body(schema, indent) {
  const required = new Set(schema.required ?? []);
  const fields = Object.entries(schema.properties).map(([name, field]) => {
    const optional = required.has(name) ? "" : "?";
    const type = typeOf(field);
    const value = optional && type !== "unknown" ? `${type} | undefined` : type;
    return `${comment(description(field), indent)}${indent}${name}${optional}: ${value};\n`;
  });
  return `{\n${fields.join("")}${indent.slice(2)}}`;
}

function declaration(name, schema) {
  const head = `\n${comment(schema.description, "")}`;
  if (ANY.has(name)) return `${head}export type ${name} = unknown;\n`;
  if (schema.properties) return `${head}export interface ${name} ${body(schema, "  ")}\n`;
  return `${head}export type ${name} = ${typeOf(schema)};\n`;
}

const { components } = JSON.parse(readFileSync(DOCUMENT, "utf8"));
const text = HEAD + Object.entries(components.schemas).map(([name, schema]) => declaration(name, schema)).join("");
if (!process.argv.includes("--check")) {
  writeFileSync(TARGET, text);
} else if (readFileSync(TARGET, "utf8") !== text) {
  console.error("src/api.ts differs from the OpenAPI document; run: node scripts/api.mjs");
  process.exit(1);
}
