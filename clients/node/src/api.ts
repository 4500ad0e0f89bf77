// The types of the HTTP API. Generated from the OpenAPI document by scripts/api.mjs; changes here are lost.

/** Deliveries to ack: `tasks`, or `id` and `lease` of one. */
export interface AckRequest {
  /** The one task, instead of `tasks`. */
  id?: number | null | undefined;
  /** Its lease number. */
  lease?: number | null | undefined;
  /** The result, any JSON value up to 64 KiB as MessagePack: kept with the done tasks if their tube keeps those. */
  result?: Payload | null | undefined;
  /** The result as MessagePack in base64, instead of `result`. */
  result_base64?: Packed | null | undefined;
  /** Answer with the tasks as they are afterwards. */
  show?: boolean | undefined;
  /** Several deliveries. */
  tasks?: Delivery[] | null | undefined;
}

/** Which events have arrived. */
export interface AcknowledgeRequest {
  /** Their numbers; those that are not there do no harm. */
  events: number[];
}

/** How many events were acknowledged. */
export interface AcknowledgedAnswer {
  /** Those that were there. */
  acknowledged: number;
}

/** What to change about a tube. An absent option stays; `null` removes a limit. */
export interface AlterRequest {
  /** Deliveries before a task is buried; `null` is no limit. */
  attempts_max?: number | null | undefined;
  /** Most tasks of any state; 0 accepts none, `null` is no limit. */
  capacity?: number | null | undefined;
  /** Default delay in seconds; `null` is none. */
  delay?: number | null | undefined;
  /** How many seconds done tasks are kept; `null` removes them. */
  keep_done?: number | null | undefined;
  /** Most done tasks to keep. */
  keep_done_max?: number | null | undefined;
  /** Stop deliveries (`true`) or resume them (`false`). */
  paused?: boolean | null | undefined;
  /** Default priority; smaller goes first. */
  pri?: number | null | undefined;
  /** How many deliveries it allows; `null` is no limit. */
  rate?: RateRequest | null | undefined;
  /** The delays before further attempts; `null` is none. */
  retry?: RetryRequest | null | undefined;
  /** Whether tasks whose lease expired wait as failed ones do. */
  retry_lost?: boolean | null | undefined;
  /** Default time to live in seconds; `null` is none. */
  ttl?: number | null | undefined;
  /** Default time to run in seconds; `null` is none. */
  ttr?: number | null | undefined;
}

/** The latest audit entries of this server. */
export interface AuditAnswer {
  /** The entries, the newest first. */
  entries: AuditEntry[];
  /** How many entries could not be written to the audit file. */
  errors?: number | undefined;
}

/** One action: a line of the audit file. */
export interface AuditEntry {
  /** What was done: `delete`, `drop_tube`, `reload_users`. */
  action: string;
  /** The address of the client. */
  address?: string | null | undefined;
  /** More about the request, without payloads and secrets. */
  detail?: string | null | undefined;
  /** Why it was refused, or failed. */
  error?: string | null | undefined;
  /** The filter by which tasks were chosen. */
  filter?: string | null | undefined;
  /** How many tasks the request named. */
  ids?: number | null | undefined;
  /**
   * How many attempts of this user without effect before this one have no entry, because there were too
   * many.
   */
  omitted?: number | undefined;
  /** What came of it. */
  outcome: AuditOutcome;
  /** `http`, `iproto`, or `file` for the users that were read from their file. */
  protocol: string;
  /** The name of the tube, semaphore or schedule. */
  target?: string | null | undefined;
  /** `tube`, `semaphore`, `schedule`, or `server`. */
  target_kind: string;
  /** How many tasks were changed; absent if that is not known. */
  tasks?: number | null | undefined;
  /** When it ended, in UTC: `2026-11-17T19:04:46.123Z`. */
  time: string;
  /** The user; absent for what the server found by itself. */
  user?: string | null | undefined;
}

/** What came of an action. */
export type AuditOutcome = "done" | "refused" | "failed" | "unknown";

export type BTreeMap = Record<string, number>;

/** Deliveries to bury: `tasks`, or `id` and `lease` of one. */
export interface BuryRequest {
  /** What went wrong: kept with the tasks, cut to 1 KiB. */
  error?: string | null | undefined;
  /** The one task, instead of `tasks`. */
  id?: number | null | undefined;
  /** Its lease number. */
  lease?: number | null | undefined;
  /** Answer with the tasks as they are afterwards. */
  show?: boolean | undefined;
  /** Several deliveries. */
  tasks?: Delivery[] | null | undefined;
}

/** How many estimates of a tube held, of those that this server gave and whose tasks started on it. */
export interface CalibrationAnswer {
  /** Tasks that had an estimate and started. */
  checked: number;
  /** Those that started within p50. */
  within_p50: number;
  /** Those that started within p90; the ones within p50 count as well. */
  within_p90: number;
}

/** How often each operation took effect since the store was opened. */
export interface CallCounts {
  /** Tasks finished by their holder. */
  ack: number;
  /** Tasks buried. */
  bury: number;
  /** Delays that ended. */
  delay: number;
  /** Tasks deleted, by a request or by their ttl. */
  delete: number;
  /** Buried tasks brought back. */
  kick: number;
  /** Tasks put. */
  put: number;
  /** Tasks given back. */
  release: number;
  /** Deliveries. */
  take: number;
  /** Deliveries extended. */
  touch: number;
  /** Tasks removed by their ttl. */
  ttl: number;
  /** Deliveries whose time was over. */
  ttr: number;
}

/** What happens with times that passed while no server fired them. */
export type CatchUpWord = "none" | "last" | "all";

/** What a put does whose key is held. */
export type ConflictWord = "keep" | "replace";

/** One waiting take. */
export interface ConsumerAnswer {
  /** The session that waits, if it is one. */
  session?: string | null | undefined;
  /** Since when, in seconds since the epoch. */
  since: number;
  /** The tube it waits on. */
  tube: string;
  /** Until when, unless it waits for ever. */
  until?: number | null | undefined;
}

/** The waiting consumers. */
export interface ConsumersAnswer {
  /** The waiting takes, oldest first. */
  consumers: ConsumerAnswer[];
}

/** Whether the tube is new. */
export interface CreateAnswer {
  /** `false` if it existed already. */
  created: boolean;
}

/**
 * The options of a new tube. Every option has a default; times are seconds and may have a
 * fraction.
 */
