// Starts servers and worker processes for the tests, and proxies that lose answers.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, mkdtempSync, openSync, rmSync } from "node:fs";
import http from "node:http";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

import { Taskyard, Worker } from "taskyard";

/** Multiplies the work of random tests and storms. */
export const RUNS = Number(process.env.TASKYARD_RUNS ?? 1);

/** The exit code of a server whose address another program uses. */
const ADDRESS_IN_USE = 9;

const endings = new WeakMap();

/** Does this when the test ends: what began last ends first. */
export function atEnd(t, end) {
  if (!endings.has(t)) {
    endings.set(t, []);
    t.after(async () => {
      for (const last of endings.get(t).reverse()) await last();
    });
  }
  endings.get(t).push(end);
}

const children = new Set();
// A test that runs for too long is ended with SIGTERM: its servers end with it.
process.once("SIGTERM", () => process.exit(1));
process.once("exit", () => children.forEach((child) => child.kill("SIGKILL")));

/** Starts a process that ends with this one. */
function start(program, args, options) {
  const child = spawn(program, args, options);
  children.add(child);
  child.once("exit", () => children.delete(child));
  return child;
}

/** The environment without the settings of this shell. */
function cleanEnv() {
  const { TASKYARD_URL, TASKYARD_TOKEN, TASKYARD_CA, TASKYARD_CLIENT_CERT, TASKYARD_CLIENT_KEY, TASKYARD_LOG, ...env } = process.env;
  return env;
}

/** A server process; ends with the test. */
export class Server {
  /** A server on a free port with its tasks in memory, or with other arguments. */
  static async start(t, args = ["--store", "memory:"]) {
    const server = new Server(args);
    await server.run("127.0.0.1:0");
    atEnd(t, () => server.kill());
    return server;
  }

  /** A server with its tasks in a folder, which can be killed and started again. */
  static async inFolder(t) {
    const folder = mkdtempSync(join(tmpdir(), "taskyard-node-"));
    atEnd(t, () => rmSync(folder, { recursive: true }));
    return Server.start(t, ["--data", folder]);
  }

  constructor(args) {
    this.args = args;
  }

  async run(address) {
    await this.start(address);
    this.check();
  }

  check() {
    if (!this.url) throw new Error(`the server ended after '${this.screen}'`);
  }

  async start(address) {
    const program = process.env.TASKYARD_BINARY;
    if (!program) throw new Error("TASKYARD_BINARY does not name the taskyard binary");
    const args = ["serve", "--http", address, "--iproto", "off", ...this.args];
    const log = logFile();
    this.child = start(program, args, { stdio: ["ignore", "pipe", log], env: cleanEnv() });
    if (log !== "ignore") closeSync(log);
    this.ended = once(this.child, "exit");
    this.screen = "";
    for await (const part of this.child.stdout) {
      this.screen += part;
      if (this.screen.includes("Ctrl-C")) break;
    }
    this.url = this.screen.match(/https?:\/\/[0-9a-z.]+:[0-9]+/)?.[0];
  }

  get port() {
    return Number(new URL(this.url).port);
  }

  client(options) {
    return new Taskyard(this.url, options);
  }

  /** Kills it with SIGKILL. */
  async kill() {
    this.child.kill("SIGKILL");
    await this.ended;
  }

  /** Starts it again at the same address. A client of another test may use that port for a moment while the server is away. */
  async restart() {
    const { host } = new URL(this.url);
    do await this.start(host);
    while (this.url === undefined && (await this.ended)[0] === ADDRESS_IN_USE);
    this.check();
  }
}

/** Where the log of a server is kept, so that `cargo xtask test` finds secrets in it. */
function logFile() {
  const folder = process.env.TASKYARD_TEST_OUTPUT;
  return folder ? openSync(join(folder, "output", `node-${process.pid}`), "a") : "ignore";
}

/** A worker in its own process, whose lines of output are read one by one. */
export class WorkerProcess {
  constructor(t, script, args, env = {}) {
    const file = fileURLToPath(new URL(script, import.meta.url));
    this.child = start(process.execPath, [file, ...args], { stdio: ["ignore", "pipe", "inherit"], env: { ...cleanEnv(), ...env } });
    this.ended = once(this.child, "exit");
    this.lines = lines(this.child.stdout);
    atEnd(t, () => this.child.kill("SIGKILL"));
  }

  async line() {
    return (await this.lines.next()).value;
  }

  signal(name) {
    this.child.kill(name);
  }
}

async function* lines(stream) {
  let rest = "";
  for await (const part of stream) {
    const parts = (rest + part).split("\n");
    rest = parts.pop();
    yield* parts;
  }
}

/** A proxy before a server that can lose answers: the request arrives, and the connection ends before the answer. */
export class LossyProxy {
  /** How many of the next answers are lost. */
  lose = 0;
  lost = 0;

  static async start(t, port) {
    const proxy = new LossyProxy();
    proxy.listener = net.createServer((near) => proxy.connect(near, port));
    proxy.listener.listen(0, "127.0.0.1");
    await once(proxy.listener, "listening");
    proxy.url = `http://127.0.0.1:${proxy.listener.address().port}`;
    atEnd(t, () => proxy.listener.close());
    return proxy;
  }

