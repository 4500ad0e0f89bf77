// Compiled, not run: the types of the package in an ESM program.

import { type NewTask, PayloadError, type Task, Taskyard, TaskyardError, Worker, type WorkerOptions } from "taskyard";

interface Mail {
  to: string;
  text?: string;
}

const client = new Taskyard("http://127.0.0.1:7070", { token: "t", idempotent: true });
const placed = await client.put("mail", { to: "ann" } satisfies Mail, { delay: 60, key: "ann-1", unique_for: 60, on_conflict: "replace" });
const id: number = placed.id;
const batch: Array<NewTask<Mail>> = [{ data: { to: "ann" }, pri: 1 }];
await client.putMany("mail", batch, { timeout: 1 });
const within: number | undefined = (await client.put("mail", 1, { estimate: true })).estimate?.p90;
const ahead: number[] = (await client.positions("mail", [17, 18])).map((position) => position.ahead);
for await (const task of client.eachTask<Mail>("mail", { state: "ready", estimate: true })) {
  console.log(task.ahead, task.estimate?.basis ?? task.no_estimate?.text, within, ahead);
}
const drain: number | undefined = (await client.tube("mail", { estimate: true })).drain?.p90;
console.log(drain, (await client.stats({ estimate: true, internal: true })).tubes[0]?.estimates?.checked);
const tasks: Array<Task<Mail>> = await client.take<Mail>("mail", { count: 10, wait: 5, lease: null });
await client.ack("mail", tasks, { result: id });
await client.finish("mail", [{ verb: "ack", id: 1, lease: 2 }]);
const options: WorkerOptions = { concurrency: 10, backoff: (attempt) => (attempt > 3 ? undefined : 10) };
const worker = new Worker<Mail>(client, "mail", async (task) => {
  const to: string = task.data.to;
  const signal: AbortSignal = task.signal;
  if (signal.aborted || to === "") await task.release({ delay: 5 });
}, options);
worker.on("failed", (task, error) => console.log(task.data.to, error instanceof TaskyardError ? error.code : error));
await worker.stop({ grace: 5 });

new Worker(client, "mail", (task) => task.data.to.length, { retries: 5, decode: (payload: unknown): Mail => payload as Mail });
const refusal: TypeError = new PayloadError("no address", { cause: id });
console.log(refusal);

// @ts-expect-error: not the type of the data
new Worker<Mail>(client, "mail", () => undefined, { decode: (payload) => Number(payload) });
// @ts-expect-error: no such option
await client.put("mail", 1, { dealy: 60 });
// @ts-expect-error: estimates are asked for by the put, not by its tasks
await client.putMany("mail", [{ data: { to: "ann" }, estimate: true }]);
// @ts-expect-error: not a word of the API
await client.put("mail", 1, { key: "k", on_conflict: "ignore" });
// @ts-expect-error: no such field in the data
new Worker<Mail>(client, "mail", (task) => task.data.subject);
// @ts-expect-error: the result of a take is a list
const one: Task<Mail> = await client.take<Mail>("mail");
// @ts-expect-error: no such verb
await client.finish("mail", [{ verb: "done", id: 1 }]);
