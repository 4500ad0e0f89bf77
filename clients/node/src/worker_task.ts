// A task as a handler gets it: its data, and how it ends unless the handler just returns or throws.

import type { OutcomeWord } from "./api.js";
import { type PayloadError, TaskyardError } from "./errors.js";
import { objectText, type Task, valueText } from "./payload.js";

/** What a worker does for its tasks. */
export interface TaskHost {
  /** Sends a finish of a task. */
  finish(task: WorkerTask, part: string): Promise<OutcomeWord>;
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
  private sent = false;

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

  /** Whether the handler itself has sent the end, so that the lease is not needed any more. For the worker. */
  get isSent(): boolean {
    return this.sent;
  }

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
    return this.end(this.ackText());
  }

  /** Returns the task to its tube. */
  release(options: { delay?: number; counted?: boolean } = {}): Promise<void> {
    return this.end(this.partText("release", options));
  }

  /** Sets the task aside until a kick. */
  bury(error?: string): Promise<void> {
    return this.end(this.partText("bury", { error }));
  }

  /** Reports a failure now; otherwise that happens when the handler throws. Without a delay the retry policy applies. */
  fail(error: string, options: { delay?: number } = {}): Promise<void> {
    return this.end(this.partText("fail", { error, ...options }));
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

  /** The part of a finish request that acks the task. For the worker. */
  ackText(): string {
    const result = this.resultText === "" ? "" : `,${this.resultText}`;
    return `{"verb":"ack","id":${this.id},"lease":${this.lease}${result}}`;
  }

  /** The part of a finish request with this verb. For the worker. */
  partText(verb: "release" | "bury" | "fail" | "touch", options: object): string {
    return objectText({ verb, id: this.id, lease: this.lease, ...options });
  }

  private end(part: string): Promise<void> {
    return awaitedOrNot(this.sendEnd(part));
  }

  private async sendEnd(part: string): Promise<void> {
    if (!this.beginEnd()) throw new TypeError(`task ${this.id} of tube '${this.tube}' has been finished already`);
    this.sent = true;
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
