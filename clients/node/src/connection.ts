// Sends requests to a server over connections that are kept open, and repeats those that may be repeated.

import http from "node:http";
import https from "node:https";

import type { ErrorAnswer } from "./api.js";
import { TaskyardError } from "./errors.js";
import { readJson } from "./json.js";
import { pause } from "./pause.js";
import { tlsOptions, tlsProblem } from "./tls.js";
import { VERSION } from "./version.js";

/** What the server's list of workers shows as the version. */
const AGENT = `taskyard/${VERSION} (node ${process.versions.node})`;

/** How long a connection is kept open while no request uses it, in milliseconds: less than servers keep it. */
const IDLE_MS = 60_000;
/**
 * How many requests are sent at a time for each purpose; further ones wait. A worker uses one connection for its take and one for
 * its finishes, or two while leases are extended at the same time.
 */
const CONNECTIONS_MAX: Readonly<Record<Purpose, number>> = { take: 1024, finish: 16, other: 64 };
/** The first and the longest pause before a request is repeated, in milliseconds. */
const PAUSE_FIRST_MS = 100;
const PAUSE_MAX_MS = 5_000;

/** How to reach a server. */
export interface ConnectionOptions {
  /** The access token; the environment variable TASKYARD_TOKEN when absent. */
  token?: string | undefined;
  /** PEM text of the certificate authority for https; the file named by TASKYARD_CA, or those of the system, when absent. */
  ca?: string | Buffer | undefined;
  /** PEM text of the certificate for servers that ask for one; the file named by TASKYARD_CLIENT_CERT when absent. */
  clientCert?: string | Buffer | undefined;
  /** PEM text of the private key of that certificate; the file named by TASKYARD_CLIENT_KEY when absent. */
  clientKey?: string | Buffer | undefined;
  /** How many seconds a server may take to answer, in addition to the wait of the request; 60 when absent. */
  timeout?: number | undefined;
  /**
   * For how many seconds a request is repeated while the server is unreachable or asks to try again; 30 when absent, at most
   * 300, 0 for never. A request whose outcome is unknown is repeated only if that does no harm.
   */
  retry?: number | undefined;
}

/** A request. */
export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  body?: string | undefined;
  /** The seconds that the server may wait before it answers. */
  wait?: number | undefined;
  /** The seconds that the server may take to answer, instead of those of the connection. */
  timeout?: number | undefined;
  /** Whether it does no harm to send it again when the outcome is unknown. */
  repeatable?: boolean | undefined;
  /** Which connections it uses. */
  purpose?: Purpose | undefined;
  /** Cancels the request. */
  signal?: AbortSignal | undefined;
  /** Asks the server to answer now: with what it has sent already, or by ending the connection. Not for https. */
  hurry?: AbortSignal | undefined;
}

/** Takes wait for long and finishes are urgent: none of the three waits for a connection that another one uses. */
export type Purpose = "take" | "finish" | "other";

/** The connections to one server. */
export class Connection {
  /** Whether a request can be hurried. */
  readonly canHurry: boolean;
  /** The URL without credentials and without a slash at its end. */
  readonly url: string;
  readonly retrySeconds: number;
  private readonly timeoutMs: number;
  private readonly base: URL;
  private readonly headers: Record<string, string>;
  private readonly newAgents: () => Record<Purpose, http.Agent>;
  private agents: Record<Purpose, http.Agent>;
  /** How often the connections were closed. */
  private closes = 0;
  /** What ends requests in progress, and pauses before they are repeated. */
  private readonly inProgress = new Set<() => void>();

  constructor(url: string, options: ConnectionOptions = {}) {
    this.base = serverUrl(url);
    this.url = `${this.base.origin}${this.base.pathname}`.replace(/\/+$/, "");
    this.canHurry = this.base.protocol === "http:";
    this.timeoutMs = 1000 * (options.timeout ?? 60);
    this.retrySeconds = Math.min(options.retry ?? 30, 300);
    this.headers = { "user-agent": AGENT };
    const token = options.token ?? process.env["TASKYARD_TOKEN"];
    if (token) this.headers["authorization"] = `Bearer ${checkedToken(token)}`;
    const agent = this.agentMaker(options);
    this.newAgents = () => ({ take: agent(CONNECTIONS_MAX.take), finish: agent(CONNECTIONS_MAX.finish), other: agent(CONNECTIONS_MAX.other) });
    this.agents = this.newAgents();
  }

