// Decides how many tasks a worker takes ahead: as many as it finishes in a moment, so that long tasks are left to others.

/** For how long the tasks that were taken ahead should last, in milliseconds. */
const AHEAD_MS = 50;
const AHEAD_MAX = 1000;
/** How long handlers are taken to run, in milliseconds at least, when tasks waited for too long. */
const SLOW_MS = 1000;
/** The weight of the latest run in the average. */
const WEIGHT = 0.05;

export class Prefetch {
  private averageMs: number | undefined;
  /** Whether nothing is taken ahead until a handler ends. */
  private paused = false;

  constructor(
    private readonly concurrency: number,
    private readonly max = AHEAD_MAX,
  ) {}

  /** A handler ran for this long. */
  ran(ms: number): void {
    this.paused = false;
    this.averageMs = this.averageMs === undefined ? ms : this.averageMs + WEIGHT * (ms - this.averageMs);
  }

  /** Tasks that were taken ahead waited for too long. */
  waited(): void {
    this.paused = true;
    this.averageMs = Math.max(this.averageMs ?? 0, SLOW_MS);
  }

  /** How many tasks to hold in addition to those that run. */
  get size(): number {
    if (this.averageMs === undefined || this.paused) return 0;
    return Math.min(this.max, Math.floor((this.concurrency * AHEAD_MS) / Math.max(this.averageMs, 0.001)));
  }
}
