// Sends requests to the server, with the token.

import { at } from "./router.js";

const TOKEN = "taskyard-token";
const RESPONSE_MS_MAX = 10_000;
const CHANGE_MS_MAX = 120_000;

// A refused request; status 401 is a missing or wrong token.
class RequestError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

// The server's time minus that of this machine, in seconds.
let offset = 0;
export const now = () => Date.now() / 1000 + offset;

// Reads JSON. Integers that a number of JavaScript would round stay as they are, if the browser can do that.
function parse(text) {
  if (!JSON.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) ? JSON.rawJSON(source) : value);
}

async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  // A change that was sent is not cut off early: it would be unknown whether it was made.
  const limit = AbortSignal.timeout(method === "GET" ? RESPONSE_MS_MAX : CHANGE_MS_MAX);
  const response = await fetch(at(path), {
    method,
    headers,
    body: body && JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  if (response.ok) return parse(await response.text());
  // A proxy in between may not respond with JSON.
  const failure = (await response.json().catch(() => null))?.error;
  throw new RequestError(response.status, failure?.code, failure?.message ?? `status ${response.status}`);
}

const post = (path, body, signal) => request(path, { method: "POST", body, signal });
const query = (values) => new URLSearchParams(
  Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== ""));
const tubeAt = (tube) => `v1/tubes/${encodeURIComponent(tube)}`;
const scheduleAt = (name) => `v1/schedules/${encodeURIComponent(name)}`;
const semaphoreAt = (key) => `v1/semaphores/${encodeURIComponent(key)}`;

// All tubes, including internal ones if `internal` is set.
export async function stats(internal, signal) {
  const answer = await request(`v1/stats${internal ? "?internal=true" : ""}`, { signal });
  offset = answer.time - Date.now() / 1000;
  return answer;
}

export const services = (signal) => request("v1/services", { signal });
export const series = (values, signal) => request(`v1/series?${query(values)}`, { signal });
// A page of workers, after the one with the name `after`.
export const workers = (after, signal) => request(`v1/workers${after ? `?${query({ after })}` : ""}`, { signal });
export const poolStatus = (signal) => request("pool/status", { signal });

export const tube = (name, signal) => request(tubeAt(name), { signal });
export const setPaused = (name, paused) => request(tubeAt(name), { method: "PATCH", body: { paused } });
export const truncate = (name) => post(`${tubeAt(name)}/truncate`, {});

// A page of tasks that match the filter.
export const tasks = (name, filter, signal) => request(`${tubeAt(name)}/tasks?${query(filter)}`, { signal });
// One task; its payload is MessagePack in base64.
export const task = (name, id, signal) => request(`${tubeAt(name)}/tasks/${id}?base64=true`, { signal });
// Kicks, deletes, buries or releases tasks by ids or by a filter.
export const act = (name, action, body, signal) => post(`${tubeAt(name)}/tasks/${action}`, body, signal);

// The deliveries and the waiting consumers of the tube, at most `count` of each.
export async function deliveriesAndConsumers(name, count, signal) {
  const [held, waiting] = await Promise.all([
    request(`${tubeAt(name)}/deliveries?count=${count}`, { signal }),
    request(`${tubeAt(name)}/consumers?count=${count}`, { signal }),
  ]);
  return { deliveries: held.deliveries, consumers: waiting.consumers };
}

// A page of schedules by name.
export const schedules = (values, signal) => request(`v1/schedules?${query(values)}`, { signal });
export const schedule = (name, signal) => request(scheduleAt(name), { signal });
export const nextTimes = (name, count, signal) => request(`${scheduleAt(name)}/next?count=${count}`, { signal });
export const setSchedulePaused = (name, paused) => post(`${scheduleAt(name)}/${paused ? "pause" : "resume"}`, {});
export const runSchedule = (name) => post(`${scheduleAt(name)}/run`, {});
export const removeSchedule = (name) => request(scheduleAt(name), { method: "DELETE" });

export const semaphores = (signal) => request("v1/semaphores", { signal });
export const semaphore = (key, signal) => request(semaphoreAt(key), { signal });
// Tasks of a semaphore: `group` is "holders" or "waiting".
export const members = (key, group, values, signal) =>
  request(`${semaphoreAt(key)}/${group}?${query(values)}`, { signal });
