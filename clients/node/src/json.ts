// Writes and reads JSON without rounding integers: those beyond 2^53 are BigInt values.

import { randomUUID } from "node:crypto";

/** Stands for a BigInt between the two steps of writing or reading; no payload contains it by chance. */
const MARK = `int:${randomUUID()}:`;
const MARKED = new RegExp(`"${MARK}(-?\\d+)"`, "g");

/** Matches every text that contains an integer of 9 * 10^15 or more, and few others. */
const MAYBE_LARGE = /[0-9]{17}|9[0-9]{15}/;
const STRING_OR_NUMBER = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

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
  if (!MAYBE_LARGE.test(text)) return JSON.parse(text);
  const marked = text.replace(STRING_OR_NUMBER, (token) =>
    /^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? `"${MARK}${token}"` : token,
  );
  return JSON.parse(marked, (_, field: unknown) =>
    typeof field === "string" && field.startsWith(MARK) ? BigInt(field.slice(MARK.length)) : field,
  );
}
