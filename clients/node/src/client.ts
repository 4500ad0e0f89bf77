// The client: one method for each call of the HTTP API.

import type {
  AlterRequest,
  AuditAnswer,
  ConsumerAnswer,
  ConsumersAnswer,
  CreateAnswer,
  CreateRequest,
  DeliveriesAnswer,
  DeliveryAnswer,
  FinishAnswer,
  FinishPart,
  HealthAnswer,
  KickAnswer,
  ManagerAnswer,
  OutcomeWord,
  PlacedTask,
  PositionAnswer,
  PositionsAnswer,
  PutTask,
  SeriesAnswer,
  ServiceInfo,
  ServicesAnswer,
  StatsAnswer,
  TakeRequest,
  TaskActionAnswer,
  TaskActionRequest,
  TaskAnswer,
  TaskFilterRequest,
  TaskPageAnswer,
  TasksAnswer,
  TubeAnswer,
  TubesAnswer,
  WorkersAnswer,
} from "./api.js";
import { type Call, Connection, type ConnectionOptions } from "./connection.js";
import { TaskyardError } from "./errors.js";
import { queryText, tubePath } from "./paths.js";
import { objectText, type Task, taskOf, valueText } from "./payload.js";
import { Putter } from "./put.js";
import { Schedules } from "./schedules.js";
import { Semaphores } from "./semaphores.js";
import { workerName } from "./worker_name.js";

/** The options of a client. */
export interface ClientOptions extends ConnectionOptions {
  /**
   * Give every put without a key a random key, so that a put whose answer was lost can be repeated and adds one task only; on
   * when absent. On a store without keys such puts are not repeated.
   */
  idempotent?: boolean | undefined;
}

/** The options of a put: those of the task, and `timeout`, the seconds to wait while the tube is full. */
export interface PutOptions extends Omit<PutTask, "data" | "data_base64" | "meta_base64"> {
  timeout?: number | undefined;
  /** Overrides the option of the client. */
  idempotent?: boolean | undefined;
  /** Answer with the position of the task, and when it will start; for at most 100 tasks. */
  estimate?: boolean | undefined;
}

/** The options of a put that are not those of a task. */
export type PutManyOptions = Pick<PutOptions, "timeout" | "idempotent" | "estimate">;

/** A task to put, with its options. */
export interface NewTask<T = unknown> extends Omit<PutOptions, "timeout" | "idempotent" | "estimate"> {
  data: T;
}

/** The options of a take. */
export interface TakeOptions extends Omit<TakeRequest, "base64"> {
  /** Ends the wait. A task that the server delivers in that moment is ready again when its lease expires. */
  signal?: AbortSignal | undefined;
}

/** A delivery: a task as it was taken, or its numbers. */
export interface Held {
  id: number;
  lease?: number | null | undefined;
}

/** Which tasks of a tube a list shows. */
export interface TaskQuery extends Omit<TaskFilterRequest, "state"> {
  state?: string | readonly string[] | undefined;
  order?: "id" | "queue" | undefined;
  after?: string | undefined;
  limit?: number | undefined;
  /** Answer with the positions of waiting tasks, and when they will start. */
  estimate?: boolean | undefined;
}

/** Whether an answer has estimates. */
export interface EstimateOptions {
  estimate?: boolean | undefined;
}

/** A page of tasks; `next` is the `after` of the next page. */
export interface TaskPage<T = unknown> {
  tasks: Array<Task<T>>;
  next?: string | null | undefined;
  scanned: number;
}

/** The longest wait that servers accept, in seconds. */
const WAIT_MAX = 300;

/**
 * A client of a Taskyard server. The names of options and fields are those of the HTTP API; durations are seconds, moments are
 * seconds since the epoch.
 */
export class Taskyard {
  /** Schedules, which put tasks at times of a calendar or in intervals. */
  readonly schedules: Schedules;
  /** Semaphores and their events. */
  readonly semaphores: Semaphores;
  /** The connections, for parts of this package. */
  readonly connection: Connection;
  private readonly putter: Putter;

  /** Does not connect yet. The URL is TASKYARD_URL or http://127.0.0.1:7070 when absent. */
  constructor(url?: string, options: ClientOptions = {}) {
    this.connection = new Connection(url ?? (process.env["TASKYARD_URL"] || "http://127.0.0.1:7070"), options);
    this.schedules = new Schedules(this.connection);
    this.semaphores = new Semaphores(this.connection);
    this.putter = new Putter(this.connection, options.idempotent ?? true);
  }

