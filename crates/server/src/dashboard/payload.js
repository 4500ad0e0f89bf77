// Shows a payload: as JSON with indentation, as text, or as bytes.

import { make, say, show } from "./dom.js";
import { decode, Float } from "./msgpack.js";
import * as format from "./format.js";

// More than this is not put on the page; the file has everything.
const CHARS_MAX = 100_000;
const HEX_BYTES_MAX = 8_192;
const NAMES = { json: "JSON", text: "Text", hex: "Bytes" };

export const fromBase64 = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

const hexOf = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");

// JSON with indentation. What JSON cannot represent is written as a text in angle brackets.
export function pretty(value, indent = "") {
  const deeper = `${indent}  `;
  if (value instanceof Float) return Number.isInteger(value.number) ? value.number.toFixed(1) : `${value.number}`;
  if (typeof value === "bigint") return `${value}`;
  if (value instanceof Uint8Array) return `<${format.bytes(value.length)}: ${hexOf(value.subarray(0, 64))}${value.length > 64 ? "…" : ""}>`;
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((item) => deeper + pretty(item, deeper)).join(",\n")}\n${indent}]`;
  }
  if (value instanceof Map) {
    if (!value.size) return "{}";
    const lines = [...value].map(([key, item]) => `${deeper}${pretty(key, deeper)}: ${pretty(item, deeper)}`);
    return `{\n${lines.join(",\n")}\n${indent}}`;
  }
  if (value?.bytes) return `<extension ${value.kind}: ${hexOf(value.bytes)}>`;
  return JSON.stringify(value);
}

// Bytes in lines of 16: offset, hexadecimal, printable characters.
export function hexDump(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = bytes.subarray(at, at + 16);
    const hex = Array.from(part, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

// The forms in which a payload can be shown, the best first, each a function that returns its text.
function formsOf(packed) {
  let value;
  try {
    value = decode(packed);
  } catch {
    return { hex: () => hexDump(packed.subarray(0, HEX_BYTES_MAX)) };
  }
  const raw = value instanceof Uint8Array ? value : packed;
  const hex = () => hexDump(raw.subarray(0, HEX_BYTES_MAX));
  if (typeof value === "string") return { text: () => value, json: () => JSON.stringify(value), hex };
  return value instanceof Uint8Array ? { hex } : { json: () => pretty(value), hex };
}

// A box with the payload; `fill` gets MessagePack in base64.
export function payloadBox(label, fileName) {
  const code = make("pre", { class: "payload-text", tabindex: "0", "aria-label": label });
  const size = make("small");
  const note = make("p", { class: "note", hidden: true });
  const chooser = make("span", { class: "buttons", role: "group", "aria-label": `Form of the ${label.toLowerCase()}` });
  const save = make("button", { type: "button", class: "save", click: () => download() }, "Save as file");
  const element = make("section", { class: "card", "aria-label": label },
    make("div", { class: "bar" }, make("h3", {}, label), size, chooser, save), code, note);
  let shown = null;
  let packed = null;

  function download() {
    const url = URL.createObjectURL(new Blob([packed], { type: "application/octet-stream" }));
    make("a", { href: url, download: fileName }).click();
    URL.revokeObjectURL(url);
  }

  function choose(forms, name) {
    for (const button of chooser.children) button.setAttribute("aria-pressed", button.dataset.form === name);
    const text = forms[name]();
    say(code, text.slice(0, CHARS_MAX));
    const isCut = text.length > CHARS_MAX || (name === "hex" && packed.length > HEX_BYTES_MAX);
    show(note, isCut);
    say(note, "Only the beginning is shown. The file has the whole payload as MessagePack.");
  }

  function present(bytes, forms) {
    packed = bytes;
    say(size, format.bytes(packed.length));
    const names = Object.keys(forms);
    chooser.replaceChildren(...names.map((name) =>
      make("button", { type: "button", "data-form": name, click: () => choose(forms, name) }, NAMES[name])));
    choose(forms, names[0]);
  }

  return {
    element,
    // Shows MessagePack in base64 or, without it, a value of JSON.
    fill(base64, value) {
      const text = base64 ?? JSON.stringify(value, null, 2);
      if (text === shown) return;
      shown = text;
      if (base64 !== undefined) {
        const bytes = fromBase64(base64);
        present(bytes, formsOf(bytes));
      } else {
        present(new TextEncoder().encode(text), { json: () => text });
      }
    },
  };
}
