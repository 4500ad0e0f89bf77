// The worker: takes tasks of a tube and calls a handler for each, several at a time.

import { EventEmitter } from "node:events";

import type { OutcomeWord, TaskAnswer, TasksAnswer } from "./api.js";
import { takeCall, type Taskyard } from "./client.js";
import { errorText, PayloadError, TaskyardError } from "./errors.js";
import { type Finished, FinishQueue, type FinishText } from "./finish_queue.js";
import { type HeldTask, LeaseKeeper } from "./lease_keeper.js";
import { aborted, pause, within } from "./pause.js";
import { type Task, taskOf } from "./payload.js";
import { Prefetch } from "./prefetch.js";
import { ProblemLog } from "./problem_log.js";
import { RetryDelay } from "./retry_delay.js";
import { forgetSignals, stopAtSignals } from "./stop_signals.js";
import { leaseLost, type TaskHost, WorkerTask } from "./worker_task.js";
import { workerName } from "./worker_name.js";

/** The options of a worker. Durations are seconds. */
export interface WorkerOptions<T = any> {
  /**
   * After how many retries a task is buried; when absent, `attempts_max` of the task or of its tube decides. A task that ended its
   * worker more often than that is buried instead of run.
   */
  retries?: number | undefined;
  /** Makes the data of a task from its payload, such as `from` of a class of a contract. What it throws is a `PayloadError`. */
  decode?: ((payload: unknown) => T) | undefined;
  /** How many handlers run at the same time; 1 when absent. */
  concurrency?: number | undefined;
  /** For how long a task is leased; extended while its handler runs. 60 when absent. */
  lease?: number | undefined;
  /** How long a stop waits for running handlers before it cancels them; 30 when absent. */
  grace?: number | undefined;
  /** After how long a handler is cancelled and its task fails; ten times the lease when absent. */
  timeout?: number | undefined;
  /** How many tasks are taken ahead at most; as many as run in 50 ms, up to 1,000, when absent. */
  prefetch?: number | undefined;
  /** The name that lists show; `host:process:program` when absent. */
  name?: string | undefined;
  /** Stop at SIGTERM and SIGINT; on when absent. */
  signals?: boolean | undefined;
  /**
   * The delay after a failed attempt (1 for the first); `undefined` follows the retry policy of the tube. When absent, the retry
   * policy of the tube, or 1 s, 2 s, 4 s and so on up to an hour if it has none.
   */
  backoff?: ((attempt: number, error: unknown) => number | undefined) | undefined;
}

/** Does the work of a task. The task is acked when it resolves and fails when it throws. */
export type Handler<T> = (task: WorkerTask<T>) => unknown;

/** The events of a worker. */
export interface WorkerEvents<T> {
  /** A task was acked. */
  done: [task: WorkerTask<T>];
  /** A handler failed. Without a listener the error is printed. */
  failed: [task: WorkerTask<T>, error: unknown];
  /** The delivery of a task ended before its handler did. */
  lost: [task: WorkerTask<T>];
  /** The server refused something, or does not answer; the worker goes on. Without a listener it is printed. */
  problem: [error: Error];
}

/** The wait of one take, in seconds. */
const WAIT = 20;
/** The same for connections whose requests cannot be hurried: a stop waits for the last take, whose tasks would stay leased. */
const WAIT_SHORT = 1;
/** How much longer the answer to a take may take, in seconds. */
const TAKE_ANSWER = 10;
/** How long a stop waits beyond that for a server that does not answer, in milliseconds. */
const STOP_ANSWER_MS = 2000;
/** How long the last finishes may take to be sent, in milliseconds, if the grace ends before. */
const LAST_FINISHES_MS = 10_000;
/** How long a cancelled handler has to end, in milliseconds. */
const CANCEL_MS = 1000;
/** The shortest time that a finish may take to be answered before it is sent again, in seconds. */
const FINISH_ANSWER_MIN = 1;
/** How many unanswered finishes, and failures that wait, stop further takes. */
const UNANSWERED_MAX = 10_000;
/** The first and the longest pause after a failed take, in milliseconds. */
const PAUSE_FIRST_MS = 100;
const PAUSE_MAX_MS = 5000;
/** The longest time that timers of Node can wait, in milliseconds. */
const PAUSE_LIMIT_MS = 2 ** 31 - 1;