  /** Adds a task. When this resolves, the task is as durable as the store. */
  async put(tube: string, data: unknown, options: PutOptions = {}): Promise<PlacedTask> {
    const { timeout, idempotent, estimate, ...task } = options;
    const [placed] = await this.putter.put(tube, [{ ...task, data }], { timeout, idempotent, estimate });
    return placed as PlacedTask;
  }

  /** Adds up to 10,000 tasks: all or none. */
  putMany(tube: string, tasks: readonly NewTask[], options: PutManyOptions = {}): Promise<PlacedTask[]> {
    return this.putter.put(tube, tasks, options);
  }

  /** Takes up to `count` tasks (default 1), waiting up to `wait` seconds for the first; each is leased for `lease` seconds. */
  async take<T = unknown>(tube: string, options: TakeOptions = {}): Promise<Array<Task<T>>> {
    const answer = await this.connection.call<TasksAnswer>(takeCall(tube, options));
    return answer.tasks.map((task) => taskOf<T>(tube, task));
  }

  /** Marks deliveries as done; `result` is kept by tubes with `keep_done`. */
  ack(tube: string, held: Held | readonly Held[], options: { result?: unknown } = {}): Promise<OutcomeWord[]> {
    const result = "result" in options ? [valueText("result", options.result)] : [];
    return this.end(tube, "ack", held, {}, result);
  }

  /** Returns deliveries to the tube. */
  release(tube: string, held: Held | readonly Held[], options: { delay?: number; counted?: boolean } = {}): Promise<OutcomeWord[]> {
    return this.end(tube, "release", held, options);
  }

  /** Sets tasks aside until a kick. */
  bury(tube: string, held: Held | readonly Held[], options: { error?: string } = {}): Promise<OutcomeWord[]> {
    return this.end(tube, "bury", held, options);
  }

  /** Reports failed deliveries; without a delay the retry policy of the tube applies. */
  fail(tube: string, held: Held | readonly Held[], error: string, options: { delay?: number } = {}): Promise<OutcomeWord[]> {
    return this.end(tube, "fail", held, { error, ...options });
  }

  /** Extends deliveries by `seconds`. */
  touch(tube: string, held: Held | readonly Held[], seconds: number): Promise<OutcomeWord[]> {
    // Not repeated when the outcome is unknown: a second touch would extend again.
    return this.end(tube, "touch", held, { seconds }, [], false);
  }

  /** Ends and extends any mixture of deliveries in one step; one outcome for each, in order. */
  async finish(tube: string, parts: readonly FinishPart[]): Promise<OutcomeWord[]> {
    const texts = parts.map(({ result, ...part }) => objectText(part, ...(result === undefined ? [] : [valueText("result", result)])));
    const repeatable = parts.every((part) => part.verb !== "touch");
    return (await this.finishTexts(tube, texts, repeatable)).outcomes;
  }

  /** Makes up to `count` buried tasks ready again; answers how many. */
  async kick(tube: string, count = 1): Promise<number> {
    return (await this.post<KickAnswer>(tubePath(tube, "kick"), { count })).kicked;
  }

  /** Removes tasks by id, in any state. */
  async delete(tube: string, ids: number | readonly number[]): Promise<OutcomeWord[]> {
    return (await this.post<FinishAnswer>(tubePath(tube, "delete"), { ids: [ids].flat() }, true)).outcomes;
  }

  /** Shows tasks by id; unknown ones are left out. */
  async peek<T = unknown>(tube: string, ids: number | readonly number[], options: EstimateOptions = {}): Promise<Array<Task<T>>> {
    const answer = await this.post<TasksAnswer>(tubePath(tube, "peek"), { ids: [ids].flat(), ...options }, true);
    return answer.tasks.map((task) => taskOf<T>(tube, task));
  }

  /** Where up to 100 tasks are in the queue, and when they will start; those that do not wait are left out. */
  async positions(tube: string, ids: number | readonly number[]): Promise<PositionAnswer[]> {
    return (await this.post<PositionsAnswer>(tubePath(tube, "positions"), { ids: [ids].flat() }, true)).tasks;
  }