  connect(near, port) {
    const far = net.connect(port, "127.0.0.1");
    near.on("error", () => far.destroy());
    far.on("error", () => near.destroy());
    near.on("close", () => far.destroy());
    far.on("close", () => near.destroy());
    near.pipe(far);
    far.on("data", (answer) => {
      if (this.lose > 0) {
        this.lose -= 1;
        this.lost += 1;
        near.destroy();
        return;
      }
      near.write(answer);
    });
  }
}

/** Connections without a request stay open, as those of Taskyard: else a request may be sent just when its connection is closed. */
function keepIdle(server) {
  server.keepAliveTimeout = 0;
}

/** A proxy before a server that answers some requests itself, loses answers, or lets connections die without a sign. */
export class HttpProxy {
  /**
   * Decides about a request by its line and its body: nothing forwards it, `[status, text]` is an answer, "request" loses the
   * request and "answer" the answer. May be asynchronous.
   */
  intercept = () => undefined;
  /** The requests: `POST /v1/tubes/a/finish`. */
  lines = [];
  /** How many connections there were. */
  opened = 0;
  sockets = new Set();
  frozen = new WeakSet();

  static async start(t, port) {
    const proxy = new HttpProxy();
    proxy.listener = http.createServer((request, response) => void proxy.serve(request, response, port));
    keepIdle(proxy.listener);
    proxy.listener.on("connection", (socket) => {
      proxy.opened += 1;
      proxy.sockets.add(socket);
      socket.once("close", () => proxy.sockets.delete(socket));
    });
    proxy.listener.listen(0, "127.0.0.1");
    await once(proxy.listener, "listening");
    proxy.url = `http://127.0.0.1:${proxy.listener.address().port}`;
    atEnd(t, () => proxy.listener.closeAllConnections());
    atEnd(t, () => proxy.listener.close());
    return proxy;
  }

  /** Lets all connections that exist die: nothing is answered, and they are not closed. */
  freeze() {
    for (const socket of this.sockets) this.frozen.add(socket);
  }

  async serve(request, response, port) {
    let body = "";
    for await (const part of request) body += part;
    const line = `${request.method} ${request.url}`;
    this.lines.push(line);
    if (this.frozen.has(request.socket)) return;
    const decided = await this.intercept(line, body);
    if (decided === "request") return request.socket.destroy();
    if (Array.isArray(decided)) return response.writeHead(decided[0]).end(decided[1]);
    const ended = new AbortController();
    response.once("close", () => ended.abort());
    const options = { method: request.method, headers: request.headers, signal: ended.signal, ...(body && { body }) };
    const answer = await fetch(`http://127.0.0.1:${port}${request.url}`, options).catch(() => undefined);
    const text = await answer?.text();
    if (answer === undefined || decided === "answer") return request.socket.destroy();
    if (!this.frozen.has(request.socket)) response.writeHead(answer.status, { "content-type": "application/json" }).end(text);
  }
}

/** The status and the text of an answer that refuses a request. */
export const refusal = (status, code) => [status, JSON.stringify({ error: { code, message: code } })];

/** A server that answers what the test says, at once or later, and notes the requests. */
export async function scripted(t, answer) {
  const [bodies, lines] = [[], []];
  const server = http.createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    bodies.push(body === "" ? undefined : JSON.parse(body));
    lines.push(`${request.method} ${request.url}`);
    const [status, headers, json] = await answer(bodies.at(-1), bodies.length);
    if (status === 0) return request.socket.destroy();
    response.writeHead(status, headers).end(typeof json === "string" ? json : JSON.stringify(json));
  });
  keepIdle(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  atEnd(t, () => server.closeAllConnections());
  atEnd(t, () => server.close());
  return { url: `http://127.0.0.1:${server.address().port}`, bodies, lines };
}

/** A worker without signal handlers that stops with the test, and its events. */
export function work(t, client, tube, handler, options) {
  const worker = new Worker(client, tube, handler, { signals: false, ...options });
  atEnd(t, () => worker.stop({ grace: 0 }));
  const events = Object.fromEntries(["done", "failed", "lost", "problem"].map((event) => [event, new Collected()]));
  for (const [event, collected] of Object.entries(events)) worker.on(event, (...values) => collected.add(values));
  return { worker, ...events };
}

/** A server, a client of it, a proxy before it, and a client through the proxy. */
export async function proxied(t) {
  const server = await Server.start(t);
  const proxy = await HttpProxy.start(t, server.port);
  const far = new Taskyard(proxy.url);
  atEnd(t, () => far.close());
  return { near: server.client(), far, proxy };
}

/** Collects values and resolves when there are enough. */
export class Collected {
  values = [];
  waiting = [];

  add(value) {
    this.values.push(value);
    this.waiting = this.waiting.filter(({ count, resolve }) => this.values.length < count || resolve(this.values));
  }

  atLeast(count) {
    if (this.values.length >= count) return Promise.resolve(this.values);
    return new Promise((resolve) => this.waiting.push({ count, resolve }));
  }
}

/** A promise and what settles it. */
export function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { opened, open };
}

/** Resolves when the signal is aborted. */
export function aborted(signal) {
  return signal.aborted ? Promise.resolve() : once(signal, "abort");
}