export class Worker<T = unknown> extends EventEmitter<WorkerEvents<T>> implements TaskHost {
  /** The name that lists of workers show. */
  readonly name: string;
  /** Resolves when the worker has stopped. */
  readonly stopped: Promise<void>;
  private readonly concurrency: number;
  private readonly lease: number;
  private readonly grace: number;
  private readonly retries: number | undefined;
  private readonly decode: ((payload: unknown) => T) | undefined;
  private readonly finishes: FinishQueue;
  private readonly leases: LeaseKeeper;
  private readonly prefetch: Prefetch;
  private readonly retryDelay: RetryDelay;
  private readonly problems: ProblemLog;
  private readonly waiting: HeldTask[] = [];
  private readonly running = new Set<HeldTask>();
  /** Failures that were not sent yet. */
  private readonly failing = new Set<Promise<void>>();
  private readonly taking: Promise<void>;
  private readonly takeAborted = new AbortController();
  private readonly graceOver = new AbortController();
  private readonly stopAsked = new AbortController();
  private wake: (() => void) | undefined;
  private starting = false;

  /** Starts to take tasks at once. */
  constructor(
    readonly client: Taskyard,
    readonly tube: string,
    private readonly handler: Handler<T>,
    options: WorkerOptions<T> = {},
  ) {
    super();
    this.name = options.name ?? workerName();
    this.concurrency = checked("concurrency", options.concurrency ?? 1, 1);
    this.lease = checked("lease", options.lease ?? 60, 0.01);
    this.grace = checked("grace", options.grace ?? 30, 0);
    this.retries = options.retries === undefined ? undefined : checked("retries", options.retries, 0);
    this.decode = options.decode;
    const timeout = checked("timeout", options.timeout ?? 10 * this.lease, 0.001);
    this.problems = new ProblemLog(`worker of tube '${tube}'`, (error) => this.notify("problem", error));
    this.prefetch = new Prefetch(this.concurrency, options.prefetch);
    this.retryDelay = new RetryDelay(client, tube, options.backoff);
    const { connection } = client;
    this.finishes = new FinishQueue(connection, tube, Math.max(this.lease / 3, FINISH_ANSWER_MIN), (error) => this.problems.report("finish", error));
    this.leases = new LeaseKeeper(connection, tube, this.lease, 1000 * timeout, {
      lost: (held, confirmed) => this.onLost(held, confirmed),
      overran: (held) => this.onOverrun(held, timeout),
      waited: (takenBefore) => this.onWaited(takenBefore),
      problem: (error) => this.problems.report("lease", error),
    });
    if (options.signals ?? true) stopAtSignals(this);
    this.taking = this.takeTasks();
    this.stopped = aborted(this.stopAsked.signal).then(() => this.finishStop());
  }

  /** Whether the worker takes no more tasks. */
  get stopping(): boolean {
    return this.stopAsked.signal.aborted;
  }

  /**
   * Takes no more tasks, gives back those that were not begun, and waits for the running ones: after `grace` seconds (that of
   * the options when absent) they are cancelled, and a second later given back. Tasks that are given back count no attempt.
   */
  stop(options: { grace?: number } = {}): Promise<void> {
    const grace = options.grace ?? this.grace;
    if (grace === 0) this.graceOver.abort();
    else setTimeout(() => this.graceOver.abort(), 1000 * grace).unref();
    this.stopAsked.abort();
    this.wake?.();
    return this.stopped;
  }

  /** Sends a finish of a task. For tasks. */
  finish(task: WorkerTask, part: FinishText): Promise<OutcomeWord> {
    return new Promise((resolve, reject) => {
      this.send(task, part, (finished) => (finished instanceof Error ? reject(finished) : resolve(finished)));
    });
  }