export interface CreateRequest {
  /** Bury a task instead of giving it back when this many deliveries have failed. */
  attempts_max?: number | null | undefined;
  /** Most tasks of any state; 0 accepts none, no limit when absent. A `limfifottl` tube needs one. */
  capacity?: number | null | undefined;
  /** Delay of a task whose put names none, in seconds. */
  delay?: number | null | undefined;
  /**
   * Leave an existing tube of that name as it is instead of refusing; refused if it differs in one of the options
   * given here.
   */
  if_not_exists?: boolean | undefined;
  /** Keep done tasks for this many seconds, with their results; they are removed at once when absent. */
  keep_done?: number | null | undefined;
  /** Most done tasks to keep, 10000 when absent; the oldest are removed first. */
  keep_done_max?: number | null | undefined;
  /** The preset; `fifottl` when absent. */
  kind?: KindWord | null | undefined;
  /** Ignore options that the kind does not have, and those that differ from an existing tube, instead of refusing them. */
  lenient?: boolean | undefined;
  /** Begin without deliveries, until it is resumed. */
  paused?: boolean | null | undefined;
  /** Priority of a task whose put names none; smaller goes first. */
  pri?: number | null | undefined;
  /** The permanent number of its queue in a contract; no other tube has it. */
  queue_num?: number | null | undefined;
  /** How many deliveries it allows; no limit when absent. */
  rate?: RateRequest | null | undefined;
  /**
   * The delays before further attempts of failed deliveries whose `fail` names no delay; they are ready at once when
   * absent.
   */
  retry?: RetryRequest | null | undefined;
  /** Whether tasks whose lease expired wait as failed ones do. */
  retry_lost?: boolean | null | undefined;
  /** The key of a semaphore: tasks are ready only while they hold a grant of it. Not for kinds with sub-queues. */
  semaphore?: string | null | undefined;
  /** Whether its tasks may be lost at a restart, for speed. */
  temporary?: boolean | null | undefined;
  /**
   * Time to live of a task whose put names none, in seconds. Like `ttr`, `delay`, `pri` and
   * `ttl_kills_taken` only for the kinds that end in `ttl`.
   */
  ttl?: number | null | undefined;
  /** Let the ttl end a delivery, as Tarantool's queue does. */
  ttl_kills_taken?: boolean | null | undefined;
  /** Time to run of a task whose put names none, in seconds. */
  ttr?: number | null | undefined;
}

/** Tasks to remove, also if they are taken. */
export interface DeleteRequest {
  /** Their numbers in the tube. */
  ids: number[];
  /** Answer with the tasks as they were last. */
  show?: boolean | undefined;
}

/** The current deliveries. */
export interface DeliveriesAnswer {
  /** The taken tasks, by id. */
  deliveries: DeliveryAnswer[];
}

/** A delivery: the task and, to make sure that it is still the caller's, the lease number. */
export interface Delivery {
  /** The task's number in the tube. */
  id: number;
  /**
   * The lease number from the answer to take. Without it the current delivery is meant, of any
   * holder.
   */
  lease?: number | null | undefined;
}

/** One taken task and its holder. */
export interface DeliveryAnswer {
  /** The task's number in the tube. */
  id: number;
  /** The number of the delivery. */
  lease?: number | null | undefined;
  /** The session that holds it, if one does. */
  session?: string | null | undefined;
  /** The whole task without its payload, if it was asked for. */
  task?: TaskAnswer | null | undefined;
  /** When the task was taken, in seconds since the epoch. */
  time?: number | null | undefined;
  /** The tube. */
  tube: string;
  /** When the delivery ends by itself. */
  until?: number | null | undefined;
  /** The name of the worker that holds it, if it gave one. */
  worker?: string | null | undefined;
}

/** Percentiles of durations in seconds, with an error of at most 5 %. */
export interface DurationsAnswer {
  /** The median. */
  p50: number;
  /** The 90th percentile. */
  p90: number;
  /** The 99th percentile. */
  p99: number;
}

/** One task and its priority. */
export interface EnqueueItemRequest {
  /** Larger goes first. */
  priority: number;
  /** Any number that the caller gives its task. */
  task: number;
}

/** Tasks to enqueue. */
export interface EnqueueRequest {
  /** The tasks, in the order of their arrival. */
  tasks: EnqueueItemRequest[];
}

/** The error answer to a request. Nothing was done, unless the code is `outcome_unknown`. */
export interface ErrorAnswer {
  /** The error. */
  error: ErrorDetail;
}

/** The error, for programs and for people. */
export interface ErrorDetail {
  /** One of the documented codes. */
  code: string;
  /** The options of the existing tube or semaphore that differ from those in the request. */
  differs?: string | null | undefined;
  /** The feature that the store does not have. */
  feature?: string | null | undefined;
  /** The kind of tube that does not have the verb. */
  kind?: string | null | undefined;
  /** The limit that was exceeded. */
  limit?: number | null | undefined;
  /** What happened, and what to do. */
  message: string;
  /** The queue number that the tube has. */
  queue_num?: number | null | undefined;
  /** The schedule it is about. */
  schedule?: string | null | undefined;
  /** The semaphore it is about. */
  semaphore?: string | null | undefined;
  /** The size that exceeded the limit. */
  size?: number | null | undefined;
  /** The store that does not have the feature. */
  store?: string | null | undefined;
  /** The task it is about. */
  task?: number | null | undefined;
  /** The tube it is about. */
  tube?: string | null | undefined;
}

/** When a task will start, in seconds from now. */
export interface EstimateAnswer {
  /** Tasks that go first: ready ones and those that run. */
  ahead: number;
  /** What decides it: `idle_consumer`, `run_times`, `subqueue`, `rate_limit`, `semaphore` or `delay`. */
  basis: string;
  /** Half of such tasks start within this time. */
  p50: number;
  /** Nine of ten such tasks start within this time. */
  p90: number;
}

/**
 * One event. It may be delivered more than once: (semaphore, task, grant, kind) identifies
 * repetitions.
 */
export interface EventAnswer {
  /** The number of this delivery, from 1. */
  attempt: number;
  /** About which grant. */
  grant: number;
  /** Its number, to be acknowledged. */
  id: number;
  /** What happened. */
  kind: EventWord;
  /** Of which semaphore. */
  semaphore: string;
  /** For which task. */
  task: number;
  /** The tube of the task, if the semaphore belongs to a tube. */
  tube?: string | null | undefined;
}

/** What happened to a grant. */
export type EventWord = "acquired" | "try_release" | "keep" | "revoked" | "expired";

/** Events; each must be acknowledged, or it is delivered again. */
export interface EventsAnswer {
  /** The events; perhaps none. */
  events: EventAnswer[];
}

/** Which events to fetch. */
export interface EventsRequest {
  /** At most how many, 1 to 10000. */
  count?: number | undefined;
  /** Of which semaphore; all when absent. */
  semaphore?: string | null | undefined;
  /** Seconds to wait for the first; 0 answers at once. */
  wait?: number | undefined;
}

/** Deliveries that failed: `tasks`, or `id` and `lease` of one. */
export interface FailRequest {
  /**
   * Seconds before the tasks become ready again if the tube has no retry policy; at once when absent. Not used with
   * `delay`.
   */
  default_delay?: number | null | undefined;
  /**
   * Seconds before the tasks become ready again. When absent, as the retry policy of the tube says, or after
   * `default_delay` if it has none.
   */
  delay?: number | null | undefined;
  /** What went wrong: kept with the tasks, cut to 1 KiB. */
  error: string;
  /** The one task, instead of `tasks`. */
  id?: number | null | undefined;
  /** Its lease number. */
  lease?: number | null | undefined;
  /** Answer with the tasks as they are afterwards. */
  show?: boolean | undefined;
  /** Several deliveries. */
  tasks?: Delivery[] | null | undefined;
}

