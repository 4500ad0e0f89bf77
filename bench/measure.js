// Runs a benchmark of another queue: divides the work among concurrent clients, measures it and prints the figures.
//
// A benchmark is called with one JSON argument: the address of the database, how long to measure, how many
// clients work at the same time, how many tasks are in a batch. It prints one line of JSON with its figures.

const fs = require("node:fs");
const path = require("node:path");

const PAYLOAD = { data: "z".repeat(89) }; // 100 bytes as JSON

// The version of a package that is in use; not every package lets its own file be loaded for that.
function version(name) {
  return JSON.parse(fs.readFileSync(path.join(process.env.NODE_PATH, name, "package.json"))).version;
}

function settings() {
  return JSON.parse(process.argv[2]);
}

// Runs `call` from many loops at once until the time is over; answers calls a second and the number of calls.
async function forSeconds(loops, seconds, call) {
  const begin = performance.now();
  const end = begin + seconds * 1000;
  let calls = 0;
  const loop = async () => {
    while (performance.now() < end) {
      await call();
      calls += 1;
    }
  };
  await Promise.all(Array.from({ length: loops }, loop));
  return { calls, rate: calls / ((performance.now() - begin) / 1000) };
}

// Answers after `seconds`, or when `done` says so.
async function until(seconds, done) {
  const end = performance.now() + seconds * 1000;
  while (performance.now() < end && !done()) await new Promise((next) => setTimeout(next, 5));
}

// Puts one task after the other while workers wait; `put` is given what the handler must call.
async function putToStart(starts, put) {
  const times = [];
  for (let i = 0; i < starts; i++) {
    let started;
    const handled = new Promise((resolve) => (started = resolve));
    const begin = performance.now();
    await put(() => started(performance.now()));
    times.push((await handled) - begin);
    // What a worker has to do after a task must not be in the next figure.
    await new Promise((next) => setTimeout(next, 5));
  }
  times.sort((a, b) => a - b);
  return { p50: times[Math.floor(starts / 2)], p99: times[Math.floor(starts * 0.99)] };
}

function expect(what, found, wanted) {
  if (Number(found) !== wanted) throw new Error(`${what}: ${found} instead of ${wanted}`);
}

function tell(figures) {
  console.log(JSON.stringify(figures));
}

module.exports = { PAYLOAD, version, settings, forSeconds, until, putToStart, expect, tell };
