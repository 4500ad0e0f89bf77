// A task as a handler gets it: its data, and how it ends unless the handler just returns or throws.

import type { OutcomeWord } from "./api.js";
import { type PayloadError, TaskyardError } from "./errors.js";
import type { FinishText } from "./finish_queue.js";
import { objectText, type Task, valueText } from "./payload.js";

/** How many characters of an error are sent when a failure was too large. */
const SHORT_ERROR = 200;

/** What a worker does for its tasks. */
export interface TaskHost {
  /** Sends a finish of a task. */
  finish(task: WorkerTask, part: FinishText): Promise<OutcomeWord>;
  /** Whether no attempt follows a failure of this one, as far as the worker decides that. */
  hasNoRetries(task: WorkerTask): boolean;
  /** Extends the lease of a task. */
  touch(task: WorkerTask, seconds: number): Promise<void>;
}

/** A delivery that a worker holds. */
export class WorkerTask<T = unknown> {
  readonly tube: string;
  readonly id: number;
  /** The number of this delivery, which is never issued twice. */
  readonly lease: number;
  /** Earlier deliveries that failed, were released or lost. */
  readonly attempts: number;
  readonly data: T;
  /** All fields of the task. */
  readonly fields: Task<T>;
  /** Why the payload cannot be decoded. For the worker. */
  payloadError: PayloadError | undefined;
  /** When the lease ends, in milliseconds of the monotonic clock. For the worker. */
  leasedUntil = 0;

  private readonly host: TaskHost;
  private controller: AbortController | undefined;
  private abortReason: Error | undefined;
  private resultText = "";
  private ended = false;

  constructor(fields: Task<T>, host: TaskHost) {
    this.tube = fields.tube;
    this.id = fields.id;
    this.lease = fields.lease as number;
    this.attempts = fields.attempts;
    this.data = fields.data;
    this.fields = fields;
    this.host = host;
  }

  /** Aborted when the lease is lost, when the task ran for too long, or when the worker stops and its grace is over. */
  get signal(): AbortSignal {
    if (this.controller === undefined) {
      this.controller = new AbortController();
      if (this.abortReason !== undefined) this.controller.abort(this.abortReason);
    }
    return this.controller.signal;
  }

  /** Whether an ack, release, bury or failure of this delivery was sent already. */
  get isEnded(): boolean {
    return this.ended;
  }

  /** Whether the end is on its way, so that its answer says whether the delivery was lost. For the worker. */
  isSent = false;

  /** Sets the result that the ack gives: any value up to 64 KiB, kept by tubes with `keep_done`. */
  result(value: unknown): void {
    this.resultText = valueText("result", value);
  }

  /** Whether an ack gives a result. For the worker. */
  get hasResult(): boolean {
    return this.resultText !== "";
  }

  /** Marks the task as done now; otherwise that happens when the handler returns. */
  ack(): Promise<void> {
    return this.end(this.ackPart());
  }

  /** Returns the task to its tube. */
  release(options: { delay?: number; counted?: boolean } = {}): Promise<void> {
    return this.end({ text: this.partText("release", options) });
  }

  /** Sets the task aside until a kick. */
  bury(error?: string): Promise<void> {
    return this.end(this.errorPart("bury", error));
  }

  /**
   * Reports a failure now; otherwise that happens when the handler throws. Without a delay the retry policy applies. After the
   * `retries` of the worker the task is buried with this error.
   */
  fail(error: string, options: { delay?: number } = {}): Promise<void> {
    if (this.host.hasNoRetries(this as WorkerTask)) return this.bury(error);
    return this.end(this.errorPart("fail", error, options));
  }

  /** Extends the lease by this many seconds, in addition to what the worker does. */
  touch(seconds: number): Promise<void> {
    return awaitedOrNot(this.host.touch(this as WorkerTask, seconds));
  }

  /** Cancels the handler. For the worker. */
  abort(reason: Error): void {
    this.abortReason ??= reason;
    this.controller?.abort(reason);
  }

  /** Why the handler was cancelled. */
  get aborted(): Error | undefined {
    return this.abortReason;
  }

  /** The end of a delivery can be sent once; answers whether this is the first. For the worker. */
  beginEnd(): boolean {
    const first = !this.ended;
    this.ended = true;
    return first;
  }

  /** The part of a finish request that acks the task; without its result if it is too large. For the worker. */
  ackPart(): FinishText {
    const begin = `{"verb":"ack","id":${this.id},"lease":${this.lease}`;
    if (!this.hasResult) return { text: `${begin}}` };
    return { text: `${begin},${this.resultText}}`, smaller: () => `${begin}}` };
  }

  /** The part of a finish request with an error; with a shorter one if it is too large. For the worker. */
  errorPart(verb: "bury" | "fail", error: string | undefined, options: object = {}): FinishText {
    const text = this.partText(verb, { error, ...options });
    if (error === undefined || error.length <= SHORT_ERROR) return { text };
    // Half of a character at the end is replaced.
    const short = () => Buffer.from(error.slice(0, SHORT_ERROR)).toString();
    return { text, smaller: () => this.partText(verb, { error: short(), ...options }) };
  }

  /** The part of a finish request with this verb. For the worker. */
  partText(verb: "release" | "bury" | "fail" | "touch", options: object): string {
    return objectText({ verb, id: this.id, lease: this.lease, ...options });
  }

  private end(part: FinishText): Promise<void> {
    return awaitedOrNot(this.sendEnd(part));
  }

  private async sendEnd(part: FinishText): Promise<void> {
    if (!this.beginEnd()) throw new TypeError(`task ${this.id} of tube '${this.tube}' has been finished already`);
    const outcome = await this.host.finish(this as WorkerTask, part);
    if (outcome !== "done") throw leaseLost(this);
  }
}

/** A handler that does not await the promise does not end its process if the delivery is lost. */
function awaitedOrNot(promise: Promise<void>): Promise<void> {
  promise.catch(() => undefined);
  return promise;
}

/** The error for a delivery that has ended. */
export function leaseLost(task: { tube: string; id: number }): TaskyardError {
  return new TaskyardError("lease_lost", `the delivery of task ${task.id} in tube '${task.tube}' has ended; use a longer lease`);
}