/** A delivery that failed. */
export interface FailureAnswer {
  /** When it ended. */
  at: number;
  /** Which attempt it was, from 1. */
  attempt: number;
  /** What went wrong. */
  error: string;
  /** How many seconds it lasted. */
  run: number;
  /** The worker, if it gave its name. */
  worker?: string | null | undefined;
}

/** The outcome of each item, in the order of the request. */
export interface FinishAnswer {
  /** How many were done. */
  done: number;
  /** One word for each item. */
  outcomes: OutcomeWord[];
  /** The tasks as they are afterwards, if the request said `show`; `null` where nothing was done. */
  tasks?: Array<TaskAnswer | null> | null | undefined;
}

/** One delivery and how it ends. */
export interface FinishPart {
  /** For `release`: whether the delivery counts as an attempt; it does when absent. */
  counted?: boolean | null | undefined;
  /**
   * For `fail` without `delay`: seconds before the task becomes ready again if the tube has no retry policy; at once when
   * absent.
   */
  default_delay?: number | null | undefined;
  /**
   * For `release` and `fail`: seconds before the task becomes ready again. A `fail` without it follows the retry policy
   * of the tube.
   */
  delay?: number | null | undefined;
  /** For `fail`, and optional for `bury`: what went wrong. */
  error?: string | null | undefined;
  /** The task's number in the tube. */
  id: number;
  /**
   * The lease number from the answer to take. Without it the current delivery is meant, of any
   * holder.
   */
  lease?: number | null | undefined;
  /** For `ack`: the result, kept with a done task. */
  result?: Payload | null | undefined;
  /** The result as MessagePack in base64, instead of `result`. */
  result_base64?: Packed | null | undefined;
  /** For `touch`: how many seconds more. */
  seconds?: number | null | undefined;
  /** How it ends or is extended. */
  verb: FinishWord;
}

/** Deliveries that end in different ways, in one step. */
export interface FinishRequest {
  /** Answer with the tasks as they are afterwards. */
  show?: boolean | undefined;
  /** What to do with which delivery. */
  tasks: FinishPart[];
}

/** How a delivery ends or is extended. */
export type FinishWord = "ack" | "release" | "bury" | "touch" | "fail";

/** The outcome of one grant. */
export type GrantOutcomeWord = "done" | "stale" | "missing" | "not_asked";

/** What to do with one grant. */
export interface GrantRequest {
  /** What to do. */
  finish?: GrantWord | undefined;
  /** Which of its grants; when absent the current one, or its place in the queue. */
  grant?: number | null | undefined;
  /** Seconds from now on, for `extend`. */
  seconds?: number | null | undefined;
  /** Which task. */
  task: number;
}

/** What to do with a grant. */
export type GrantWord = "release" | "yield" | "decline" | "extend";

/** The outcomes of grants. */
export interface GrantsAnswer {
  /** In the order of the request. */
  outcomes: GrantOutcomeWord[];
}

/** What to do with grants. */
export interface GrantsRequest {
  /** The items, in this order. */
  items: GrantRequest[];
}

/** The server runs and its store can be read and written. */
export interface HealthAnswer {
  /**
   * The services hosted beside the queue: `ok` or `unhealthy`. This does not change the status
   * of the server.
   */
  services?: Record<string, string> | undefined;
  /** Always `ok`; an unhealthy server responds with an error. */
  status: string;
  /** The server's version. */
  version: string;
  /** Conditions that an operator should look at before they become a failure of the store. */
  warnings?: string[] | undefined;
}

/** How many buried tasks were brought back. */
export interface KickAnswer {
  /** The number of tasks. */
  kicked: number;
}

/** How many buried tasks to bring back. */
export interface KickRequest {
  /** At most how many, lowest priority number first. */
  count?: number | undefined;
}

/** The preset a tube is created from. */
export type KindWord = "fifo" | "fifottl" | "limfifottl" | "utube" | "utubettl";

/** The status of the manager and the workers. */
export interface ManagerAnswer {
  /** The server that made the plan; absent while there is none. */
  leader?: string | null | undefined;
  /** Whether a server of this store is the leader now. */
  led: boolean;
  /** The number of the plan; absent while there is none. */
  version?: number | null | undefined;
  /** The workers with a recent report, by name. */
  workers: WorkerAnswer[];
}

/** One task of a semaphore. */
export type MemberAnswer = MemberInfoAnswer & {
  /** The tube of the task, if the semaphore belongs to a tube. */
  tube?: string | null | undefined;
};

/** The status of one task. */
export interface MemberInfoAnswer {
  /** When it was enqueued. */
  enqueued: number;
  /** The number of its grant. */
  grant?: number | null | undefined;
  /** Since when it holds the grant. */
  granted?: number | null | undefined;
  /** When the grant ends by itself. */
  lease_until?: number | null | undefined;
  /** When it waits again. */
  not_before?: number | null | undefined;
  /** It declined to release, and is not asked again as long as the same request would be made. */
  pinned?: boolean | undefined;
  /** Larger goes first. */
  priority: number;
  /** Whether it waits or holds a grant. */
  status: StatusWord;
  /** Which task. */
  task: number;
}

/** The status of tasks. */
export interface MemberInfosAnswer {
  /** The tasks; those that do not exist are left out. */
  tasks: MemberInfoAnswer[];
}

/** Tasks that hold grants of a semaphore or wait for them, the best first. */
export interface MembersAnswer {
  /** The `after` of the next page; absent on the last one. */
  next?: string | null | undefined;
  /** The tasks. */
  tasks: MemberAnswer[];
}

/** A server that is not part of an answer about all servers. */
export interface MissingServer {
  /** Why it is missing. */
  reason: string;
  /** Its URL. */
  url: string;
}

/** The new name of a tube. Its tasks stay, taken ones too. */
export interface NameRequest {
  /** The name; the current one is accepted. */
  name: string;
  /** Its permanent number, if it has none yet. */
  queue_num?: number | null | undefined;
}

/** The next times of a schedule. */
export interface NextTimesAnswer {
  /** The times, in order. */
  times: number[];
}

/** Why there is no estimate. */
export interface NoEstimateAnswer {
  /** The reason, for programs: `no_consumer`, `tube_paused` or `no_history`. */
  name: string;
  /** The reason, for people. */
  text: string;
}

/** Done without a result: an empty object. */
export type NothingAnswer = unknown;

/** An empty object. */
export type NothingRequest = unknown;

/** The outcome of one item of a batch. */
export type OutcomeWord = "done" | "stale" | "missing";

/** Whether a time fires while a task of an earlier time exists. */
export type OverlapWord = "allow" | "skip";

