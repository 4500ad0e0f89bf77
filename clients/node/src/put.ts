// Puts tasks so that a put whose answer was lost can be repeated: every task without a key gets a random one.

import { randomBytes } from "node:crypto";

import type { PlacedTask, PutAnswer } from "./api.js";
import type { NewTask, PutManyOptions } from "./client.js";
import type { Call, Connection } from "./connection.js";
import { TaskyardError } from "./errors.js";
import { tubePath } from "./paths.js";
import { taskText } from "./payload.js";

/** For how many seconds the key of a put stays held after the end of its task: much longer than a put is repeated. */
const UNIQUE_FOR = 600;
/** The longest time that servers wait for capacity, in seconds. */
const TIMEOUT_MAX = 300;

/** A key that no other put has. It begins with the time: stores search keys that follow each other faster. */
function randomKey(): string {
  return `put:${Date.now().toString(16).padStart(12, "0")}${randomBytes(12).toString("hex")}`;
}

export class Putter {
  /** Whether the store of the server has keys, as far as known. */
  private hasKeys = true;

  constructor(
    private readonly connection: Connection,
    private readonly idempotent: boolean,
  ) {}

  async put(tube: string, tasks: readonly NewTask[], options: PutManyOptions): Promise<PlacedTask[]> {
    if (!(options.idempotent ?? this.idempotent) || !this.hasKeys) return this.send(tube, tasks, options);
    const key = randomKey();
    const keyed = tasks.map((task, at) => (task.key == null ? { ...task, key: `${key}.${at}`, unique_for: UNIQUE_FOR } : task));
    try {
      const placed = await this.send(tube, keyed, options);
      // That a random key exists is the trace of an earlier try of this put.
      placed.forEach((task, at) => {
        if (tasks[at]?.key == null) delete task.existing;
      });
      return placed;
    } catch (error) {
      const keysMissing = error instanceof TaskyardError && error.code === "missing_feature";
      if (!keysMissing || tasks.some((task) => task.key != null)) throw error;
    }
    const placed = await this.send(tube, tasks, options);
    // Not before: if another feature is the missing one, the put without keys is refused, too.
    this.hasKeys = false;
    return placed;
  }

  private async send(tube: string, tasks: readonly NewTask[], options: PutManyOptions): Promise<PlacedTask[]> {
    const wait = Math.min(options.timeout ?? 0, TIMEOUT_MAX);
    const texts = tasks.map(taskText);
    const only = texts.length === 1 ? texts[0] : undefined;
    const more = (wait > 0 ? `,"timeout":${wait}` : "") + (options.estimate ? ',"estimate":true' : "");
    const body = only === undefined ? `{"tasks":[${texts.join(",")}]${more}}` : `${only.slice(0, -1)}${more}}`;
    const repeatable = tasks.every((task) => this.staysHeld(task, wait));
    const call: Call = { method: "POST", path: tubePath(tube, "put"), body, wait, repeatable };
    return (await this.connection.call<PutAnswer>(call)).tasks;
  }

  /** Whether the key of a task is held while its put is repeated, even if the task ends at once. */
  private staysHeld(task: NewTask, wait: number): boolean {
    return task.key != null && (task.unique_for ?? 0) > this.connection.retrySeconds + wait;
  }
}
