// The name under which this process takes tasks.

import { hostname } from "node:os";
import { basename } from "node:path";

const BYTES_MAX = 128;

/** Characters that no name may contain: controls, and those that change the direction of text. */
const UNFIT = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Host, process id and program, such as `web1:4711:mailer.js`. */
export function workerName(): string {
  return compose(hostname(), process.pid, basename(process.argv[1] ?? "node"));
}

/** Joins the parts; what does not fit is cut off, and what no name may contain is replaced. */
export function compose(host: string, pid: number, program: string): string {
  const name = `${host || "localhost"}:${pid}:${program}`.replace(UNFIT, "_");
  if (Buffer.byteLength(name) <= BYTES_MAX) return name;
  // A character that is cut in two is removed.
  return Buffer.from(name).subarray(0, BYTES_MAX).toString().replace(/\ufffd+$/, "");
}