/** One MessagePack value, as standard base64. */
export type Packed = string;

/** A part of a service. */
export interface PartInfo {
  /** Its name. */
  part: string;
  /** Its status as text. */
  status: string;
}

/** Any JSON value, nested at most 64 levels deep. */
export type Payload = unknown;

/** Tasks to show. */
export interface PeekRequest {
  /** Always answer with `data_base64`: the payload byte for byte. */
  base64?: boolean | undefined;
  /** Whether the answer says when the tasks will start; for at most 100 tasks. */
  estimate?: boolean | undefined;
  /** Their numbers in the tube. Tasks that do not exist are left out of the answer. */
  ids: number[];
}

/**
 * Percentiles of durations in seconds, with an error of at most 5 %; `null` for an interval without
 * any duration.
 */
export interface PercentilesAnswer {
  /** The median. */
  p50: Array<number | null>;
  /** The 90th percentile. */
  p90: Array<number | null>;
  /** The 99th percentile. */
  p99: Array<number | null>;
}

/** A task that was added, or that held the key of the put. */
export type PlacedTask = QueueAnswer & {
  /** Whether the task held the key, so that none was added. */
  existing?: boolean | undefined;
  /** Its number in the tube. */
  id: number;
  /** `ready` or `delayed`; of a task that held the key its state, which is `done` if it has ended. */
  state: StateWord;
};

/** Where a task is in the queue, and when it will start. */
export interface PositionAnswer {
  /** Ready tasks that go first. */
  ahead: number;
  /** Whether the numbers are estimates themselves, within 5 %: databases do not count many tasks one by one. */
  approximate?: boolean | undefined;
  /** Delayed tasks that go first and will be ready within 1, 2, 4, … seconds. */
  delayed_ahead?: number[] | undefined;
  /** When it will be ready, if it is delayed. */
  due?: number | null | undefined;
  /** When it will start. */
  estimate?: EstimateAnswer | null | undefined;
  /** Its number in the tube. */
  id: number;
  /** Why there is no estimate. */
  no_estimate?: NoEstimateAnswer | null | undefined;
  /** Its priority: smaller goes first. */
  pri: number;
  /** Waiting members of the semaphore of the tube that get a grant first. */
  semaphore_ahead?: number | null | undefined;
  /** Ready tasks of its sub-queue that go first. */
  subqueue_ahead?: number | null | undefined;
  /** Whether a task of its sub-queue runs. */
  subqueue_busy?: boolean | undefined;
}

/** Where tasks are in the queue. */
export interface PositionsAnswer {
  /** The tasks that wait, in the order of the request. */
  tasks: PositionAnswer[];
}

/** Tasks whose positions are asked for. */
export interface PositionsRequest {
  /** Their numbers in the tube, at most 100. Tasks that do not wait are left out of the answer. */
  ids: number[];
}

/** The tasks that were added or held their keys, in the order of the request. */
export interface PutAnswer {
  /** One entry for each task. */
  tasks: PlacedTask[];
}

/** One task or several to add: the fields of a task, or `tasks`. All are added or none. */
export interface PutRequest {
  /** When the task becomes ready, in seconds since the epoch; refused together with `delay`. */
  at?: number | null | undefined;
  /** Bury the task when this many deliveries have failed, at least 1. The tube's when absent. */
  attempts_max?: number | null | undefined;
  /** The payload: any JSON value, `null` too. */
  data?: Payload | null | undefined;
  /** The payload as MessagePack in base64, for values that JSON cannot represent. */
  data_base64?: Packed | null | undefined;
  /** Seconds before the task becomes ready. The tube's when absent. */
  delay?: number | null | undefined;
  /** Whether the answer says when the tasks will start; for at most 100 tasks. */
  estimate?: boolean | undefined;
  /** A key that only one task of the tube has: 1 to 128 bytes. */
  key?: string | null | undefined;
  /** A small object that is stored with the task, at most 1 KiB as MessagePack. */
  meta?: Record<string, unknown> | null | undefined;
  /** The same as MessagePack in base64, for values that JSON cannot represent. */
  meta_base64?: Packed | null | undefined;
  /** What happens if the key is held; `keep` when absent. Needs `key`. */
  on_conflict?: ConflictWord | null | undefined;
  /** Priority: smaller goes first. The tube's when absent. */
  pri?: number | null | undefined;
  /** The priority of the task in the semaphore of the tube, instead of `pri`: larger goes first. */
  semaphore_priority?: number | null | undefined;
  /** The sub-queue, in tubes that have them; `utube` is accepted too. */
  subqueue?: string | null | undefined;
  /** Several tasks. Without it the other fields are the one task. */
  tasks?: PutTask[] | null | undefined;
  /** Seconds to wait for free capacity when the tube is full; 0 answers at once. */
  timeout?: number | null | undefined;
  /** Seconds after which the task is removed if it was not taken. The tube's when absent. */
  ttl?: number | null | undefined;
  /** Seconds a delivery may last before the task is given back. The tube's when absent. */
  ttr?: number | null | undefined;
  /**
   * Seconds for which the key stays held after the end of the task, at most 7 days; 0 when
   * absent. Needs `key`.
   */
  unique_for?: number | null | undefined;
}

/** A task to add. */
export interface PutTask {
  /** When the task becomes ready, in seconds since the epoch; refused together with `delay`. */
  at?: number | null | undefined;
  /** Bury the task when this many deliveries have failed, at least 1. The tube's when absent. */
  attempts_max?: number | null | undefined;
  /** The payload: any JSON value, `null` too. */
  data?: Payload | null | undefined;
  /** The payload as MessagePack in base64, for values that JSON cannot represent. */
  data_base64?: Packed | null | undefined;
  /** Seconds before the task becomes ready. The tube's when absent. */
  delay?: number | null | undefined;
  /** A key that only one task of the tube has: 1 to 128 bytes. */
  key?: string | null | undefined;
  /** A small object that is stored with the task, at most 1 KiB as MessagePack. */
  meta?: Record<string, unknown> | null | undefined;
  /** The same as MessagePack in base64, for values that JSON cannot represent. */
  meta_base64?: Packed | null | undefined;
  /** What happens if the key is held; `keep` when absent. Needs `key`. */
  on_conflict?: ConflictWord | null | undefined;
  /** Priority: smaller goes first. The tube's when absent. */
  pri?: number | null | undefined;
  /** The priority of the task in the semaphore of the tube, instead of `pri`: larger goes first. */
  semaphore_priority?: number | null | undefined;
  /** The sub-queue, in tubes that have them; `utube` is accepted too. */
  subqueue?: string | null | undefined;
  /** Seconds after which the task is removed if it was not taken. The tube's when absent. */
  ttl?: number | null | undefined;
  /** Seconds a delivery may last before the task is given back. The tube's when absent. */
  ttr?: number | null | undefined;
  /**
   * Seconds for which the key stays held after the end of the task, at most 7 days; 0 when
   * absent. Needs `key`.
   */
  unique_for?: number | null | undefined;
}

