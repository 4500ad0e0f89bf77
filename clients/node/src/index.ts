// The package: a client of Taskyard servers and a worker.

export type * from "./api.js";
export {
  type ClientOptions,
  type EstimateOptions,
  type Held,
  type NewTask,
  type PutManyOptions,
  type PutOptions,
  type TakeOptions,
  type TaskPage,
  type TaskQuery,
  Taskyard,
} from "./client.js";
export type { ConnectionOptions } from "./connection.js";
export { PayloadError, TaskyardError } from "./errors.js";
export { decode as decodeMessagePack, encode as encodeMessagePack, Extension } from "./msgpack.js";
export type { Task } from "./payload.js";
export type { Schedule, ScheduleOptions, Schedules } from "./schedules.js";
export type { Semaphores } from "./semaphores.js";
export { type RunOptions, runTask, type TaskOutcome } from "./testing.js";
export { VERSION } from "./version.js";
export { type Handler, Worker, type WorkerEvents, type WorkerOptions } from "./worker.js";
export { WorkerTask } from "./worker_task.js";
export { workerName } from "./worker_name.js";
