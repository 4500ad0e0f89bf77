// What follows a failed attempt: another one after a delay, or the end of a task whose payload cannot be decoded.

import type { FinishPart, TasksAnswer, TubeAnswer } from "./api.js";
import type { Taskyard } from "./client.js";
import type { Call } from "./connection.js";
import { errorText, TaskyardError } from "./errors.js";
import { tubePath } from "./paths.js";
import { objectText } from "./payload.js";

/** The delay after the first failed attempt in a tube without a retry policy, and the longest one, in seconds. */
const DELAY_FIRST = 1;
const DELAY_MAX = 3600;
/** After how many attempts a task whose payload cannot be decoded is buried if nothing else limits them. */
const UNDECODABLE_MAX = 10;
/** For how long the rules of the tube are remembered, in milliseconds; shorter if they could not be read. */
const REMEMBERED_MS = 60_000;
const REMEMBERED_SHORT_MS = 5_000;
/** How many seconds the server may take to show the tube or tasks. */
const READ_SECONDS = 10;
/** How many tasks one request shows. */
const PEEK_MAX = 1000;

/** How long a failed task waits: at the server, or before its failure is sent. */
export interface Delays {
  /** For the server. */
  server: Pick<FinishPart, "delay" | "default_delay">;
  /** Seconds to wait here, in tubes whose kind has no delays. */
  here: number;
}

/** A question whether a task has a limit of attempts of its own. */
interface LimitQuestion {
  id: number;
  answer: (hasLimit: boolean) => void;
}

/** What is known about a tube. Nothing is buried while it is unknown. */
interface TubeRules {
  /** Whether the server can delay its tasks. */
  hasDelays: boolean;
  /** Whether the server buries tasks after a number of attempts. */
  hasLimit: boolean;
}

export class RetryDelay {
  private rules: Promise<TubeRules> = Promise.resolve({ hasDelays: true, hasLimit: true });
  private rememberUntil = 0;
  private questions: LimitQuestion[] = [];
  private asking = false;

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
    return { server, here: (await this.read()).hasDelays ? 0 : (delay ?? default_delay) };
  }

  /** Whether a task whose payload cannot be decoded had all its attempts, and nothing else limits them. Never throws. */
  async isLastUndecodable(attempt: number, id: number): Promise<boolean> {
    if (attempt < UNDECODABLE_MAX || (await this.read()).hasLimit) return false;
    return !(await new Promise<boolean>((answer) => this.askLimit({ id, answer })));
  }

  /** Asks for the limits of the tasks of a moment in one request, one request at a time. */
  private askLimit(question: LimitQuestion): void {
    this.questions.push(question);
    if (this.asking) return;
    this.asking = true;
    setImmediate(async () => {
      while (this.questions.length > 0) await this.peek(this.questions.splice(0, PEEK_MAX));
      this.asking = false;
    });
  }

  /** Reads the limits of tasks, which deliveries do not show. Never throws. */
  private async peek(questions: LimitQuestion[]): Promise<void> {
    try {
      const body = objectText({ ids: questions.map(({ id }) => id) });
      const call: Call = { method: "POST", path: tubePath(this.tube, "peek"), body, timeout: READ_SECONDS };
      const { tasks } = await this.client.connection.once<TasksAnswer>(call);
      const limited = new Set(tasks.filter((task) => task.attempts_max != null).map(({ id }) => id));
      for (const { id, answer } of questions) answer(limited.has(id));
    } catch (error) {
      if (error instanceof TaskyardError && error.isTooLarge && questions.length > 1) {
        // Tasks are shown with their payloads.
        const half = questions.length >> 1;
        await this.peek(questions.slice(0, half));
        return this.peek(questions.slice(half));
      }
      // A worker that may never see its tasks knows no limit of them. Otherwise the next attempt decides.
      const isForbidden = error instanceof TaskyardError && error.code === "forbidden";
      for (const { answer } of questions) answer(!isForbidden);
    }
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

  /** The rules of the tube; as known last if the server does not answer. */
  private read(): Promise<TubeRules> {
    if (performance.now() >= this.rememberUntil) {
      this.rememberUntil = performance.now() + REMEMBERED_MS;
      this.rules = this.ask(this.rules);
    }
    return this.rules;
  }

  private async ask(last: Promise<TubeRules>): Promise<TubeRules> {
    try {
      const call: Call = { method: "GET", path: tubePath(this.tube), timeout: READ_SECONDS };
      const { kind, attempts_max } = await this.client.connection.once<TubeAnswer>(call);
      return { hasDelays: kind.endsWith("ttl"), hasLimit: attempts_max != null };
    } catch {
      this.rememberUntil = performance.now() + REMEMBERED_SHORT_MS;
      return last;
    }
  }
}
