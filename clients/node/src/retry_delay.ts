// The delay after a failed attempt.

import type { Taskyard } from "./client.js";

/** The delay after the first failed attempt in a tube without a retry policy, and the longest one, in seconds. */
const DELAY_FIRST = 1;
const DELAY_MAX = 3600;
/** For how long the policy of a tube is remembered, in milliseconds. */
const REMEMBERED_MS = 60_000;

export class RetryDelay {
  private policy: { hasDelays: boolean; hasPolicy: boolean; until: number } | undefined;

  constructor(
    private readonly client: Taskyard,
    private readonly tube: string,
    private readonly backoff: ((attempt: number, error: unknown) => number | undefined) | undefined,
  ) {}

  /** The delay after this attempt, 1 for the first; `undefined` leaves it to the tube. */
  async of(attempt: number, error: unknown): Promise<number | undefined> {
    if (this.backoff !== undefined) {
      try {
        return this.backoff(attempt, error);
      } catch (thrown) {
        console.error("taskyard: backoff failed; the task follows the retry policy of its tube:", thrown);
        return undefined;
      }
    }
    const { hasDelays, hasPolicy } = await this.current();
    return hasPolicy || !hasDelays ? undefined : Math.min(DELAY_FIRST * 2 ** (attempt - 1), DELAY_MAX);
  }

  private async current(): Promise<{ hasDelays: boolean; hasPolicy: boolean }> {
    if (this.policy !== undefined && performance.now() < this.policy.until) return this.policy;
    try {
      const { kind, retry } = await this.client.tube(this.tube);
      this.policy = { hasDelays: kind.endsWith("ttl"), hasPolicy: retry != null, until: performance.now() + REMEMBERED_MS };
      return this.policy;
    } catch {
      // The server does not answer, or the tube is gone: what was known last.
      return this.policy ?? { hasDelays: true, hasPolicy: false };
    }
  }
}
