// Extends the leases of the tasks that a worker holds, and finds those that were lost or ran for too long.

import type { FinishAnswer } from "./api.js";
import { finishCall } from "./client.js";
import type { Connection } from "./connection.js";
import type { TaskyardError } from "./errors.js";
import { pause } from "./pause.js";
import type { WorkerTask } from "./worker_task.js";

/** The longest time between two looks at the tasks, in milliseconds. */
const TICK_MAX_MS = 1000;
/** How many leases one request extends. */
const PARTS_MAX = 1000;

/** A task that is held, with its times in milliseconds of the monotonic clock. */
export interface HeldTask {
  task: WorkerTask;
  /** From when the current lease counts. */
  leasedAt: number;
  /** When its handler was called; 0 before, and after it has ended. */
  startedAt: number;
}

/** What the keeper tells its worker. */
export interface LeaseEvents {
  /** The delivery has ended for the server, or its lease ran out while the server did not answer. */
  lost(held: HeldTask, confirmed: boolean): void;
  /** The handler runs longer than it may. */
  overran(held: HeldTask): void;
  /** The server did not extend leases; `undefined` when it does again. */
  problem(error: TaskyardError | undefined): void;
}

export class LeaseKeeper {
  readonly held = new Set<HeldTask>();
  private readonly leaseMs: number;
  private readonly closed = new AbortController();

  constructor(
    private readonly connection: Connection,
    private readonly tube: string,
    lease: number,
    private readonly runMaxMs: number,
    private readonly events: LeaseEvents,
  ) {
    this.leaseMs = 1000 * lease;
    void this.run();
  }

  /** Notes that a task was taken. */
  add(task: WorkerTask): HeldTask {
    const held: HeldTask = { task, leasedAt: 0, startedAt: 0 };
    this.leased(held, performance.now());
    this.held.add(held);
    return held;
  }

  /** Notes that the handler of a task is called now; answers whether its lease still holds. */
  begin(held: HeldTask): boolean {
    if (!this.held.has(held)) return false;
    held.startedAt = performance.now();
    if (held.startedAt - held.leasedAt <= this.leaseMs) return true;
    this.lose(held, false);
    return false;
  }

  close(): void {
    this.closed.abort();
  }

  private async run(): Promise<void> {
    const tick = Math.min(this.leaseMs / 3, TICK_MAX_MS);
    for (;;) {
      try {
        await pause(tick, this.closed.signal);
      } catch {
        return;
      }
      await this.look(performance.now());
    }
  }

  private async look(now: number): Promise<void> {
    const due: HeldTask[] = [];
    for (const held of this.held) {
      if (held.startedAt > 0 && now - held.startedAt > this.runMaxMs) this.events.overran(held);
      if (now - held.leasedAt >= this.leaseMs / 3 && !held.task.isSent) due.push(held);
    }
    for (let at = 0; at < due.length; at += PARTS_MAX) await this.extend(due.slice(at, at + PARTS_MAX));
    const later = performance.now();
    for (const held of this.held) {
      if (later - held.leasedAt > this.leaseMs && !held.task.isSent) this.lose(held, false);
    }
  }

  private async extend(due: HeldTask[]): Promise<void> {
    const now = performance.now();
    // The time that has really passed: the server may have been unreachable meanwhile.
    const passed = due.map((held) => Math.min(now - held.leasedAt, this.leaseMs));
    const parts = due.map((held, at) => held.task.partText("touch", { seconds: (passed[at] ?? 0) / 1000 }));
    const { signal } = this.closed;
    const call = { ...finishCall(this.tube, parts), signal, timeout: this.leaseMs / 3000 };
    try {
      const { outcomes } = await this.connection.once<FinishAnswer>(call);
      this.events.problem(undefined);
      outcomes.forEach((outcome, at) => {
        const held = due[at];
        if (held === undefined) return;
        if (outcome === "done") this.leased(held, now);
        // The end that the handler sent meanwhile was first.
        else if (!held.task.isSent) this.lose(held, true);
      });
    } catch (error) {
      if (signal.aborted) return;
      this.events.problem(error as TaskyardError);
    }
  }

  private leased(held: HeldTask, at: number): void {
    held.leasedAt = at;
    held.task.leasedUntil = at + this.leaseMs;
  }

  private lose(held: HeldTask, confirmed: boolean): void {
    // A finish may have been sent while the request was on its way.
    if (!this.held.delete(held)) return;
    this.events.lost(held, confirmed);
  }
}
