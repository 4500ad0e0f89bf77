// BullMQ: its own queue, and one worker that works on as many tasks at the same time as there are clients.

const { Queue, Worker } = require("bullmq");
const { PAYLOAD, version, settings, forSeconds, until, putToStart, expect, tell } = require("./measure.js");

const { port, seconds, clients, batch = 100, backlog, starts } = settings();
const connection = { host: "127.0.0.1", port, maxRetriesPerRequest: null };
const options = { removeOnComplete: true, removeOnFail: true };

// Works off what is in a queue; answers tasks a second.
async function drain(queue, wanted) {
  let done = 0;
  const begin = performance.now();
  const worker = new Worker(queue.name, async () => { done += 1; }, { connection, concurrency: clients });
  await until(120, () => done >= wanted);
  const rate = done / ((performance.now() - begin) / 1000);
  await worker.close();
  expect("worked off", done, wanted);
  return rate;
}

async function latency() {
  const queue = new Queue("start", { connection });
  let started;
  const worker = new Worker("start", async () => started(), { connection, concurrency: clients });
  await worker.waitUntilReady();
  await new Promise((next) => setTimeout(next, 1000));
  const figures = await putToStart(starts, async (begun) => {
    started = begun;
    await queue.add("task", PAYLOAD, options);
  });
  await worker.close();
  await queue.close();
  return figures;
}

async function main() {
  const queues = Array.from({ length: clients }, () => new Queue("one", { connection }));
  await Promise.all(queues.map((queue) => queue.waitUntilReady()));
  let next = 0;
  const put = await forSeconds(clients, seconds, () => queues[next++ % clients].add("task", PAYLOAD, options));
  expect("put one by one", await queues[0].getWaitingCount(), put.calls);
  const many = new Queue("many", { connection });
  await many.waitUntilReady();
  const jobs = Array.from({ length: batch }, () => ({ name: "task", data: PAYLOAD, opts: options }));
  let batches = backlog / batch;
  const begin = performance.now();
  await Promise.all(Array.from({ length: 4 }, async () => {
    while (batches-- > 0) await many.addBulk(jobs);
  }));
  const putBatches = backlog / ((performance.now() - begin) / 1000);
  expect("put in batches", await many.getWaitingCount(), backlog);
  const work = await drain(many, backlog);
  const start = await latency();
  const settings = `worker with concurrency ${clients}, tasks removed when they are done`;
  tell({ version: version("bullmq"), put: put.rate, put_batches: putBatches, drain: work, start, settings });
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
