// pg-boss: its own calls in loops for the drains, and a worker that listens for the put-to-start time.

const { PgBoss } = require("pg-boss");
const { PAYLOAD, version, settings, forSeconds, putToStart, expect, tell } = require("./measure.js");

const { socket, seconds, clients, batch, backlog, starts } = settings();
const QUEUE = "work";
const KEYED = "keyed";

async function left(boss, queue) {
  const { rows } = await boss.getDb().executeSql(
    `SELECT count(*) FROM pgboss.job WHERE name = '${queue}' AND state < 'active'`);
  return Number(rows[0].count);
}

// Fresh tables, so that the time of the last autovacuum does not matter.
async function clean(boss) {
  await boss.getDb().executeSql("VACUUM (ANALYZE)");
}

// Fetches and completes until nothing is there or the time is over; answers tasks a second.
async function drain(boss, loops, batchSize, seconds) {
  const before = await left(boss, QUEUE);
  let done = 0;
  const begin = performance.now();
  const end = begin + seconds * 1000;
  const loop = async () => {
    while (performance.now() < end) {
      const jobs = await boss.fetch(QUEUE, { batchSize });
      if (jobs.length === 0) return;
      await boss.complete(QUEUE, jobs.map((job) => job.id));
      done += jobs.length;
    }
  };
  await Promise.all(Array.from({ length: loops }, loop));
  const rate = done / ((performance.now() - begin) / 1000);
  expect("drained", before - (await left(boss, QUEUE)), done);
  return rate;
}

async function latency(boss) {
  await boss.createQueue("start", { notify: true });
  let started;
  await boss.work("start", { pollingIntervalSeconds: 0.5 }, async () => started());
  await new Promise((next) => setTimeout(next, 1000));
  return putToStart(starts, async (begun) => {
    started = begun;
    await boss.send("start", PAYLOAD);
  });
}

async function main() {
  const boss = new PgBoss({
    host: socket, user: "postgres", database: "postgres", max: clients + 4, useListenNotify: true,
  });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue(QUEUE);
  const put = await forSeconds(clients, seconds, () => boss.send(QUEUE, PAYLOAD));
  expect("put one by one", await left(boss, QUEUE), put.calls);
  // One job that waits or runs for each key, as with the keys of Taskyard.
  await boss.createQueue(KEYED, { policy: "exclusive" });
  let key = 0;
  const keyed = await forSeconds(clients, seconds, () => boss.send(KEYED, PAYLOAD, { singletonKey: `invoice-${key++}` }));
  expect("put with keys", await left(boss, KEYED), keyed.calls);
  await clean(boss);
  const single = await drain(boss, clients, 1, seconds);
  await drain(boss, 4, 100, 60);
  await clean(boss);
  const jobs = Array.from({ length: batch }, () => ({ data: PAYLOAD }));
  let batches = backlog / batch;
  const begin = performance.now();
  await Promise.all(Array.from({ length: 4 }, async () => {
    while (batches-- > 0) await boss.insert(QUEUE, jobs);
  }));
  const putBatches = backlog / ((performance.now() - begin) / 1000);
  expect("put in batches", await left(boss, QUEUE), backlog);
  await clean(boss);
  const tuned = await drain(boss, 4, 100, 60);
  const start = await latency(boss);
  const settings = "drain: fetch and complete of 100 in 4 loops; put to start: LISTEN/NOTIFY on, poll 0.5 s";
  tell({ version: version("pg-boss"), put: put.rate, put_keyed: keyed.rate, put_batches: putBatches, drain_batches: tuned, drain: single, start, settings });
  await boss.stop({ graceful: false });
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
