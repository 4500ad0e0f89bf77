// Decides how many tasks a worker takes ahead: as many as it finishes in a moment, so that long tasks are left to others.

/** For how long the tasks that were taken ahead should last, in milliseconds. */
const AHEAD_MS = 50;
const AHEAD_MAX = 1000;
/** The weight of the latest run in the average. */
const WEIGHT = 0.05;

export class Prefetch {
  private averageMs: number | undefined;

  constructor(
    private readonly concurrency: number,
    private readonly max = AHEAD_MAX,
  ) {}

  /** A handler ran for this long. */
  ran(ms: number): void {
    this.averageMs = this.averageMs === undefined ? ms : this.averageMs + WEIGHT * (ms - this.averageMs);
  }

  /** How many tasks to hold in addition to those that run. */
  get size(): number {
    if (this.averageMs === undefined) return 0;
    return Math.min(this.max, Math.floor((this.concurrency * AHEAD_MS) / Math.max(this.averageMs, 0.001)));
  }
}
