// Calls on semaphores and their events.

import type {
  AcknowledgedAnswer,
  EnqueueItemRequest,
  EventAnswer,
  EventsAnswer,
  EventsRequest,
  GrantOutcomeWord,
  GrantRequest,
  GrantsAnswer,
  MemberInfoAnswer,
  MemberInfosAnswer,
  MembersAnswer,
  SemaphoreAnswer,
  SemaphoreRequest,
  SemaphoresAnswer,
} from "./api.js";
import type { Connection } from "./connection.js";
import { queryText } from "./paths.js";
import { objectText } from "./payload.js";

export class Semaphores {
  constructor(private readonly connection: Connection) {}

  /** All semaphores. */
  async list(): Promise<SemaphoreAnswer[]> {
    return (await this.get<SemaphoresAnswer>("/v1/semaphores")).semaphores;
  }

  /** One semaphore. */
  show(key: string): Promise<SemaphoreAnswer> {
    return this.get(semaphorePath(key));
  }

  /** Creates or changes a semaphore. */
  set(key: string, options: SemaphoreRequest): Promise<SemaphoreAnswer> {
    return this.connection.call({ method: "PUT", path: semaphorePath(key), body: objectText(options), repeatable: !options.only_new });
  }

  /** Removes a semaphore; with `force` even if tasks hold grants or wait. */
  async drop(key: string, options: { force?: boolean } = {}): Promise<void> {
    await this.connection.call({ method: "DELETE", path: semaphorePath(key) + queryText(options) });
  }

  /** Tasks that hold a grant, best first. */
  holders(key: string, options: { count?: number; after?: string } = {}): Promise<MembersAnswer> {
    return this.get(semaphorePath(key, "holders") + queryText(options));
  }

  /** Tasks that wait for a grant, best first. */
  waiting(key: string, options: { count?: number; after?: string } = {}): Promise<MembersAnswer> {
    return this.get(semaphorePath(key, "waiting") + queryText(options));
  }

  /** Enqueues tasks, or changes their priority. */
  async enqueue(key: string, tasks: readonly EnqueueItemRequest[]): Promise<MemberInfoAnswer[]> {
    return (await this.post<MemberInfosAnswer>(semaphorePath(key, "enqueue"), { tasks }, true)).tasks;
  }

  /** Releases, yields, declines or extends grants. */
  async finish(key: string, items: readonly GrantRequest[]): Promise<GrantOutcomeWord[]> {
    const repeatable = items.every((item) => item.grant != null && item.finish !== "extend");
    return (await this.post<GrantsAnswer>(semaphorePath(key, "finish"), { items }, repeatable)).outcomes;
  }

  /** Shows tasks: their status, priorities and grants. */
  async peek(key: string, tasks: readonly number[]): Promise<MemberInfoAnswer[]> {
    return (await this.post<MemberInfosAnswer>(semaphorePath(key, "peek"), { tasks }, true)).tasks;
  }

  /** Fetches events, waiting up to `wait` seconds. Each is repeated until it is acknowledged. */
  async events(options: EventsRequest & { signal?: AbortSignal } = {}): Promise<EventAnswer[]> {
    const { signal, ...rest } = options;
    const body = objectText(rest);
    const answer = await this.connection.call<EventsAnswer>({
      method: "POST",
      path: "/v1/semaphore-events",
      body,
      wait: rest.wait,
      purpose: "take",
      signal,
      repeatable: true,
    });
    return answer.events;
  }

  /** Acknowledges events by their numbers; answers how many were there. */
  async ackEvents(events: readonly number[]): Promise<number> {
    return (await this.post<AcknowledgedAnswer>("/v1/semaphore-events/ack", { events }, true)).acknowledged;
  }

  private get<A>(path: string): Promise<A> {
    return this.connection.call({ method: "GET", path, repeatable: true });
  }

  private post<A>(path: string, body: object, repeatable: boolean): Promise<A> {
    return this.connection.call({ method: "POST", path, body: objectText(body), repeatable });
  }
}

function semaphorePath(key: string, ...segments: string[]): string {
  return ["/v1/semaphores", ...[key, ...segments].map(encodeURIComponent)].join("/");
}
