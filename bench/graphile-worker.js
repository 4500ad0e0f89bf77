// graphile-worker: plain for tasks one by one, and with its local queue for the drain of a backlog.

const { Pool } = require("pg");
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const { PAYLOAD, version, settings, forSeconds, until, putToStart, expect, tell } = require("./measure.js");

const { socket, seconds, clients, batch, backlog, starts, held } = settings();
const pgPool = new Pool({ host: socket, user: "postgres", database: "postgres", max: clients + 4 });
pgPool.on("error", (error) => console.error(error));
pgPool.on("connect", (client) => client.on("error", (error) => console.error(error)));
const logger = new Logger(() => () => {});

const PLAIN = { concurrentJobs: clients };
const TUNED = {
  concurrentJobs: 24,
  localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
};

async function left() {
  const { rows } = await pgPool.query("SELECT count(*) FROM graphile_worker._private_jobs");
  return Number(rows[0].count);
}

// Fresh tables, so that the time of the last autovacuum does not matter.
async function clean() {
  await pgPool.query("VACUUM (ANALYZE) graphile_worker._private_jobs");
}

async function putBatches(utils, count) {
  const jobs = Array.from({ length: batch }, () => ({ identifier: "work", payload: PAYLOAD }));
  let batches = count / batch;
  const loop = async () => {
    while (batches-- > 0) await utils.addJobs(jobs);
  };
  const begin = performance.now();
  await Promise.all(Array.from({ length: 4 }, loop));
  return count / ((performance.now() - begin) / 1000);
}

// Lets workers run until the tube is empty or the time is over; answers tasks a second.
async function drain(worker, seconds) {
  const before = await left();
  let handled = 0;
  const begin = performance.now();
  const runner = await run({
    pgPool,
    logger,
    noHandleSignals: true,
    preset: { worker },
    taskList: { work: async () => void (handled += 1) },
  });
  await until(seconds, () => handled >= before);
  const took = (performance.now() - begin) / 1000;
  const done = handled;
  await runner.stop();
  const after = await left();
  if (before - after < done) throw new Error(`${done} were handled but ${before - after} are gone`);
  return done / took;
}

async function latency(utils) {
  let started;
  const runner = await run({
    pgPool,
    logger,
    noHandleSignals: true,
    preset: { worker: PLAIN },
    taskList: { work: async () => started() },
  });
  await new Promise((next) => setTimeout(next, 500));
  const times = await putToStart(starts, async (begun) => {
    started = begun;
    await utils.addJob("work", PAYLOAD);
  });
  await runner.stop();
  return times;
}

// Rounds of put and drain, for a database with an open snapshot.
async function rounds(utils) {
  const rates = [];
  const end = performance.now() + held.seconds * 1000;
  for (let round = 0; round < held.rounds && performance.now() < end; round++) {
    const put = await putBatches(utils, held.tasks);
    const drained = await drain(TUNED, 3600);
    expect("left after a round", await left(), 0);
    rates.push({ put, drain: drained });
    console.error(`  graphile-worker, round ${round + 1}: put ${put.toFixed(0)}/s, drain ${drained.toFixed(0)}/s`);
  }
  return rates;
}

async function main() {
  const utils = await makeWorkerUtils({ pgPool, logger });
  await utils.migrate();
  if (held) {
    tell({ version: version("graphile-worker"), rounds: await rounds(utils) });
  } else {
    const put = await forSeconds(clients, seconds, () => utils.addJob("work", PAYLOAD));
    expect("put one by one", await left(), put.calls);
    let key = 0;
    const keyed = await forSeconds(clients, seconds, () => utils.addJob("work", PAYLOAD, { jobKey: `invoice-${key++}` }));
    expect("put with keys", await left(), put.calls + keyed.calls);
    await clean();
    const single = await drain(PLAIN, seconds);
    await drain(TUNED, 60);
    await clean();
    const batches = await putBatches(utils, backlog);
    await clean();
    const tuned = await drain(TUNED, 60);
    const start = await latency(utils);
    const settings = "one by one: 16 jobs at a time; drain: local queue 500, refetch 10 ms, 24 at a time";
    tell({ version: version("graphile-worker"), put: put.rate, put_keyed: keyed.rate, put_batches: batches, drain_batches: tuned, drain: single, start, settings });
  }
  await utils.release();
  await pgPool.end();
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
