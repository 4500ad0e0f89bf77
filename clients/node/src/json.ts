// Writes and reads JSON without rounding integers: those beyond 2^53 are BigInt values.

import { randomUUID } from "node:crypto";

/** Stands for a BigInt between the two steps of writing or reading; no payload contains it by chance. */
const MARK = `int:${randomUUID()}:`;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");

const NUMBER = /-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

/**
 * The value as JSON; `undefined` is null. Answers `undefined` if the value contains something that JSON cannot represent but
 * MessagePack can: bytes, maps, NaN or infinite numbers. Throws a TypeError if the value contains itself.
 */
export function writeJson(value: unknown): string | undefined {
  let large = false;
  let unfit = false;
  const text = JSON.stringify(value, function (this: Record<string, unknown>, key, field: unknown) {
    // What it was before a method toJSON, which bytes have, too.
    const given = this[key];
    if (typeof given === "bigint") {
      large = true;
      return MARK + String(given);
    }
    if (typeof given === "number" ? !Number.isFinite(given) : given instanceof Uint8Array || given instanceof Map) {
      unfit = true;
      return null;
    }
    return field;
  });
  if (unfit) return undefined;
  if (text === undefined) return "null";
  return large ? text.replace(MARKED, "$1") : text;
}

/** The value of a JSON text. Throws a SyntaxError if it is not JSON. */
export function readJson(text: string): unknown {
  const value: unknown = JSON.parse(text);
  if (!mayBeRounded(value)) return value;
  return JSON.parse(markIntegers(text), (_, field: unknown) =>
    typeof field === "string" && field.startsWith(MARK) ? BigInt(field.slice(MARK.length)) : field,
  );
}

/** Replaces the integers beyond 2^53 outside of strings. */
function markIntegers(text: string): string {
  const parts: string[] = [];
  for (let at = 0; at < text.length; ) {
    const quote = text.indexOf('"', at);
    const start = quote < 0 ? text.length : quote;
    parts.push(text.slice(at, start).replace(NUMBER, markedInteger));
    at = quote < 0 ? start : stringEnd(text, quote);
    parts.push(text.slice(start, at));
  }
  return parts.join("");
}

function markedInteger(token: string): string {
  return /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token;
}

/** Where the string that begins at a quote ends. Not a regular expression, whose stack a long string would use up. */
function stringEnd(text: string, quote: number): number {
  for (let end = quote; ; ) {
    end = text.indexOf('"', end + 1);
    let start = end;
    while (text[start - 1] === "\\") start -= 1;
    if ((end - start) % 2 === 0) return end + 1;
  }
}

/** Whether a value contains a number that may have been an integer beyond 2^53. Cheaper than a search in the text. */
function mayBeRounded(value: unknown): boolean {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value);
  if (typeof value !== "object" || value === null) return false;
  if (Array.isArray(value)) return value.some(mayBeRounded);
  for (const key in value) {
    if (mayBeRounded((value as Record<string, unknown>)[key])) return true;
  }
  return false;
}