  /** Sends a request and answers with the parsed body, and repeats it as the options say. */
  async call<A>(call: Call): Promise<A> {
    const deadline = performance.now() + 1000 * this.retrySeconds;
    const { closes } = this;
    for (let pauseMs = PAUSE_FIRST_MS; ; pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS)) {
      try {
        return await this.once<A>(call);
      } catch (error) {
        if (!(error instanceof TaskyardError) || !mayRepeat(error, call) || this.closes !== closes) throw error;
        const asked = Math.max(pauseMs, 1000 * Math.min(error.retryAfter ?? 0, 5));
        if (performance.now() + asked > deadline) throw error;
        await this.pauseAfter(error, asked, call.signal);
      }
    }
  }

  /** Sends a request once. */
  async once<A>(call: Call): Promise<A> {
    const { status, text, retryAfter } = await this.exchange(call);
    let answer: unknown;
    try {
      answer = readJson(text);
    } catch (cause) {
      throw this.noAnswer(status, { cause, retryAfter });
    }
    if (status >= 200 && status < 300) return answer as A;
    const detail = (answer as Partial<ErrorAnswer> | null)?.error;
    if (typeof detail?.code !== "string") throw this.noAnswer(status, { retryAfter });
    throw new TaskyardError(detail.code, detail.message, { status, detail, retryAfter });
  }

  /** Sends a request once and answers with the body as a text. */
  async text(path: string): Promise<string> {
    const { status, text } = await this.exchange({ method: "GET", path });
    if (status !== 200) throw this.noAnswer(status, {});
    return text;
  }

  /** Closes all connections; requests in progress fail and are not repeated. Later requests use new connections. */
  close(): void {
    this.closes += 1;
    const closed = Object.values(this.agents);
    this.agents = this.newAgents();
    for (const end of [...this.inProgress]) end();
    for (const agent of closed) {
      // It connects once more for a request that waited for a connection, although that was ended.
      agent.maxFreeSockets = 0;
      agent.destroy();
    }
  }

  /** Waits before a request is repeated; throws the error of the last one if the connections are closed meanwhile. */
  private async pauseAfter(error: TaskyardError, ms: number, signal: AbortSignal | undefined): Promise<void> {
    const over = new AbortController();
    const close = () => over.abort(error);
    const abort = () => over.abort(signal?.reason);
    if (signal?.aborted) abort();
    signal?.addEventListener("abort", abort, { once: true });
    this.inProgress.add(close);
    try {
      await pause(ms, over.signal);
    } finally {
      this.inProgress.delete(close);
      signal?.removeEventListener("abort", abort);
    }
  }

  private exchange(call: Call): Promise<RawAnswer> {
    if (call.signal?.aborted) return Promise.reject(call.signal.reason);
    const { promise, resolve, reject } = deferred<RawAnswer>();
    const body = call.body ?? (call.method === "GET" ? undefined : "{}");
    const headers: http.OutgoingHttpHeaders = { ...this.headers };
    if (body !== undefined) {
      headers["content-type"] = "application/json";
      headers["content-length"] = Buffer.byteLength(body);
    }
    const send = this.base.protocol === "https:" ? https.request : http.request;
    const agent = this.agents[call.purpose ?? "other"];
    const request = send({
      agent,
      host: this.base.hostname.replace(/^\[|\]$/g, ""),
      port: this.base.port || undefined,
      path: this.base.pathname.replace(/\/+$/, "") + call.path,
      method: call.method,
      headers,
    });
    let connected = false;
    request.once("socket", (socket) => {
      connected = !socket.connecting;
      if (!connected) socket.once(this.base.protocol === "https:" ? "secureConnect" : "connect", () => (connected = true));
    });
    const withinMs = (call.timeout === undefined ? this.timeoutMs : 1000 * call.timeout) + 1000 * (call.wait ?? 0);
    const ended = () => {
      clearTimeout(timer);
      call.signal?.removeEventListener("abort", abort);
      call.hurry?.removeEventListener("abort", hurry);
      this.inProgress.delete(close);
    };
    const fail = (cause: Error) => {
      ended();
      reject(this.lost(cause, connected));
    };
    // Rejects at once: a request that waits for a connection reports its end only when it gets one.
    const end = (reason: unknown) => {
      ended();
      reject(reason);
      request.destroy();
    };
    const timer = setTimeout(() => {
      end(this.lost(new Error(`no answer within ${withinMs / 1000} s`), connected));
      // Others that were opened with it may be dead, too.
      for (const socket of Object.values(agent.freeSockets).flat()) socket?.destroy();
    }, withinMs);
    const abort = () => end(call.signal?.reason);
    const close = () => end(this.closed(connected));
    // Without a socket the request has not been sent.
    const hurry = () => void (request.socket ? request.socket.end() : end(this.lost(new Error("it was not sent yet"), false)));
    call.signal?.addEventListener("abort", abort, { once: true });
    call.hurry?.addEventListener("abort", hurry, { once: true });
    this.inProgress.add(close);
    request.on("error", fail);
    request.once("response", (response) => {
      const chunks: Buffer[] = [];
      response.on("data", (chunk: Buffer) => chunks.push(chunk));
      response.on("error", fail);
      response.once("end", () => {
        ended();
        const retryAfter = Number(response.headers["retry-after"]) || undefined;
        resolve({ status: response.statusCode ?? 0, text: Buffer.concat(chunks).toString(), retryAfter });
      });
    });
    request.end(body);
    if (call.hurry?.aborted) hurry();
    return promise;
  }

  private closed(connected: boolean): TaskyardError {
    if (!connected) return new TaskyardError("unreachable", `the client was closed before it was connected to ${this.url}`);
    const message = `the client was closed before the answer from ${this.url}; the request may have been executed`;
    return new TaskyardError("outcome_unknown", message);
  }

  private lost(cause: Error, connected: boolean): TaskyardError {
    const why = (cause as NodeJS.ErrnoException).code ?? cause.message;
    const untrusted = tlsProblem(this.base, cause);
    if (untrusted !== undefined) return new TaskyardError("untrusted", untrusted, { cause });
    if (!connected) {
      return new TaskyardError("unreachable", `cannot connect to ${this.url} (${why}); is the server running?`, { cause });
    }
    const message = `lost the connection to ${this.url} before the answer (${why}); the request may have been executed`;
    return new TaskyardError("outcome_unknown", message, { cause });
  }

  /** An answer that is not of Taskyard may come from a proxy whose server does not answer. */
  private noAnswer(status: number, more: { cause?: unknown; retryAfter?: number | undefined }): TaskyardError {
    if (status === 502 || status === 504) {
      const message = `no answer from ${this.url}: a proxy answered with status ${status}; the request may have been executed`;
      return new TaskyardError("outcome_unknown", message, more);
    }
    if (status === 429 || status === 503) {
      return new TaskyardError("unavailable", `${this.url} is unavailable: a proxy answered with status ${status}`, more);
    }
    if (status === 413) {
      const message = `the request is too large for ${this.url}: a proxy answered with status ${status}`;
      return new TaskyardError("too_large", message, { ...more, status });
    }
    return new TaskyardError("not_taskyard", `${this.url} is not a taskyard server (status ${status}); check the address`, more);
  }

  private agentMaker(options: ConnectionOptions): (maxSockets: number) => http.Agent {
    const shared = { keepAlive: true, noDelay: true, timeout: IDLE_MS };
    if (this.base.protocol === "http:") {
      if ((options.ca ?? options.clientCert ?? options.clientKey) !== undefined) {
        throw new TypeError(`connections to ${this.url} are not encrypted; use https://, or leave out ca and clientCert`);
      }
      return (maxSockets) => new http.Agent({ ...shared, maxSockets });
    }
    const tls = tlsOptions(options);
    return (maxSockets) => new https.Agent({ ...shared, ...tls, maxSockets });
  }
}

interface RawAnswer {
  status: number;
  text: string;
  retryAfter?: number | undefined;
}

function mayRepeat(error: TaskyardError, call: Call): boolean {
  return error.isTemporary || (error.isUnknown && call.repeatable === true);
}

function serverUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url?.protocol !== "http:" && url?.protocol !== "https:") {
    throw new TypeError(`'${text}' is not the URL of a server; use one such as http://127.0.0.1:7070`);
  }
  return url;
}

function checkedToken(token: string): string {
  const trimmed = token.trim();
  if (!/^[\x21-\x7e]+$/.test(trimmed)) {
    throw new TypeError("the token may contain visible ASCII characters only, without spaces");
  }
  return trimmed;
}

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void; reject: (reason: unknown) => void } {
  let resolve!: (value: T) => void;
  let reject!: (reason: unknown) => void;
  const promise = new Promise<T>((yes, no) => {
    resolve = yes;
    reject = no;
  });
  return { promise, resolve, reject };
}