  /** Shows one task with its failures; `undefined` if there is none of this id. */
  async task<T = unknown>(tube: string, id: number, options: EstimateOptions = {}): Promise<Task<T> | undefined> {
    try {
      return taskOf<T>(tube, await this.get<TaskAnswer>(tubePath(tube, "tasks", String(id)) + queryText(options)));
    } catch (error) {
      if (error instanceof TaskyardError && error.code === "task_not_found") return undefined;
      throw error;
    }
  }

  /** A page of the tasks of a tube. Payloads of more than 1 KiB are cut. */
  async tasks<T = unknown>(tube: string, query: TaskQuery = {}): Promise<TaskPage<T>> {
    const state = query.state === undefined ? undefined : [query.state].flat().join(",");
    const page = await this.get<TaskPageAnswer>(tubePath(tube, "tasks") + queryText({ ...query, state }));
    return { ...page, tasks: page.tasks.map((task) => taskOf<T>(tube, task)) };
  }

  /** All tasks that match, page by page. */
  async *eachTask<T = unknown>(tube: string, query: TaskQuery = {}): AsyncGenerator<Task<T>, void, undefined> {
    for (let after = query.after; ; ) {
      const page = await this.tasks<T>(tube, { ...query, after });
      yield* page.tasks;
      if (page.next == null) return;
      after = page.next;
    }
  }

  /** Makes chosen buried tasks ready again, by `ids` or by a `filter`; one step of it, `next` continues. */
  kickTasks(tube: string, chosen: TaskActionRequest): Promise<TaskActionAnswer> {
    return this.post(tubePath(tube, "tasks", "kick"), chosen);
  }

  /** Removes chosen tasks. */
  deleteTasks(tube: string, chosen: TaskActionRequest): Promise<TaskActionAnswer> {
    return this.post(tubePath(tube, "tasks", "delete"), chosen);
  }

  /** Sets chosen tasks aside. */
  buryTasks(tube: string, chosen: TaskActionRequest): Promise<TaskActionAnswer> {
    return this.post(tubePath(tube, "tasks", "bury"), chosen);
  }

  /** Ends the deliveries of chosen tasks. */
  releaseTasks(tube: string, chosen: TaskActionRequest): Promise<TaskActionAnswer> {
    return this.post(tubePath(tube, "tasks", "release"), chosen);
  }

  /** Removes all tasks of a tube. */
  async truncate(tube: string): Promise<void> {
    await this.post(tubePath(tube, "truncate"), {}, true);
  }

  /** Releases all taken tasks of a tube. */
  async releaseAll(tube: string): Promise<void> {
    await this.post(tubePath(tube, "release-all"), {});
  }

  /** The taken tasks of a tube. */
  async deliveries(tube: string, count = 1000): Promise<DeliveryAnswer[]> {
    return (await this.get<DeliveriesAnswer>(tubePath(tube, "deliveries") + queryText({ count, show: true }))).deliveries;
  }

  /** The takes that wait for tasks of a tube at this server. */
  async consumers(tube: string, count = 1000): Promise<ConsumerAnswer[]> {
    return (await this.get<ConsumersAnswer>(tubePath(tube, "consumers") + queryText({ count }))).consumers;
  }

  /** All tubes with their counters. */
  async tubes(options: EstimateOptions & { internal?: boolean } = {}): Promise<TubeAnswer[]> {
    return (await this.get<TubesAnswer>(`/v1/tubes${queryText(options)}`)).tubes;
  }

  /** One tube; with `estimate` also when its ready tasks will have started. */
  tube(tube: string, options: EstimateOptions = {}): Promise<TubeAnswer> {
    return this.get(tubePath(tube) + queryText(options));
  }

  /** Creates a tube; answers whether it is new. With `if_not_exists` an existing one with the same options is accepted. */
  async createTube(tube: string, options: CreateRequest = {}): Promise<boolean> {
    const call: Call = { method: "PUT", path: tubePath(tube), body: objectText(options), repeatable: options.if_not_exists === true };
    return (await this.connection.call<CreateAnswer>(call)).created;
  }

  /** Changes options of a tube. */
  alterTube(tube: string, options: AlterRequest): Promise<TubeAnswer> {
    return this.connection.call({ method: "PATCH", path: tubePath(tube), body: objectText(options), repeatable: true });
  }

