// Extends the leases of the tasks that a worker holds, and finds those that were lost or ran for too long.

import type { FinishAnswer } from "./api.js";
import { finishCall } from "./client.js";
import type { Connection } from "./connection.js";
import type { TaskyardError } from "./errors.js";
import { pause } from "./pause.js";
import type { WorkerTask } from "./worker_task.js";

/** The longest time between two looks at the tasks, in milliseconds. */
const TICK_MAX_MS = 1000;
/** A task that was taken ahead and has not begun for so many milliseconds is given back, so that another worker can run it. */
const WAITING_MAX_MS = 1000;
/** How many leases one request extends. */
const PARTS_MAX = 1000;

/** A task that is held, with its times in milliseconds of the monotonic clock. */
export interface HeldTask {
  task: WorkerTask;
  /** When it was taken. */
  takenAt: number;
  /** From when the current lease counts. */
  leasedAt: number;
  /** When its handler was called; 0 before, and after it has ended. */
  startedAt: number;
  /** Whether the lease is not extended any more: its end was answered, or the server has ended it. */
  isOver: boolean;
}

/** What the keeper tells its worker. */
export interface LeaseEvents {
  /** The delivery has ended for the server, or its lease ran out while the server did not answer. */
  lost(held: HeldTask, confirmed: boolean): void;
  /** The handler runs longer than it may. */
  overran(held: HeldTask): void;
  /** Tasks that were taken before this time and have not begun wait for too long. */
  waited(takenBefore: number): void;
  /** The server did not extend leases; `undefined` when it does again. */
  problem(error: TaskyardError | undefined): void;
}

export class LeaseKeeper {
  private readonly held = new Map<WorkerTask, HeldTask>();
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
    const now = performance.now();
    const held: HeldTask = { task, takenAt: now, leasedAt: now, startedAt: 0, isOver: false };
    this.leased(held, now);
    this.held.set(task, held);
    return held;
  }

  /** How many tasks are held. */
  get size(): number {
    return this.held.size;
  }

  /** Whether a task was not lost, and its end not answered. */
  has(held: HeldTask): boolean {
    return this.held.has(held.task);
  }

  /** Notes that the handler of a task is called now; answers whether its lease still holds. */
  begin(held: HeldTask): boolean {
    if (!this.has(held)) return false;
    held.startedAt = performance.now();
    if (held.startedAt - held.leasedAt <= this.leaseMs) return true;
    this.lose(held, false);
    return false;
  }

  /** Notes that a handler has ended, or is abandoned. The lease is extended until the end of the task is answered. */
  ended(held: HeldTask): void {
    held.startedAt = 0;
    if (held.isOver) this.held.delete(held.task);
  }

  /** Notes that the end of a task was answered or is not sent. */
  answered(task: WorkerTask): void {
    const held = this.held.get(task);
    if (held === undefined) return;
    held.isOver = true;
    if (held.startedAt === 0) this.held.delete(task);
  }

  close(): void {
    this.closed.abort();
    this.held.clear();
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
    this.events.waited(now - WAITING_MAX_MS);
    const due: HeldTask[] = [];
    for (const held of this.held.values()) {
      if (held.startedAt > 0 && now - held.startedAt > this.runMaxMs) this.events.overran(held);
      if (now - held.leasedAt >= this.leaseMs / 3 && !held.isOver) due.push(held);
    }
    for (let at = 0; at < due.length; at += PARTS_MAX) await this.extend(due.slice(at, at + PARTS_MAX));
    const later = performance.now();
    for (const held of this.held.values()) {
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
        else if (!held.task.isSent) this.lose(held, true);
        // The end that was sent meanwhile was first; its answer is on its way, or was lost.
        else held.isOver = true;
      });
    } catch (error) {
      if (signal.aborted) return;
      if (!(error as TaskyardError).isTooLarge || due.length < 2) return this.events.problem(error as TaskyardError);
      const half = due.length >> 1;
      await this.extend(due.slice(0, half));
      await this.extend(due.slice(half));
    }
  }

  private leased(held: HeldTask, at: number): void {
    held.leasedAt = at;
    held.task.leasedUntil = at + this.leaseMs;
  }

  private lose(held: HeldTask, confirmed: boolean): void {
    // A finish may have been answered while the request was on its way.
    if (!this.held.delete(held.task)) return;
    this.events.lost(held, confirmed);
  }
}
