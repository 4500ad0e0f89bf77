// Taskyard's own Node package: its client, and one worker that works on as many tasks at the same time as there are clients.

const { PAYLOAD, settings, forSeconds, until, putToStart, expect, tell } = require("./measure.js");

const { url, package: path, seconds, clients, backlog, starts } = settings();
const { Taskyard, VERSION, Worker } = require(path);
const client = new Taskyard(url);

// Tasks for some seconds of work: more than were put one by one.
async function fill(puts) {
  for (let left = backlog - puts; left > 0; left -= 1000) {
    await client.putMany("work", Array.from({ length: Math.min(1000, left) }, () => ({ data: PAYLOAD })));
  }
  return Math.max(puts, backlog);
}

// Works off what is in the tube; answers tasks a second.
async function drain(wanted) {
  let done = 0;
  const begin = performance.now();
  const worker = new Worker(client, "work", async () => { done += 1; }, { concurrency: clients });
  await until(120, () => done >= wanted);
  const rate = done / ((performance.now() - begin) / 1000);
  await worker.stop();
  expect("worked off", done, wanted);
  expect("left", (await client.tube("work")).tasks.total, 0);
  return rate;
}

async function latency() {
  await client.createTube("start");
  let started;
  const worker = new Worker(client, "start", async () => started(), { concurrency: clients });
  await new Promise((next) => setTimeout(next, 1000));
  const figures = await putToStart(starts, async (begun) => {
    started = begun;
    await client.put("start", PAYLOAD);
  });
  await worker.stop();
  return figures;
}

async function main() {
  const put = await forSeconds(clients, seconds, () => client.put("work", PAYLOAD));
  const work = await drain(await fill(put.calls));
  const start = await latency();
  const used = `worker with concurrency ${clients}`;
  tell({ version: VERSION, put: put.rate, put_batches: null, drain: work, start, settings: used });
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