  /** Stops the deliveries of a tube; everything else continues. */
  pause(tube: string): Promise<TubeAnswer> {
    return this.alterTube(tube, { paused: true });
  }

  /** Resumes the deliveries of a tube. */
  resume(tube: string): Promise<TubeAnswer> {
    return this.alterTube(tube, { paused: false });
  }

  /** Renames a tube; its tasks stay. */
  renameTube(tube: string, name: string, options: { queue_num?: number } = {}): Promise<TubeAnswer> {
    return this.post(tubePath(tube, "name"), { name, ...options });
  }

  /** Removes a tube with its tasks; refused while tasks are taken or consumers wait. */
  async dropTube(tube: string): Promise<void> {
    await this.connection.call({ method: "DELETE", path: tubePath(tube) });
  }

  /** All tubes, their totals, and the server: version, store, uptime. */
  stats(options: EstimateOptions & { internal?: boolean } = {}): Promise<StatsAnswer> {
    return this.get(`/v1/stats${queryText(options)}`);
  }

  /** Time series of a tube, or of all tubes. */
  series(options: { tube?: string; from?: number; step?: "1s" | "1m"; all?: boolean } = {}): Promise<SeriesAnswer> {
    return this.get(`/v1/series${queryText(options)}`);
  }

  /** The workers that take tasks from this server. */
  workers(options: { internal?: boolean; limit?: number; after?: string; all?: boolean } = {}): Promise<WorkersAnswer> {
    return this.get(`/v1/workers${queryText(options)}`);
  }

  /** The latest actions of operators and administrators, the newest first. */
  audit(options: { limit?: number } = {}): Promise<AuditAnswer> {
    return this.get(`/v1/audit${queryText(options)}`);
  }

  /** The services hosted beside the queue. */
  async services(): Promise<ServiceInfo[]> {
    return (await this.get<ServicesAnswer>("/v1/services")).services;
  }

  /** The manager of typed workers. */
  manager(): Promise<ManagerAnswer> {
    return this.get("/v1/manager");
  }

  /** Whether the server and its store work. */
  health(): Promise<HealthAnswer> {
    return this.connection.once({ method: "GET", path: "/healthz" });
  }

  /** The metrics of the server, as a text for Prometheus. */
  metrics(): Promise<string> {
    return this.connection.text("/metrics");
  }

  /** The OpenAPI document of the server. */
  openapi(): Promise<Record<string, unknown>> {
    return this.get("/openapi.json");
  }

  /** Closes all connections; calls in progress fail. The client can still be used afterwards. */
  close(): void {
    this.connection.close();
  }

  private async end(
    tube: string,
    verb: FinishPart["verb"],
    held: Held | readonly Held[],
    options: object,
    texts: string[] = [],
    repeatable = true,
  ): Promise<OutcomeWord[]> {
    const parts = [held].flat().map(({ id, lease }) => objectText({ verb, id, lease, ...options }, ...texts));
    return (await this.finishTexts(tube, parts, repeatable)).outcomes;
  }

  private finishTexts(tube: string, parts: readonly string[], repeatable: boolean): Promise<FinishAnswer> {
    return this.connection.call({ ...finishCall(tube, parts), repeatable });
  }

  private get<A>(path: string): Promise<A> {
    return this.connection.call({ method: "GET", path, repeatable: true });
  }

  private post<A>(path: string, body: object, repeatable = false): Promise<A> {
    return this.connection.call({ method: "POST", path, body: objectText(body), repeatable });
  }
}

/** The request of a take. */
export function takeCall(tube: string, options: TakeOptions): Call {
  const { signal, ...rest } = options;
  const wait = Math.min(rest.wait ?? 0, WAIT_MAX);
  const body = objectText({ worker: workerName(), ...rest, wait });
  return { method: "POST", path: tubePath(tube, "take"), body, wait, purpose: "take", signal, repeatable: true };
}

/** The request that finishes deliveries; the parts are JSON texts. */
export function finishCall(tube: string, parts: readonly string[]): Call {
  return { method: "POST", path: tubePath(tube, "finish"), body: `{"tasks":[${parts.join(",")}]}`, purpose: "finish" };
}
