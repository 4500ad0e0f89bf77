// Calls on schedules, which put tasks at times of a calendar or in intervals.

import type { NextTimesAnswer, PlacedTask, PutAnswer, ScheduleAnswer, ScheduleRequest, SchedulesAnswer } from "./api.js";
import type { NewTask } from "./client.js";
import type { Connection } from "./connection.js";
import { queryText } from "./paths.js";
import { objectText, taskText } from "./payload.js";

/** When a schedule puts its task: `cron` with an optional `zone`, or `every` with an optional `start`. */
export type ScheduleOptions = Omit<ScheduleRequest, "task" | "tube">;

/** A schedule as the server shows it. */
export type Schedule = ScheduleAnswer;

export class Schedules {
  constructor(private readonly connection: Connection) {}

  /** All schedules, by name. */
  async list(): Promise<Schedule[]> {
    const all: Schedule[] = [];
    for (let after: string | undefined; ; ) {
      const page = await this.get<SchedulesAnswer>(`/v1/schedules${queryText({ count: 1000, after })}`);
      all.push(...page.schedules);
      if (page.next == null) return all;
      after = page.next;
    }
  }

  /** One schedule. */
  show(name: string): Promise<Schedule> {
    return this.get(schedulePath(name));
  }

  /** Creates or replaces a schedule that puts this task into a tube that exists. */
  set(name: string, tube: string, task: NewTask, options: ScheduleOptions): Promise<Schedule> {
    const body = objectText({ tube, ...options }, `"task":${taskText(task)}`);
    return this.connection.call({ method: "PUT", path: schedulePath(name), body, repeatable: options.only_new !== true });
  }

  /** Removes a schedule; its tasks stay. */
  async drop(name: string): Promise<void> {
    await this.connection.call({ method: "DELETE", path: schedulePath(name) });
  }

  /** The next times of a schedule, in seconds since the epoch. */
  async times(name: string, count = 20): Promise<number[]> {
    return (await this.get<NextTimesAnswer>(schedulePath(name, "next") + queryText({ count }))).times;
  }

  /** Puts the task of a schedule now; its times stay. */
  async run(name: string): Promise<PlacedTask> {
    const { tasks } = await this.connection.call<PutAnswer>({ method: "POST", path: schedulePath(name, "run") });
    return tasks[0] as PlacedTask;
  }

  /** Pauses a schedule. */
  pause(name: string): Promise<Schedule> {
    return this.connection.call({ method: "POST", path: schedulePath(name, "pause"), repeatable: true });
  }

  /** Resumes a schedule; times that were missed are caught up as it says. */
  resume(name: string): Promise<Schedule> {
    return this.connection.call({ method: "POST", path: schedulePath(name, "resume"), repeatable: true });
  }

  private get<A>(path: string): Promise<A> {
    return this.connection.call({ method: "GET", path, repeatable: true });
  }
}

function schedulePath(name: string, ...segments: string[]): string {
  return ["/v1/schedules", ...[name, ...segments].map(encodeURIComponent)].join("/");
}
