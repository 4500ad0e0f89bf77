// Plays the scenario with the `tarantool-driver` of npm: node_driver.js SCENARIO HOST PORT.
//
// The driver calls by the old CALL, whose answers are always lists of lists, and it tells the text of
// a refusal but not its code.

const { readFileSync } = require("node:fs");
const { isDeepStrictEqual } = require("node:util");
const Tarantool = require("tarantool-driver");

const [scenario, host, port] = process.argv.slice(2);

class Player {
  connections = new Map();
  started = new Map();

  async act(step) {
    switch (step.do) {
      case "connect":
        await this.connect(step.on, step.user, step.password);
        return undefined;
      case "close":
        await this.close(step.on);
        return undefined;
      case "call":
        return (await this.connection(step.on)).call(step.function, ...step.args);
      case "eval":
        return (await this.connection(step.on)).eval(step.expression, ...step.args);
      case "select": {
        const connection = await this.connection(step.on);
        return [(await connection.select(step.space, 0, 1000, 0, "all", [])).length];
      }
      case "start": {
        const connection = await this.connection(step.on);
        const calling = connection.call(step.function, ...step.args);
        // It may fail while no step awaits it, which is not an error of the program.
        calling.catch(() => {});
        this.started.set(step.label, calling);
        // The server takes the requests of a connection in order.
        await connection.call("queue.state");
        return undefined;
      }
      case "await":
        return this.started.get(step.label);
      default:
        throw new Error(`no such step: ${step.do}`);
    }
  }

  async connection(name) {
    if (!this.connections.has(name)) {
      await this.connect(name);
    }
    return this.connections.get(name);
  }

  async connect(name, username, password) {
    const options = { host, port, username, password, lazyConnect: true, retryStrategy: null };
    const connection = new Tarantool(options);
    // The driver reports a refusal here and to the pending call.
    connection.on("error", () => {});
    await connection.ping();
    this.connections.set(name, connection);
  }

  async close(name) {
    const connection = this.connections.get(name);
    this.connections.delete(name);
    const closed = new Promise((resolve) => connection.once("close", resolve));
    connection.disconnect();
    await closed;
  }

  async end() {
    for (const name of [...this.connections.keys()]) {
      await this.close(name);
    }
  }
}

// The answer as the old CALL gives it: a list of tasks comes as if each was an answer of its own, and
// what is not a list comes in one.
function expected({ do: action, gives }) {
  if (!["call", "await"].includes(action) || gives === null) {
    return gives;
  }
  const [first] = gives;
  if (Array.isArray(first) && first.length > 0 && first.every(Array.isArray)) {
    return first;
  }
  return gives.map((value) => (Array.isArray(value) ? value : [value]));
}

// Does the step; what is wrong with its answer, or nothing.
async function wrong(player, step) {
  let answer;
  try {
    answer = await player.act(step);
  } catch (error) {
    const right = step.fails !== null && String(error.message).includes(step.fails[1]);
    return right ? null : `fails with ${error.stack}`;
  }
  const fits = step.gives === null || isDeepStrictEqual(answer, expected(step));
  return fits && step.fails === null ? null : `gives ${JSON.stringify(answer)}`;
}

async function main() {
  const cases = JSON.parse(readFileSync(scenario, "utf8"));
  for (const { name, steps } of cases) {
    const player = new Player();
    for (const step of steps) {
      const complaint = await wrong(player, step);
      if (complaint !== null) {
        throw new Error(`${name}: ${JSON.stringify(step, null, 1)}\n${complaint}`);
      }
    }
    await player.end();
    console.log("ok:", name);
  }
  console.log(`played ${cases.length} cases`);
}

main().catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
  process.exit();
});
