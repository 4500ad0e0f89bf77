// Sends the finishes of one tube: those of a moment in one request, one request at a time, each until it is answered or its lease is over.

import type { FinishAnswer, OutcomeWord } from "./api.js";
import { finishCall } from "./client.js";
import type { Connection } from "./connection.js";
import { TaskyardError } from "./errors.js";
import { pause } from "./pause.js";

/** The limits of one request. */
const PARTS_MAX = 1000;
const CHARS_MAX = 8 << 20;
/** The first and the longest pause before a request is repeated, in milliseconds. */
const PAUSE_FIRST_MS = 50;
const PAUSE_MAX_MS = 2000;

/** What became of a finish: its outcome, or why the server refused it. */
export type Finished = OutcomeWord | TaskyardError;

/** A delivery whose lease is known. */
export interface Leased {
  /** When the lease ends, in milliseconds of the monotonic clock. */
  leasedUntil: number;
}

/** A part of a finish request. */
export interface FinishText {
  /** As JSON. */
  text: string;
  /** The same with less, for a server or proxy that does not accept a request of this size. */
  smaller?: (() => string) | undefined;
}

interface Finish {
  part: FinishText;
  delivery: Leased;
  settle: (finished: Finished) => void;
}

export class FinishQueue {
  private queue: Finish[] = [];
  private sending = false;
  private inFlight = 0;
  private stopping = false;
  private idle: Array<() => void> = [];
  private readonly abandoned = new AbortController();

  constructor(
    private readonly connection: Connection,
    private readonly tube: string,
    /** How many seconds the server may take to answer; then the request is sent again over another connection. */
    private readonly timeout: number,
    /** Called when a request has to be repeated, and with `undefined` when one is answered. */
    private readonly onProblem: (error: TaskyardError | undefined) => void,
  ) {}

  /** How many finishes were not answered yet. */
  get size(): number {
    return this.queue.length + this.inFlight;
  }

  /** Adds a finish; `settle` is called with what became of it. */
  add(part: FinishText, delivery: Leased, settle: (finished: Finished) => void): void {
    this.queue.push({ part, delivery, settle });
    if (this.sending) return;
    this.sending = true;
    // Finishes of the same moment travel in the same request.
    setImmediate(() => void this.send());
  }

  /** Resolves when nothing is left to send. */
  drained(): Promise<void> {
    return this.sending ? new Promise((resolve) => this.idle.push(resolve)) : Promise.resolve();
  }

  /** From now on nothing is repeated after the end of its lease. */
  beginStop(): void {
    this.stopping = true;
  }

  /** Gives up: what was not answered is settled as unknown. */
  abandon(): void {
    this.abandoned.abort(new TaskyardError("outcome_unknown", "the worker stopped before the server answered"));
  }

  private async send(): Promise<void> {
    while (this.queue.length > 0) {
      const batch = this.nextBatch();
      this.inFlight = batch.length;
      await this.deliver(batch);
    }
    this.sending = false;
    for (const resolve of this.idle.splice(0)) resolve();
  }

  private nextBatch(): Finish[] {
    let count = 0;
    for (let chars = 0; count < this.queue.length && count < PARTS_MAX; count++) {
      chars += this.queue[count]?.part.text.length ?? 0;
      if (chars > CHARS_MAX && count > 0) break;
    }
    return this.queue.splice(0, count);
  }

  /** Sends the request until the server answers or refuses its tasks, or until nothing of it can be delivered any more. */
  private async deliver(batch: Finish[], lost?: TaskyardError): Promise<void> {
    const { signal } = this.abandoned;
    for (let pauseMs = PAUSE_FIRST_MS; batch.length > 0; pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS)) {
      try {
        const call = { ...finishCall(this.tube, batch.map((finish) => finish.part.text)), timeout: this.timeout, signal };
        const { outcomes } = await this.connection.once<FinishAnswer>(call);
        this.onProblem(undefined);
        const finished = lost === undefined ? outcomes : afterLoss(batch, outcomes, lost);
        return batch.forEach((finish, at) => this.settle(finish, finished[at] ?? "missing"));
      } catch (error) {
        if (!(error instanceof TaskyardError) || signal.aborted) return this.settleAll(batch, error as TaskyardError);
        if (error.isAboutTasks) return this.refused(batch, error, lost);
        if (error.isUnknown) lost = error;
        this.onProblem(error);
        batch = this.deliverable(batch, error);
      }
      // An abandoned request fails at once.
      if (batch.length > 0) await pause(pauseMs, signal).catch(() => undefined);
    }
  }

  /**
   * Those of a request that was not executed that may still be delivered. A server that is away may have kept a lease for longer
   * than is known here; nothing is awaited at a stop.
   */
  private deliverable(batch: Finish[], error: TaskyardError): Finish[] {
    if (!this.stopping && !error.isRefused) return batch;
    const now = performance.now();
    this.settleAll(batch.filter(({ delivery }) => delivery.leasedUntil <= now), error);
    return batch.filter(({ delivery }) => delivery.leasedUntil > now);
  }

  /** One bad part refuses the whole request, so the parts are sent in halves until it is alone. */
  private async refused(batch: Finish[], error: TaskyardError, lost: TaskyardError | undefined): Promise<void> {
    if (error.code === "tube_not_found") return batch.forEach((finish) => this.settle(finish, "missing"));
    const [first] = batch;
    if (batch.length > 1) {
      const half = batch.length >> 1;
      await this.deliver(batch.slice(0, half), lost);
      await this.deliver(batch.slice(half), lost);
    } else if (error.isTooLarge && first?.part.smaller !== undefined) {
      this.onProblem(error);
      await this.deliver([{ ...first, part: { text: first.part.smaller() } }], lost);
    } else {
      this.settleAll(batch, error);
    }
  }

  private settleAll(batch: Finish[], error: TaskyardError): void {
    for (const finish of batch) this.settle(finish, error);
  }

  private settle(finish: Finish, finished: Finished): void {
    this.inFlight -= 1;
    finish.settle(finished);
  }
}

/**
 * What outcomes mean after the answer to an earlier request was lost: a delivery that has ended was ended by that request, if
 * its lease has not run out meanwhile; otherwise that is unknown.
 */
function afterLoss(batch: Finish[], outcomes: OutcomeWord[], lost: TaskyardError): Finished[] {
  const now = performance.now();
  return outcomes.map((outcome, at) => {
    const until = batch[at]?.delivery.leasedUntil ?? 0;
    return outcome === "done" || until > now ? "done" : lost;
  });
}