/**
 * Where a waiting task is in the queue, and when it will start: the fields that an answer adds to those of a task if its
 * request asks for estimates. A task that does not wait has none of them.
 */
export interface QueueAnswer {
  /** Ready tasks that go first. */
  ahead?: number | null | undefined;
  /** Whether the position is an estimate itself, within 5 %: databases do not count many tasks one by one. */
  approximate?: boolean | undefined;
  /** When it will start. */
  estimate?: EstimateAnswer | null | undefined;
  /** Why there is no estimate. */
  no_estimate?: NoEstimateAnswer | null | undefined;
}

/** The load of a queue in a worker. */
export interface QueueLoad {
  /** Processors that currently work on it. */
  busy: number;
  /** Failed tasks and batches since the worker started. */
  errors: number;
  /** The queue's number in the contract. */
  queue_num: number;
  /** A moving average; absent before the first batch. */
  seconds_per_task?: number | null | undefined;
  /** The target time from ready to done, in seconds. */
  target_latency: number;
  /** Its tube. */
  tube: string;
}

/** How many deliveries a tube allows. */
export interface RateAnswer {
  /** Most deliveries at once after a pause. */
  burst: number;
  /** Deliveries in the time `per`. */
  count: number;
  /** The time in seconds. */
  per: number;
}

/** How many deliveries a tube allows: a token bucket. */
export interface RateRequest {
  /** Most deliveries at once after a pause, from 1 to 100000; `count` when absent, at most 100000. */
  burst?: number | null | undefined;
  /** Deliveries in the time `per`, from 1 to 1000000. */
  count: number;
  /** The time in seconds, from 0.001 to 86400. */
  per: number;
}

/** Why a task does not run now. */
export interface ReasonAnswer {
  /** The reason, for programs. */
  name: string;
  /** The reason, for people. */
  text: string;
  /** When the reason ends, if that is known. */
  until?: number | null | undefined;
}

/** Deliveries to give back: `tasks`, or `id` and `lease` of one. */
export interface ReleaseRequest {
  /** Whether the delivery counts as an attempt. */
  counted?: boolean | undefined;
  /** Seconds before the tasks become ready again; at once when absent. */
  delay?: number | null | undefined;
  /** The one task, instead of `tasks`. */
  id?: number | null | undefined;
  /** Its lease number. */
  lease?: number | null | undefined;
  /** Answer with the tasks as they are afterwards. */
  show?: boolean | undefined;
  /** Several deliveries. */
  tasks?: Delivery[] | null | undefined;
}

/** The delays before further attempts. */
export interface RetryAnswer {
  /** Seconds after the first failed attempt. */
  delay: number;
  /** The longest delay in seconds, before the jitter. */
  delay_max: number;
  /** The factor from one delay to the next. */
  factor: number;
  /** The part by which a delay is shortened or extended at random. */
  jitter: number;
}

/**
 * The delays before further attempts: `min(delay_max, delay · factor^(n−1))` after failed attempt n,
 * shortened or extended at random by the part `jitter`.
 */
export interface RetryRequest {
  /** Seconds after the first failed attempt, at most 30 days; 5 when absent. */
  delay?: number | null | undefined;
  /**
   * The longest delay in seconds before the jitter, at most 30 days; 3600 when absent, or `delay`
   * if that is longer.
   */
  delay_max?: number | null | undefined;
  /** The factor from one delay to the next, from 1 to 100 in thousandths; 2 when absent. */
  factor?: number | null | undefined;
  /** The part by which a delay may differ, from 0 to 1 in thousandths; 0.2 when absent. */
  jitter?: number | null | undefined;
}

/** Actions that are allowed on names. */
export interface RightsAnswer {
  /** The actions. */
  actions: string[];
  /** The names of tubes, semaphores and schedules; `*` stands for any text. */
  names: string[];
}

/** A task that a worker holds. */
export interface RunningTask {
  /** How long ago it was taken, in seconds. */
  age: number;
  /** The task's number in the tube. */
  id: number;
  /** The tube. */
  tube: string;
}

/** A schedule. */
export interface ScheduleAnswer {
  /** What happens with times that were missed. */
  catch_up: CatchUpWord;
  /** Whether this request created it. */
  created?: boolean | undefined;
  /** The cron expression. */
  cron?: string | null | undefined;
  /** Why this server could not add its task the last time. */
  error?: string | null | undefined;
  /** Seconds from each time to the next. */
  every?: number | null | undefined;
  /** How many tasks it added. */
  fired: number;
  /** When it last added a task. */
  last?: number | null | undefined;
  /** Its name. */
  name: string;
  /** Its next time; absent if there is none any more. */
  next?: number | null | undefined;
  /** Whether a time fires while the task of an earlier time exists. */
  overlap: OverlapWord;
  /** Whether it is paused. */
  paused: boolean;
  /** How many times were skipped. */
  skipped: number;
  /** The first time of `every`. */
  start?: number | null | undefined;
  /** The task to put. */
  task: PutTask;
  /** The tube that tasks are put into. */
  tube: string;
  /** No time after this moment fires. */
  until?: number | null | undefined;
  /** The time zone of the cron expression. */
  zone?: string | null | undefined;
}

/**
 * A schedule to create, or to replace with: `cron` or `every`, and the task that is put at each
 * time. Times are seconds, moments count from the Unix epoch.
 */
export interface ScheduleRequest {
  /** What happens with times that were missed; `none` when absent. */
  catch_up?: CatchUpWord | null | undefined;
  /**
   * When to put it: a cron expression with five fields (minute hour day month weekday), or six
   * with the second first.
   */
  cron?: string | null | undefined;
  /** When to put it: seconds from each time to the next, at least 1. */
  every?: number | null | undefined;
  /** Refuse to replace a schedule. */
  only_new?: boolean | undefined;
  /** Whether a time fires while the task of an earlier time exists; `allow` when absent. */
  overlap?: OverlapWord | null | undefined;
  /** Whether the schedule is paused. When absent, a replaced schedule stays as it is. */
  paused?: boolean | null | undefined;
  /** The first time of `every`; without it, times are counted from the beginning of 1970. */
  start?: number | null | undefined;
  /** The task to put. */
  task: PutTask;
  /** The tube that tasks are put into; it must exist. */
  tube: string;
  /** No time after this moment fires. */
  until?: number | null | undefined;
  /** The time zone of `cron`, such as Europe/Berlin; UTC when absent. */
  zone?: string | null | undefined;
}

/** One page of schedules. */
export interface SchedulesAnswer {
  /** The `after` of the next page; absent in the last one. */
  next?: string | null | undefined;
  /** By name. */
  schedules: ScheduleAnswer[];
}

