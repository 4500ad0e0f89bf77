// The delay after a failed attempt.

import type { FinishPart, TubeAnswer } from "./api.js";
import type { Taskyard } from "./client.js";
import type { Call } from "./connection.js";
import { errorText } from "./errors.js";
import { tubePath } from "./paths.js";

/** The delay after the first failed attempt in a tube without a retry policy, and the longest one, in seconds. */
const DELAY_FIRST = 1;
const DELAY_MAX = 3600;
/** For how long it is remembered whether the tube has delays, in milliseconds; shorter if it could not be read. */
const REMEMBERED_MS = 60_000;
const REMEMBERED_SHORT_MS = 5_000;
/** How many seconds the server may take to show the tube. */
const READ_SECONDS = 10;

/** How long a failed task waits: at the server, or before its failure is sent. */
export interface Delays {
  /** For the server. */
  server: Pick<FinishPart, "delay" | "default_delay">;
  /** Seconds to wait here, in tubes whose kind has no delays. */
  here: number;
}

export class RetryDelay {
  private hasDelays: Promise<boolean> = Promise.resolve(true);
  private rememberUntil = 0;

  constructor(
    private readonly client: Taskyard,
    private readonly tube: string,
    private readonly backoff: ((attempt: number, error: unknown) => number | undefined) | undefined,
  ) {}

  /** The delays after this attempt, 1 for the first. Never throws. */
  async of(attempt: number, error: unknown): Promise<Delays> {
    const delay = this.own(attempt, error);
    // The retry policy of the tube is used instead if it has one.
    const default_delay = Math.min(DELAY_FIRST * 2 ** (attempt - 1), DELAY_MAX);
    const server = delay === undefined ? { default_delay } : { delay };
    return { server, here: (await this.read()) ? 0 : (delay ?? default_delay) };
  }

  private own(attempt: number, error: unknown): number | undefined {
    if (this.backoff === undefined) return undefined;
    try {
      const delay = this.backoff(attempt, error);
      if (delay === undefined || (Number.isFinite(delay) && delay >= 0)) return delay;
      throw new RangeError(`backoff returned ${String(delay)}`);
    } catch (thrown) {
      console.error(`taskyard: backoff failed; the task follows the retry policy of its tube: ${errorText(thrown)}`);
      return undefined;
    }
  }

  /** Whether the server can delay tasks of the tube; as known last if it does not answer. */
  private read(): Promise<boolean> {
    if (performance.now() >= this.rememberUntil) {
      this.rememberUntil = performance.now() + REMEMBERED_MS;
      this.hasDelays = this.ask(this.hasDelays);
    }
    return this.hasDelays;
  }

  private async ask(last: Promise<boolean>): Promise<boolean> {
    try {
      const call: Call = { method: "GET", path: tubePath(this.tube), timeout: READ_SECONDS };
      return (await this.client.connection.once<TubeAnswer>(call)).kind.endsWith("ttl");
    } catch {
      this.rememberUntil = performance.now() + REMEMBERED_SHORT_MS;
      return last;
    }
  }
}