  /** Sends a finish of a task, whose lease is extended until that is answered. `settle` says whether another one follows. */
  private send(task: WorkerTask, part: FinishText, settle: (finished: Finished) => boolean | void): void {
    task.isSent = true;
    this.finishes.add(part, task, (finished) => {
      if (settle(finished) !== true) this.leases.answered(task);
    });
  }

  /** Whether the retries of a task are used up. For tasks. */
  hasNoRetries(task: { attempts: number }): boolean {
    return this.retries !== undefined && task.attempts >= this.retries;
  }

  /** Extends the lease of a task. For tasks. */
  async touch(task: WorkerTask, seconds: number): Promise<void> {
    const [outcome] = await this.client.touch(this.tube, task, seconds);
    if (outcome !== "done") throw leaseLost(task);
  }

  private async takeTasks(): Promise<void> {
    let pauseMs = PAUSE_FIRST_MS;
    while (!this.stopping) {
      const count = this.wanted();
      if (count < 1) {
        await new Promise<void>((resolve) => (this.wake = resolve));
        continue;
      }
      try {
        await this.takeOnce(count);
        this.problems.report("take", undefined);
        pauseMs = PAUSE_FIRST_MS;
      } catch (error) {
        if (this.stopping) return;
        this.problems.report("take", error as Error);
        await pause(pauseMs, this.stopAsked.signal).catch(() => undefined);
        pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS);
      }
    }
  }

  private async takeOnce(count: number): Promise<void> {
    const { lease, name: worker } = this;
    const call = takeCall(this.tube, { count, lease, worker, wait: this.takeWait, signal: this.takeAborted.signal });
    const hurry = this.client.connection.canHurry ? this.stopAsked.signal : undefined;
    const { tasks } = await this.client.connection.once<TasksAnswer>({ ...call, hurry, timeout: TAKE_ANSWER });
    for (const answer of tasks) {
      this.waiting.push(this.leases.add(this.received(answer) as WorkerTask));
    }
    if (!this.stopping) this.startTasks();
  }

  /** A task of an answer. One whose payload cannot be decoded does not keep the others from their handlers. */
  private received(answer: TaskAnswer): WorkerTask<T> {
    try {
      const fields = taskOf<T>(this.tube, answer);
      if (this.decode !== undefined) fields.data = this.decode(fields.data);
      return new WorkerTask<T>(fields, this);
    } catch (cause) {
      const task = new WorkerTask<T>(answer as Task<T>, this);
      task.payloadError = new PayloadError(`cannot decode the payload: ${errorText(cause).split("\n", 1)[0]}`, { cause });
      return task;
    }
  }

  private get takeWait(): number {
    return this.client.connection.canHurry ? WAIT : WAIT_SHORT;
  }

  /** How many tasks to take now. */
  private wanted(): number {
    if (this.finishes.size + this.failing.size > UNANSWERED_MAX) return 0;
    const ahead = this.prefetch.size;
    if (this.waiting.length > ahead / 2) return 0;
    return Math.min(this.concurrency + ahead - this.running.size - this.waiting.length, 10_000);
  }

  private startTasks(): void {
    // A task that ends at once calls this again: the tasks after it begin here, and not inside of it.
    if (this.starting) return;
    this.starting = true;
    while (this.running.size < this.concurrency && !this.stopping) {
      const held = this.waiting.shift();
      if (held === undefined) break;
      // A task whose lease was lost while it waited is not begun.
      if (this.leases.begin(held)) void this.work(held);
    }
    this.starting = false;
    this.wake?.();
  }

  private async work(held: HeldTask): Promise<void> {
    const task = held.task as WorkerTask<T>;
    const began = held.startedAt;
    this.running.add(held);
    try {
      this.checkBegin(task);
      await this.handler(task);
      if (task.beginEnd()) this.ack(task);
    } catch (error) {
      if (task.beginEnd()) void this.fail(task, error);
    }
    this.prefetch.ran(performance.now() - began);
    this.leases.ended(held);
    if (this.running.delete(held)) this.startTasks();
  }

  /** Throws if the handler must not be called. */
  private checkBegin(task: WorkerTask<T>): void {
    if (this.retries !== undefined && task.attempts > this.retries) {
      throw new Error(`${task.attempts} deliveries failed or were lost; kick it with reset_attempts to run it again`);
    }
    if (task.payloadError !== undefined) throw task.payloadError;
  }

  private ack(task: WorkerTask<T>): void {
    this.send(task as WorkerTask, task.ackPart(), (finished) => {
      const isFailed = finished instanceof Error && this.refuseAck(task, finished);
      if (finished === "done") this.notify("done", task);
      else if (!(finished instanceof Error) && task.aborted === undefined) this.notify("lost", task);
      this.wake?.();
      return isFailed;
    });
  }

  /** The server refuses an ack whose result is nested too deeply: then the task fails, and this answers true. */
  private refuseAck(task: WorkerTask<T>, error: TaskyardError): boolean {
    if (error.isAboutTasks && !error.isTooLarge && task.hasResult) {
      task.isSent = false;
      void this.fail(task, error);
      return true;
    }
    this.problems.report("finish", error);
    // Refused until the end of the lease, for example because of its token.
    if (error.isRefused) this.notify("lost", task);
    return false;
  }

  /** Reports a failure; never rejects. */
  private fail(task: WorkerTask<T>, thrown: unknown): Promise<void> {
    const failing = this.sendFailure(task, thrown).catch((error: unknown) => {
      this.problems.report("finish", error as Error);
      this.leases.answered(task as WorkerTask);
    });
    this.failing.add(failing);
    return failing.then(() => {
      this.failing.delete(failing);
      this.wake?.();
    });
  }

  private async sendFailure(task: WorkerTask<T>, thrown: unknown): Promise<void> {
    const reason = task.aborted;
    if (reason instanceof TaskyardError) return;
    if (reason instanceof StopError) return this.giveBack(task);
    const error = reason ?? thrown;
    const text = errorText(error);
    if (this.listenerCount("failed") > 0) this.notify("failed", task, error);
    else console.error(`taskyard: task ${task.id} of tube '${this.tube}' failed: ${text}`);
    if (await this.isLast(task, error)) {
      return this.send(task as WorkerTask, task.errorPart("bury", text), (finished) => this.ended(task, finished));
    }
    const { server, here } = await this.retryDelay.of(task.attempts + 1, error);
    // A tube without delays would deliver the task again at once. A stop does not wait.
    if (here > 0) await pause(Math.min(1000 * here, PAUSE_LIMIT_MS), this.stopAsked.signal).catch(() => undefined);
    if (task.aborted instanceof TaskyardError) return;
    this.send(task as WorkerTask, task.errorPart("fail", text, server), (finished) => this.ended(task, finished));
  }

  /** Whether no attempt follows, as far as the worker decides that and not the server. */
  private async isLast(task: WorkerTask<T>, error: unknown): Promise<boolean> {
    if (this.retries !== undefined) return this.hasNoRetries(task);
    return error instanceof PayloadError && this.retryDelay.isLastUndecodable(task.attempts + 1, task.id);
  }

  private giveBack(task: WorkerTask<T>): void {
    this.send(task as WorkerTask, { text: task.partText("release", { counted: false }) }, (finished) => this.ended(task, finished));
  }

  private ended(task: WorkerTask<T>, finished: Finished): void {
    if (finished instanceof Error) this.problems.report("finish", finished);
    else if (finished !== "done" && task.aborted === undefined) this.notify("lost", task);
    this.wake?.();
  }

  private onLost(held: HeldTask, confirmed: boolean): void {
    const task = held.task as WorkerTask<T>;
    // If the lease only ran out here, the server decides whether the end of the delivery still counts.
    if (confirmed) task.beginEnd();
    task.abort(leaseLost(task));
    this.notify("lost", task);
    // A handler that does not end when it is cancelled is abandoned: another task gets its place.
    setTimeout(() => this.running.delete(held) && this.startTasks(), CANCEL_MS).unref();
  }

  private onOverrun(held: HeldTask, timeout: number): void {
    const task = held.task as WorkerTask<T>;
    if (task.aborted === undefined) return task.abort(new Error(`ran longer than ${timeout} s`));
    // The handler did not end when it was cancelled: it is abandoned.
    this.leases.ended(held);
    if (task.beginEnd()) void this.fail(task, task.aborted);
    if (this.running.delete(held)) this.startTasks();
  }

  /** Slow handlers have all places: what waits for one is left to other workers, and fewer tasks are taken ahead. */
  private onWaited(takenBefore: number): void {
    // Those that were taken first are first.
    const later = this.waiting.findIndex((held) => held.takenAt >= takenBefore);
    const count = later < 0 ? this.waiting.length : later;
    if (count === 0) return;
    this.prefetch.waited();
    this.giveBackWaiting(count);
  }

  /** Gives back the first tasks that wait, unless they were lost. */
  private giveBackWaiting(count: number): void {
    for (const held of this.waiting.splice(0, count)) {
      if (this.leases.has(held)) this.giveBack(held.task as WorkerTask<T>);
    }
  }

  private async finishStop(): Promise<void> {
    await within(this.taking, STOP_ANSWER_MS + (this.client.connection.canHurry ? 0 : 1000 * WAIT_SHORT));
    this.takeAborted.abort();
    this.giveBackWaiting(this.waiting.length);
    await this.untilIdle(this.graceOver.signal);
    for (const { task } of this.running) task.abort(new StopError());
    if (this.running.size > 0) await this.untilIdle(AbortSignal.timeout(CANCEL_MS));
    for (const held of this.running) {
      this.leases.ended(held);
      if (held.task.beginEnd()) this.giveBack(held.task as WorkerTask<T>);
    }
    this.running.clear();
    await this.sendLast();
    this.finishes.abandon();
    this.leases.close();
    forgetSignals(this);
  }

  /** Sends the last finishes while their leases last, until the grace is over. */
  private async sendLast(): Promise<void> {
    this.finishes.beginStop();
    const over = new AbortController();
    const late = Promise.all([aborted(this.graceOver.signal), pause(LAST_FINISHES_MS, over.signal).catch(() => undefined)]);
    await Promise.race([this.allSent(), late]);
    over.abort();
  }

  /** Resolves when nothing is left to send, also of what follows from the last answers. */
  private async allSent(): Promise<void> {
    while (this.failing.size > 0 || this.finishes.size > 0) {
      await Promise.all(this.failing);
      await this.finishes.drained();
    }
  }

  /** Calls the listeners of an event; an error of one is an uncaught exception of the program and does not stop the worker. */
  private notify(...event: { [E in keyof WorkerEvents<T>]: [E, ...WorkerEvents<T>[E]] }[keyof WorkerEvents<T>]): boolean {
    const [name, ...values] = event;
    try {
      return (this as EventEmitter).emit(name, ...values);
    } catch (error) {
      queueMicrotask(() => {
        throw error;
      });
      return true;
    }
  }

  /** Resolves when no handler runs, or when the signal is aborted. */
  private async untilIdle(signal: AbortSignal): Promise<void> {
    const over = aborted(signal);
    while (this.running.size > 0 && !signal.aborted) {
      await Promise.race([over, new Promise<void>((resolve) => (this.wake = resolve))]);
    }
  }
}

/** Why a handler was cancelled: the worker stops, and its grace is over. */
class StopError extends Error {
  constructor() {
    super("the worker stops");
    this.name = "StopError";
  }
}

function checked(name: string, value: number, least: number): number {
  if (!(value >= least) || !Number.isFinite(value)) throw new RangeError(`${name} must be a number of at least ${least}, not ${value}`);
  return value;
}