/** One semaphore with its options and counts. */
export interface SemaphoreAnswer {
  /** Seconds in which a grant must be acknowledged. */
  ack_timeout?: number | null | undefined;
  /** How many hold a grant and were not asked to release. */
  acquired: number;
  /** How many may hold a grant. */
  active: number;
  /** Seconds after which a task that yielded waits again. */
  cool_down: number;
  /** How many tasks yielded and will wait again. */
  delayed: number;
  /** Whether a task whose lease is over leaves. */
  drop_expired: boolean;
  /** How many events are not acknowledged. */
  events: number;
  /** Whether it loses the grant then. */
  force: boolean;
  /** Its key. */
  key: string;
  /** Seconds a grant lasts. */
  lease?: number | null | undefined;
  /** How much better a task must be. */
  margin: number;
  /** How many may be asked at the same time, if that was set. */
  max_revoking?: number | null | undefined;
  /** Seconds for which a new grant is not asked to release. */
  min_hold: number;
  /** When the next of them is delivered, or could have been, in seconds since the epoch. */
  next_event?: number | null | undefined;
  /** Seconds after which a holder that was asked is asked again. */
  revoke_grace: number;
  /** How many hold a grant and were asked to release. */
  revoking: number;
  /** Whether excess holders are asked to release. */
  shed: boolean;
  /** How many of them may be asked to release; at most `active`. */
  try_release: number;
  /** How many tasks wait. */
  waiting: number;
}

/** The tasks to show. */
export interface SemaphorePeekRequest {
  /** Their numbers. */
  tasks: number[];
}

/**
 * The options of a semaphore. An absent option stays as it is or, in a new semaphore, has its
 * default; `null` removes it. Times are seconds and may have a fraction.
 */
export interface SemaphoreRequest {
  /** Seconds in which the event of a grant must be acknowledged; `null` is no limit. */
  ack_timeout?: number | null | undefined;
  /** How many tasks may hold a grant at the same time; 1000 in a new one, 0 admits none. */
  active?: number | null | undefined;
  /** Seconds after which a task that yielded waits again. */
  cool_down?: number | null | undefined;
  /** A task whose lease is over leaves, instead of waiting again. */
  drop_expired?: boolean | null | undefined;
  /** Revoke the grant when the grace period is over. */
  force?: boolean | null | undefined;
  /** Seconds a grant lasts unless it is extended; `null` is until it is released. */
  lease?: number | null | undefined;
  /** How much better than a holder a task must be for that holder to be asked. */
  margin?: number | null | undefined;
  /** How many may be asked to release at the same time; `null` is the smaller of 16 and `try_release`. */
  max_revoking?: number | null | undefined;
  /** Seconds for which a new grant is not asked to release. */
  min_hold?: number | null | undefined;
  /**
   * Leave an existing semaphore as it is; refused if an option that is named here differs from
   * it.
   */
  only_new?: boolean | undefined;
  /** Seconds after which a holder that was asked is asked again, or loses its grant (`force`). */
  revoke_grace?: number | null | undefined;
  /** When `active` was lowered: ask the excess holders to release. */
  shed?: boolean | null | undefined;
  /**
   * How many of the holders, from the worst on, may be asked to release for better ones; not more than
   * `active`. 900 in a new one, or `active` if that is less.
   */
  try_release?: number | null | undefined;
}

/** Semaphores with their options and counts. */
export interface SemaphoresAnswer {
  /** By key. */
  semaphores: SemaphoreAnswer[];
}

/** A time series: complete intervals without gaps, oldest first. All arrays have the same length. */
export interface SeriesAnswer {
  /** Deliveries acknowledged. */
  acks: number[];
  /** Buried tasks. */
  buried: number[];
  /** Delayed tasks. */
  delayed: number[];
  /** Deliveries that failed. */
  fails: number[];
  /** When the first interval begins, in seconds since the epoch. */
  from: number;
  /** Identifies the running server that answers. */
  instance?: string | null | undefined;
  /** Peers of the server whose series are not added. */
  missing?: MissingServer[] | undefined;
  /** Tasks put in each interval. */
  puts: number[];
  /** Ready tasks at the end of each interval. */
  ready: number[];
  /** How long the deliveries that were acknowledged or failed in each interval had lasted. */
  run: PercentilesAnswer;
  /** The number of servers whose series are added; absent unless `all` is set. */
  servers?: number | null | undefined;
  /** The length of an interval, in seconds. */
  step: number;
  /** Taken tasks. */
  taken: number[];
  /** Tasks delivered. */
  takes: number[];
  /** The tube; absent for the sum over all tubes. */
  tube?: string | null | undefined;
  /** How long the tasks taken in each interval had been ready. */
  wait: PercentilesAnswer;
}

/** The server itself. */
export interface ServerAnswer {
  /** Open connections. */
  connections: number;
  /**
   * What happens to acknowledged tasks when the machine fails, if that depends on the settings
   * of a database.
   */
  durability?: string | null | undefined;
  /** Whether an acknowledged task is on disk. */
  durable: boolean;
  /** The name of the command line program on the server's machine. */
  program: string;
  /** The name of the store. */
  store: string;
  /** The features that the store does not support. */
  unsupported?: string[] | undefined;
  /** How long it has been running, in seconds. */
  uptime: number;
  /** Its version. */
  version: string;
}

/** A hosted service. */
export interface ServiceInfo {
  /** Its name. */
  name: string;
  /** Its parts, each with a status. */
  parts: PartInfo[];
  /** Why it is unhealthy, if it is. */
  problem?: string | null | undefined;
  /** Tables about its work. */
  tables: TableInfo[];
}

/** The hosted services, in the order they were started. */
export interface ServicesAnswer {
  /** One entry for each service. */
  services: ServiceInfo[];
}

/** The user that sends the request. */
export interface SessionAnswer {
  /** Whether the server has users, so that signing in is possible. */
  has_users: boolean;
  /** What the user may do, as far as a page has to know it. */
  rights: RightsAnswer[];
  /** The session, if the request belongs to one. */
  session?: SessionDetails | null | undefined;
  /** The name of the user; `guest` if the request has neither a token nor a session. */
  user: string;
}

/** A session of the page. It has a secret, so it cannot be printed. */
export interface SessionDetails {
  /**
   * The value of the header `X-Taskyard-CSRF`, which each request with the cookie needs unless it
   * is a GET or HEAD.
   */
  csrf: string;
  /** When the session ends if it is not used any more, in seconds from now. */
  ends_in: number;
  /** How long the session lasts without use, in seconds. */
  idle_max: number;
}

/** Signs in. It has a secret, so it cannot be printed. */
export interface SignInRequest {
  /** The token of the user; not needed beside an Authorization header, which comes first. */
  token?: string | null | undefined;
}

/** The result of signing out. */
export interface SignOutAnswer {
  /** Whether there was a session. */
  ended: boolean;
}

/** One message of a WebSocket with events. */
export type SocketAnswer = {
  /** Something happened; to be acknowledged. */
  event: EventAnswer;
} | {
  /** How many of the events that were acknowledged were there. */
  acknowledged: number;
};

