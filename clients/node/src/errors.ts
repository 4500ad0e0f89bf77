// The errors of the client.

import type { ErrorDetail } from "./api.js";

/**
 * Why a call failed. `code` is one of the codes of the HTTP API, or one of the client's own:
 *
 * - `unreachable`: no connection to the server; nothing was done.
 * - `outcome_unknown`: the answer was lost, so that the call may have been executed or not.
 * - `unavailable`: a proxy before the server asks to try again; nothing was done.
 * - `untrusted`: the certificate of the server is not trusted, or the server does not trust that of the client; nothing was done.
 * - `not_taskyard`: another program answered.
 * - `lease_lost`: the delivery has ended, so that it cannot be finished or extended.
 */
export class TaskyardError extends Error {
  readonly code: string;
  /** The HTTP status, if the server answered. */
  readonly status: number | undefined;
  /** The fields of the server's error. */
  readonly detail: ErrorDetail | undefined;
  /** After how many seconds the server asks to repeat the call. */
  readonly retryAfter: number | undefined;

  constructor(code: string, message: string, more: ErrorOrigin = {}) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = "TaskyardError";
    this.code = code;
    this.status = more.status;
    this.detail = more.detail;
    this.retryAfter = more.retryAfter;
  }

  /** Whether nothing was done and the same call may succeed later. */
  get isTemporary(): boolean {
    return TEMPORARY.has(this.code);
  }

  /** Whether the server itself refused the call, such as one with a wrong token. */
  get isRefused(): boolean {
    return this.detail !== undefined && !this.isTemporary && (this.status ?? 500) < 500;
  }

  /** Whether the refusal is about the tasks of the call or their results, so that the same call would be refused again. */
  get isAboutTasks(): boolean {
    return this.isTooLarge || (this.detail !== undefined && ABOUT_TASKS.has(this.code));
  }

  /** Whether a part of the call might be accepted: the server, or a proxy before it, accepts no call of this size. */
  get isTooLarge(): boolean {
    return this.status === 413 || this.code === "too_large";
  }

  /** Whether the call may have been executed or not. */
  get isUnknown(): boolean {
    return this.code === "outcome_unknown";
  }
}

/**
 * The payload of a task cannot be decoded, or is not one that the handler accepts. The task is tried again, because a newer worker
 * may accept it, and buried after its attempts: `retries` of the worker, `attempts_max` of the task or of its tube, or ten.
 */
export class PayloadError extends TypeError {
  constructor(message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "PayloadError";
  }
}

/** Where an error comes from. */
export interface ErrorOrigin {
  status?: number | undefined;
  detail?: ErrorDetail | undefined;
  retryAfter?: number | undefined;
  cause?: unknown;
}

const TEMPORARY: ReadonlySet<string> = new Set([
  "unreachable",
  "unavailable",
  "overloaded",
  "store_away",
  "store_failed",
  "shutting_down",
]);

const ABOUT_TASKS: ReadonlySet<string> = new Set([
  "invalid",
  "too_large",
  "missing_feature",
  "unsupported",
  "tube_not_found",
  "task_not_found",
]);

/** How many lines of a stack are kept with a failed task. */
const STACK_LINES = 6;

/** The text of anything that was thrown: message, causes and the first lines of the stack, for the list of failures. */
export function errorText(thrown: unknown): string {
  try {
    // Halves of characters, which the server refuses, are replaced.
    return Buffer.from(textOf(thrown)).toString();
  } catch {
    return UNPRINTABLE;
  }
}

function textOf(thrown: unknown): string {
  if (!(thrown instanceof Error)) return typeof thrown === "string" ? thrown : printable(thrown);
  const lines = [`${thrown.name}: ${thrown.message}`];
  const seen = new Set<unknown>([thrown]);
  for (let cause = thrown.cause; cause !== undefined && !seen.has(cause); ) {
    seen.add(cause);
    lines.push(cause instanceof Error ? `caused by ${cause.name}: ${cause.message}` : `caused by ${printable(cause)}`);
    cause = cause instanceof Error ? cause.cause : undefined;
  }
  const frames = String(thrown.stack ?? "").split("\n").filter((line) => line.trimStart().startsWith("at "));
  return [...lines, ...frames.slice(0, STACK_LINES)].join("\n");
}

const UNPRINTABLE = "a value that cannot be shown was thrown";

function printable(value: unknown): string {
  try {
    return String(value);
  } catch {
    return UNPRINTABLE;
  }
}
