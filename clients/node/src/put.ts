// Puts tasks so that a put whose answer was lost can be repeated: every task without a key gets a random one.

import { randomUUID } from "node:crypto";

import type { PlacedTask, PutAnswer } from "./api.js";
import type { NewTask } from "./client.js";
import type { Call, Connection } from "./connection.js";
import { TaskyardError } from "./errors.js";
import { tubePath } from "./paths.js";
import { taskText } from "./payload.js";

/** For how many seconds the key of a put stays held after the end of its task: much longer than a put is repeated. */
const UNIQUE_FOR = 600;
/** The longest time that servers wait for capacity, in seconds. */
const TIMEOUT_MAX = 300;

export class Putter {
  /** Whether the store of the server has keys, as far as known. */
  private hasKeys = true;

  constructor(
    private readonly connection: Connection,
    private readonly idempotent: boolean,
  ) {}

  async put(tube: string, tasks: readonly NewTask[], timeout = 0, idempotent = this.idempotent): Promise<PlacedTask[]> {
    if (!idempotent || !this.hasKeys) return this.send(tube, tasks, timeout);
    const keyed = tasks.map((task) => (task.key == null ? { ...task, key: randomUUID(), unique_for: UNIQUE_FOR } : task));
    try {
      const placed = await this.send(tube, keyed, timeout);
      // That a random key exists is the trace of an earlier try of this put.
      return placed.map((task, at) => (tasks[at]?.key == null ? { id: task.id, state: task.state } : task));
    } catch (error) {
      const keysMissing = error instanceof TaskyardError && error.code === "missing_feature";
      if (!keysMissing || tasks.some((task) => task.key != null)) throw error;
    }
    const placed = await this.send(tube, tasks, timeout);
    // Not before: if another feature is the missing one, the put without keys is refused, too.
    this.hasKeys = false;
    return placed;
  }

  private async send(tube: string, tasks: readonly NewTask[], timeout: number): Promise<PlacedTask[]> {
    const wait = Math.min(timeout, TIMEOUT_MAX);
    const texts = tasks.map(taskText);
    const only = texts.length === 1 ? texts[0] : undefined;
    const waiting = wait > 0 ? `,"timeout":${wait}` : "";
    const body = only === undefined ? `{"tasks":[${texts.join(",")}]${waiting}}` : `${only.slice(0, -1)}${waiting}}`;
    const repeatable = tasks.every((task) => this.staysHeld(task, wait));
    const call: Call = { method: "POST", path: tubePath(tube, "put"), body, wait, repeatable };
    return (await this.connection.call<PutAnswer>(call)).tasks;
  }

  /** Whether the key of a task is held while its put is repeated, even if the task ends at once. */
  private staysHeld(task: NewTask, wait: number): boolean {
    return task.key != null && (task.unique_for ?? 0) > this.connection.retrySeconds + wait;
  }
}
