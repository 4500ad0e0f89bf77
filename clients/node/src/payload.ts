// Converts tasks between values and the fields of requests and answers.

import type { TaskAnswer } from "./api.js";
import type { NewTask } from "./client.js";
import { writeJson } from "./json.js";
import { decode, encode } from "./msgpack.js";

/** A task as the server shows it, with its values decoded, and its tube. */
export interface Task<T = unknown>
  extends Omit<TaskAnswer, "data" | "data_base64" | "meta" | "meta_base64" | "result" | "result_base64"> {
  tube: string;
  data: T;
  meta?: unknown;
  result?: unknown;
}

/**
 * The field of a value as JSON text: `"data":…`, or `"data_base64":…` for values that JSON cannot represent. Throws a
 * TypeError or RangeError if MessagePack cannot represent it either.
 */
export function valueText(name: "data" | "meta" | "result", value: unknown): string {
  const text = writeJson(value);
  return text === undefined ? `"${name}_base64":"${encode(value).toString("base64")}"` : `"${name}":${text}`;
}

/**
 * A JSON object of these fields and of fields that are text already. Fields that are undefined are left out. Throws a TypeError
 * if JSON cannot represent a field.
 */
export function objectText(fields: object, ...texts: string[]): string {
  const text = writeJson(fields);
  if (text === undefined) throw new TypeError("an option is not a finite number, or has a type that JSON does not have");
  return `{${[...texts, text.slice(1, -1)].filter((part) => part !== "").join(",")}}`;
}

/** A new task with its options as a JSON object. */
export function taskText(task: NewTask): string {
  const { data, meta, ...options } = task;
  const texts = [valueText("data", data)];
  if (meta != null) texts.push(valueText("meta", meta));
  return objectText(options, ...texts);
}

const NAMES = ["data", "meta", "result"] as const;
const PACKED = { data: "data_base64", meta: "meta_base64", result: "result_base64" } as const;

/** A task of an answer. */
export function taskOf<T>(tube: string, answer: TaskAnswer): Task<T> {
  const task = answer as TaskAnswer & Task<T>;
  task.tube = tube;
  for (const name of NAMES) {
    const packed = answer[PACKED[name]];
    if (typeof packed !== "string") continue;
    delete answer[PACKED[name]];
    answer[name] = decode(Buffer.from(packed, "base64"));
  }
  return task;
}
