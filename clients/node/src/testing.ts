// Runs handlers without a server, for the tests of programs.

import type { OutcomeWord } from "./api.js";
import { errorText } from "./errors.js";
import type { FinishText } from "./finish_queue.js";
import type { Task } from "./payload.js";
import { readJson } from "./json.js";
import type { Handler } from "./worker.js";
import { type TaskHost, WorkerTask } from "./worker_task.js";
import { decode } from "./msgpack.js";

/** How a handler ended its task. */
export interface TaskOutcome {
  verb: "ack" | "release" | "bury" | "fail";
  /** Of an ack. */
  result?: unknown;
  /** Of a failure or a bury. */
  error?: string;
  /** What the handler threw. */
  thrown?: unknown;
  delay?: number;
  counted?: boolean;
}

/** The fields of the task, and a signal that cancels the handler as a lost lease would. */
export interface RunOptions<T> extends Partial<Omit<Task<T>, "data">> {
  signal?: AbortSignal | undefined;
}

/** Calls a handler with a task of this data as a worker would, and answers how it ended the task. Nothing is sent. */
export async function runTask<T>(handler: Handler<T>, data: T, options: RunOptions<T> = {}): Promise<TaskOutcome> {
  const { signal, ...fields } = options;
  const host = new RecordingHost();
  const defaults = { tube: "test", id: 0, lease: 0, attempts: 0, state: "taken", pri: 0, created: Date.now() / 1000 } as const;
  const task = new WorkerTask<T>({ ...defaults, ...fields, data }, host);
  const abort = () => task.abort(signal?.reason instanceof Error ? signal.reason : new Error("cancelled"));
  if (signal?.aborted) abort();
  signal?.addEventListener("abort", abort, { once: true });
  try {
    await handler(task);
    if (task.beginEnd()) host.record(task.ackPart());
  } catch (thrown) {
    if (task.beginEnd()) host.outcome = { verb: "fail", error: errorText(thrown), thrown };
  } finally {
    signal?.removeEventListener("abort", abort);
  }
  return host.outcome as TaskOutcome;
}

class RecordingHost implements TaskHost {
  outcome: TaskOutcome | undefined;

  finish(_task: WorkerTask, part: FinishText): Promise<OutcomeWord> {
    this.record(part);
    return Promise.resolve("done");
  }

  hasNoRetries(): boolean {
    return false;
  }

  touch(): Promise<void> {
    return Promise.resolve();
  }

  record(part: FinishText): void {
    const { id: _id, lease: _lease, result_base64: packed, ...outcome } = readJson(part.text) as Record<string, unknown>;
    if (typeof packed === "string") outcome["result"] = decode(Buffer.from(packed, "base64"));
    this.outcome = outcome as unknown as TaskOutcome;
  }
}
