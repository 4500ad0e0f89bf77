// The delay after a failed attempt.

import type { TubeAnswer } from "./api.js";
import type { Taskyard } from "./client.js";
import type { Call } from "./connection.js";
import { errorText } from "./errors.js";
import { tubePath } from "./paths.js";

/** The delay after the first failed attempt in a tube without a retry policy, and the longest one, in seconds. */
const DELAY_FIRST = 1;
const DELAY_MAX = 3600;
/** For how long the policy of a tube is remembered, in milliseconds. */
const REMEMBERED_MS = 5_000;
/** How many seconds the server may take to show the tube. */
const READ_SECONDS = 10;

/** How long a failed task waits: at the server, or before its failure is sent. */
export interface Delays {
  /** In seconds; `undefined` leaves it to the tube. */
  server: number | undefined;
  /** In seconds; in tubes whose kind has no delays. */
  here: number;
}

interface TubeRules {
  hasDelays: boolean;
  hasPolicy: boolean;
}

export class RetryDelay {
  private known: Promise<TubeRules> = Promise.resolve({ hasDelays: true, hasPolicy: false });
  private rememberUntil = 0;

  constructor(
    private readonly client: Taskyard,
    private readonly tube: string,
    private readonly backoff: ((attempt: number, error: unknown) => number | undefined) | undefined,
  ) {}

  /** The delays after this attempt, 1 for the first. Never throws. */
  async of(attempt: number, error: unknown): Promise<Delays> {
    const own = this.own(attempt, error);
    const { hasDelays, hasPolicy } = await this.rules();
    if (hasDelays && own === undefined && hasPolicy) return { server: undefined, here: 0 };
    const delay = own ?? Math.min(DELAY_FIRST * 2 ** (attempt - 1), DELAY_MAX);
    return hasDelays ? { server: delay, here: 0 } : { server: undefined, here: delay };
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

  private rules(): Promise<TubeRules> {
    if (performance.now() >= this.rememberUntil) {
      this.rememberUntil = performance.now() + REMEMBERED_MS;
      this.known = this.read(this.known);
    }
    return this.known;
  }

  /** The rules of the tube; those known last if the server does not answer. */
  private async read(last: Promise<TubeRules>): Promise<TubeRules> {
    try {
      const call: Call = { method: "GET", path: tubePath(this.tube), timeout: READ_SECONDS };
      const { kind, retry } = await this.client.connection.once<TubeAnswer>(call);
      return { hasDelays: kind.endsWith("ttl"), hasPolicy: retry != null };
    } catch {
      return last;
    }
  }
}