/** The state of a task. */
export type StateWord = "ready" | "taken" | "delayed" | "buried" | "done";

/** All tubes, their totals, and the server. Two of these and the time between them give rates. */
export interface StatsAnswer {
  /** The server itself. */
  server: ServerAnswer;
  /** The time of this summary, in seconds since the epoch. */
  time: number;
  /** All tubes together. */
  total: TotalAnswer;
  /** The tubes, by name. */
  tubes: TubeAnswer[];
}

/** The status of a task in a semaphore. */
export type StatusWord = "waiting" | "delayed" | "granted" | "try_release";

/** A table about a part of a service. */
export interface TableInfo {
  /** The column names. */
  columns: string[];
  /** The part. */
  part: string;
  /** The rows: a text for each column. */
  rows: string[][];
  /** What the table shows. */
  title: string;
}

/** How many tasks to take and how long to wait for them. */
export interface TakeRequest {
  /** Always answer with `data_base64`: the payload byte for byte. */
  base64?: boolean | undefined;
  /** At most how many tasks, 1 to 10000; in tubes with sub-queues at most one of each. */
  count?: number | undefined;
  /** Seconds the delivery may last before the task is given back. `null` is the task's own ttr. */
  lease?: number | null | undefined;
  /** Seconds to wait for the first task; 0 answers at once. */
  wait?: number | undefined;
  /** The name of the worker, at most 128 bytes: lists show who holds a task, and its failures keep the name. */
  worker?: string | null | undefined;
}

/** What an action did. */
export interface TaskActionAnswer {
  /** How many of them were changed; others changed meanwhile. */
  changed: number;
  /** How many tasks matched. */
  matched: number;
  /** The value of `after` to continue; absent if no task follows. */
  next?: string | null | undefined;
  /** The outcome of each of the `ids`, in their order. */
  outcomes?: OutcomeWord[] | null | undefined;
  /** How many tasks were compared with the filter. */
  scanned: number;
}

/** Which tasks, and how: `ids`, or `filter`. */
export interface TaskActionRequest {
  /** The `next` of the answer before, to continue with a filter. */
  after?: string | null | undefined;
  /** For `release`: seconds before the tasks become ready again. */
  delay?: number | null | undefined;
  /** Only count the tasks that match, and change nothing. */
  dry_run?: boolean | undefined;
  /** For `bury`: what went wrong, kept with the tasks. */
  error?: string | null | undefined;
  /** Conditions that the tasks meet, as for a page of tasks. */
  filter?: TaskFilterRequest | null | undefined;
  /** The numbers of the tasks in the tube. */
  ids?: number[] | null | undefined;
  /** Maximum number of tasks that one request changes by a filter; 1000 when absent. */
  limit?: number | null | undefined;
  /** For `kick`: count the attempts from zero again. */
  reset_attempts?: boolean | undefined;
}

/** A task. Timestamps are seconds since the epoch; fields that do not apply are left out. */
export type TaskAnswer = QueueAnswer & {
  /** Earlier deliveries that ended without ack or bury. */
  attempts: number;
  /** After how many failed deliveries it is buried, if its put said so; only in the answer to a peek. */
  attempts_max?: number | null | undefined;
  /** When it was put. */
  created: number;
  /** Whether `data` is only the beginning of the payload's JSON, as a text; only in pages of tasks. */
  cut?: boolean | undefined;
  /** The payload. */
  data?: Payload | null | undefined;
  /** The payload as MessagePack in base64, if JSON cannot represent it. */
  data_base64?: Packed | null | undefined;
  /** When it becomes ready, while it is delayed; of a taken task since when it was ready. */
  due?: number | null | undefined;
  /** The error of its latest failure; in a page of tasks only the first line. */
  error?: string | null | undefined;
  /** When it is removed if it is not taken. */
  expires?: number | null | undefined;
  /** When it failed last. */
  failed_at?: number | null | undefined;
  /** Its latest failures, oldest first; only in the answer to a peek. */
  failures?: FailureAnswer[] | undefined;
  /** When it was finished, for a done task that its tube keeps. */
  finished?: number | null | undefined;
  /** Its number in the tube. */
  id: number;
  /** Its unique key; only where a task is shown, not in the answer to take. */
  key?: string | null | undefined;
  /** The number of the current delivery, for ack, release, bury and touch. */
  lease?: number | null | undefined;
  /** When the current delivery ends by itself. */
  lease_until?: number | null | undefined;
  /** The small object that is stored with it. */
  meta?: Payload | null | undefined;
  /** The same as MessagePack in base64, if JSON cannot represent it. */
  meta_base64?: Packed | null | undefined;
  /** Its place in the order of delivery, from 1, while it is ready; only in the answer that shows one task. */
  position?: number | null | undefined;
  /** When it had become ready for the latest earlier delivery that was given back. */
  previous_start?: number | null | undefined;
  /** Smaller goes first. */
  pri: number;
  /** Why it does not run now. */
  reason?: ReasonAnswer | null | undefined;
  /** The result that its ack gave. */
  result?: Payload | null | undefined;
  /** The same as MessagePack in base64, if JSON cannot represent it. */
  result_base64?: Packed | null | undefined;
  /** How many milliseconds the delivery lasted that finished it. */
  run_ms?: number | null | undefined;
  /**
   * Its priority in the semaphore of its tube, if its put named one; only in the answer to a
   * peek.
   */
  semaphore_priority?: number | null | undefined;
  /** When the current delivery began. */
  start?: number | null | undefined;
  /** Its state. */
  state: StateWord;
  /** Its sub-queue, in tubes that have them. */
  subqueue?: string | null | undefined;
  /** How many seconds a delivery may last. */
  ttr?: number | null | undefined;
  /** The name of the worker that holds it or finished it, if it gave one; only where a task is shown, not in the answer to take. */
  worker?: string | null | undefined;
};

/** The number of tasks in each state. */
export interface TaskCounts {
  /** Buried. */
  buried: number;
  /** Delayed. */
  delayed: number;
  /** Finished since the store was opened. */
  done: number;
  /** Done tasks that the tube keeps. */
  kept?: number | undefined;
  /** Can be taken. */
  ready: number;
  /** Delivered. */
  taken: number;
  /** All tasks of the tube, without done tasks. */
  total: number;
}

/** Conditions for tasks. Those that are absent are met by every task. */
export interface TaskFilterRequest {
  /** At least this many attempts. */
  attempts_min?: number | null | undefined;
  /** Put at this second since the epoch or later. */
  created_from?: number | null | undefined;
  /** Put before this second since the epoch. */
  created_until?: number | null | undefined;
  /** The error of a failure contains this text. */
  error?: string | null | undefined;
  /** Finished at this second since the epoch or later. */
  finished_from?: number | null | undefined;
  /** Finished before this second since the epoch. */
  finished_until?: number | null | undefined;
  /** The key. */
  key?: string | null | undefined;
  /** The payload contains this text. */
  match?: string | null | undefined;
  /** States, separated by commas. Absent: those to which the action applies. */
  state?: string | null | undefined;
  /** The sub-queue. */
  subqueue?: string | null | undefined;
  /** The worker that holds the task, or failed for it last. */
  worker?: string | null | undefined;
}

/** A page of tasks. */
export interface TaskPageAnswer {
  /** The value of `after` for the next page; absent if no task follows. */
  next?: string | null | undefined;
  /** How many tasks were compared with the query. */
  scanned: number;
  /** The tasks, each with the reason why it does not run. */
  tasks: TaskAnswer[];
}

/** Tasks that were taken or peeked at. */
export interface TasksAnswer {
  /** The tasks; perhaps none. */
  tasks: TaskAnswer[];
}

/** All tubes together. */
export interface TotalAnswer {
  /** The number of calls that took effect since the store was opened. */
  calls: CallCounts;
  /** Consumers that wait for a task on this server. */
  consumers: number;
  /** Tasks by state. */
  tasks: TaskCounts;
  /** The number of tubes. */
  tubes: number;
}

/** Deliveries that need more time: `tasks`, or `id` and `lease` of one. */
export interface TouchRequest {
  /** The one task, instead of `tasks`. */
  id?: number | null | undefined;
  /** Its lease number. */
  lease?: number | null | undefined;
  /** How many seconds more. */
  seconds: number;
  /** Answer with the tasks as they are afterwards. */
  show?: boolean | undefined;
  /** Several deliveries. */
  tasks?: Delivery[] | null | undefined;
}

/** One tube with its options, counts and statistics. */
export interface TubeAnswer {
  /** Deliveries before a task is buried. */
  attempts_max?: number | null | undefined;
  /** How often each operation took effect since the store was opened. */
  calls: CallCounts;
  /** Most tasks of any state. */
  capacity?: number | null | undefined;
  /** Consumers that wait for a task on this server. */
  consumers: number;
  /** Default delay, in seconds. */
  delay?: number | null | undefined;
  /** When all ready tasks will have started, if the request asked for estimates. */
  drain?: EstimateAnswer | null | undefined;
  /** How many estimates held on this server, if the request asked for estimates; absent if none was checked. */
  estimates?: CalibrationAnswer | null | undefined;
  /**
   * Deliveries that failed on this server, as its time series count them; absent if it collects
   * none.
   */
  failures?: number | null | undefined;
  /** How many seconds done tasks are kept. */
  keep_done?: number | null | undefined;
  /** Most done tasks to keep, if it keeps any. */
  keep_done_max?: number | null | undefined;
  /** The preset it was created from. */
  kind: KindWord;
  /** Its name. */
  name: string;
  /** When time alone next changes something in it, in seconds since the epoch. */
  next_wakeup?: number | null | undefined;
  /** Why that is not known. */
  no_drain?: NoEstimateAnswer | null | undefined;
  /** Its number in the store. */
  number: number;
  /**
   * Since when the longest waiting ready task waits, in seconds since the epoch; absent when
   * none does. Tasks behind a running one of their sub-queue do not count.
   */
  oldest_ready?: number | null | undefined;
  /** Whether deliveries are stopped. */
  paused: boolean;
  /** Default priority. */
  pri: number;
  /** The permanent number of its queue in a contract. */
  queue_num?: number | null | undefined;
  /** How many deliveries it allows. */
  rate?: RateAnswer | null | undefined;
  /** The delays before further attempts. */
  retry?: RetryAnswer | null | undefined;
  /** Whether tasks whose lease expired wait as failed ones do. */
  retry_lost?: boolean | undefined;
  /** The same for how long deliveries that were acknowledged or failed had lasted. */
  run?: DurationsAnswer | null | undefined;
  /** The key of its semaphore. */
  semaphore?: string | null | undefined;
  /** Ready tasks that could be delivered right now. */
  takeable: number;
  /** Tasks by state. */
  tasks: TaskCounts;
  /** Whether its tasks may be lost at a restart. */
  temporary: boolean;
  /** Default time to live, in seconds. */
  ttl?: number | null | undefined;
  /** Whether the ttl ends a delivery. */
  ttl_kills_taken: boolean;
  /** Default time to run, in seconds. */
  ttr?: number | null | undefined;
  /**
   * How long tasks had been ready when this server delivered them, in the latest second of the
   * last minute in which it did; absent without one.
   */
  wait?: DurationsAnswer | null | undefined;
}

/** Tubes with their options, counts and statistics. */
export interface TubesAnswer {
  /** By name. */
  tubes: TubeAnswer[];
}

/** A worker with a recent report. */
export interface WorkerAnswer {
  /** How many processors it has. */
  max_processors: number;
  /** Its name. */
  name: string;
  /** The processors that the plan gives to each queue, by the queue's number; absent while it has no plan. */
  planned?: BTreeMap | null | undefined;
  /** The load of its queues. */
  queues: QueueLoad[];
  /** The version of the plan that it follows; 0 is none yet. */
  version: number;
  /** Its identity: a new one each time a worker starts. */
  worker: string;
}

/** One worker: a name with which tasks are taken. */
export interface WorkerSummary {
  /** The address from which it last connected to this server, or to a peer with `all`. */
  address?: string | null | undefined;
  /** Deliveries that it acknowledged on this server, or on all with `all`. */
  done: number;
  /** Of these, acknowledged in the last minute. */
  done_per_minute: number;
  /** Deliveries that it reported as failed there. */
  failed: number;
  /** Of these, failed in the last minute. */
  failed_per_minute: number;
  /** Its machine, if the name has the form `host:process:program`. */
  host?: string | null | undefined;
  /** When it last took, finished or touched a task, in seconds since the epoch; now while it waits for one. */
  last_seen?: number | null | undefined;
  /** Its name. */
  name: string;
  /** Its process id, if the name has that form. */
  process?: number | null | undefined;
  /** Its program, if the name has that form. */
  program?: string | null | undefined;
  /** The tasks that it holds, taken from any server, those that run longest first; at most 100. */
  running: RunningTask[];
  /** The number of tasks that it holds. */
  running_count: number;
  /** The tubes from which it took, at most 32. */
  tubes: string[];
  /** The version of its client, if that is Taskyard's or gave one over iproto. */
  version?: string | null | undefined;
}

/** The workers of this server, and those that hold tasks of its store. */
export interface WorkersAnswer {
  /** So many tasks are taken that not all of them are shown and counted. */
  cut?: boolean | undefined;
  /** Identifies the running server that answers. */
  instance?: string | null | undefined;
  /** Peers of the server that are not in this list. */
  missing?: MissingServer[] | undefined;
  /** The value of `after` for the next page; absent if no worker follows. */
  next?: string | null | undefined;
  /** The number of servers that are in this list; absent unless `all` is set. */
  servers?: number | null | undefined;
  /** The time of this list, in seconds since the epoch. */
  time: number;
  /** The workers, by name. */
  workers: WorkerSummary[];
}
