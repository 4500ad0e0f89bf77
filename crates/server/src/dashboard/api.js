// Sends requests to the server. A user who signed in is known by a cookie that no script can read.

import { at } from "./router.js";
import { may, mayWithAll, setUser, user } from "./user.js";

const RESPONSE_MS_MAX = 10_000;
const CHANGE_MS_MAX = 120_000;

// A refused request; status 401 means that the user has to sign in.
class RequestError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// Whether there was an input of the user since the last request; opening the page is one. Only then a request keeps the
// session from ending: those that refresh the page by themselves do not.
let hasInput = true;
for (const kind of ["click", "keydown", "pointerdown", "touchstart", "wheel"]) {
  addEventListener(kind, ({ isTrusted }) => { hasInput ||= isTrusted; }, { capture: true, passive: true });
}

// The server's time minus that of this machine, in seconds.
let offset = 0;
export const now = () => Date.now() / 1000 + offset;

// Reads JSON. Integers that a number of JavaScript would round stay as they are, if the browser can do that.
export function parseJson(text) {
  if (!JSON.rawJSON || !/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) ? JSON.rawJSON(source) : value);
}

async function request(path, { method = "GET", body, signal, isChange = method !== "GET" } = {}, isRepeated = false) {
  const headers = {};
  const csrf = method === "GET" ? undefined : user()?.session?.csrf;
  if (csrf) headers["X-Taskyard-CSRF"] = csrf;
  const isActive = hasInput;
  if (isActive) headers["X-Taskyard-Active"] = "true";
  if (body) headers["Content-Type"] = "application/json";
  // A change that was sent is not cut off early: it would be unknown whether it was made.
  const limit = AbortSignal.timeout(isChange ? CHANGE_MS_MAX : RESPONSE_MS_MAX);
  const response = await fetch(at(path), {
    method,
    headers,
    body: body && JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  if (isActive) hasInput = false;
  if (response.ok) return parseJson(await response.text());
  if (response.status === 403 && csrf && !isRepeated) {
    const current = await request("v1/session", { signal });
    if (current.user !== user()?.user) {
      // What the user of this page has confirmed is not done by another one.
      dispatchEvent(new Event("userchange"));
      throw new RequestError(403, "forbidden", "another user has signed in in this browser");
    }
    // The user has signed in again in another tab: the session is another one.
    setUser(current);
    if (current.session && current.session.csrf !== csrf) return request(path, { method, body, signal, isChange }, true);
  }
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

// Fetches who the user is.
export async function identify(signal) {
  setUser(await request("v1/session", { signal }));
}

export async function signIn(token) {
  setUser(await post("v1/session", { token }));
}

export const signOut = () => request("v1/session", { method: "DELETE" });

// All tubes, including internal ones if `internal` is set, with the times in which they drain if `estimate` is set.
export async function stats(values, signal) {
  const answer = await request(`v1/stats?${query(values)}`, { signal });
  offset = answer.time - Date.now() / 1000;
  return answer;
}

// The hosted services; none for a user who may not see them.
export const services = async (signal) =>
  (mayWithAll("show_server") ? request("v1/services", { signal }) : { services: [] });

// Asks about all servers of the store that this one knows. One of an older version refuses that, and shows what it saw itself.
async function ofAllServers(path, values, signal) {
  const ask = (all) => request(`${path}?${query({ ...values, all })}`, { signal });
  try {
    return await ask(true);
  } catch (error) {
    if (error.status !== 400) throw error;
    return ask();
  }
}

// Time series of all servers.
export const series = (values, signal) => ofAllServers("v1/series", values, signal);
// A page of workers of all servers, after the one with the name `after`.
export const workers = (after, signal) => ofAllServers("v1/workers", { after }, signal);
// The latest audit entries, the newest first.
export const audit = (limit, signal) => request(`v1/audit?${query({ limit })}`, { signal });
export const poolStatus = (signal) => request("pool/status", { signal });

// One tube with the time in which it drains.
export const tube = (name, signal) => request(`${tubeAt(name)}?estimate=true`, { signal });
export const setPaused = (name, paused) => request(tubeAt(name), { method: "PATCH", body: { paused } });
export const truncate = (name) => post(`${tubeAt(name)}/truncate`, {});

// A page of tasks that match the filter.
export const tasks = (name, filter, signal) => request(`${tubeAt(name)}/tasks?${query(filter)}`, { signal });
// One task with its estimate; its payload is MessagePack in base64.
export const task = (name, id, signal) => request(`${tubeAt(name)}/tasks/${id}?base64=true&estimate=true`, { signal });
// Positions and estimates of tasks by id; those that do not wait are left out.
export const positions = async (name, ids, signal) =>
  (await request(`${tubeAt(name)}/positions`, { method: "POST", body: { ids }, signal, isChange: false })).tasks;
// Kicks, deletes, buries or releases tasks by ids or by a filter.
export const act = (name, action, body, signal) => post(`${tubeAt(name)}/tasks/${action}`, body, signal);

// The deliveries and the waiting consumers of the tube, at most `count` of each.
export async function deliveriesAndConsumers(name, count, signal) {
  const [held, waiting] = await Promise.all([
    may("show_holders", name) ? request(`${tubeAt(name)}/deliveries?count=${count}`, { signal }) : { deliveries: [] },
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
export const setSchedule = (name, body) => request(scheduleAt(name), { method: "PUT", body });
export const removeSchedule = (name) => request(scheduleAt(name), { method: "DELETE" });

export const semaphores = (signal) => request("v1/semaphores", { signal });
export const semaphore = (key, signal) => request(semaphoreAt(key), { signal });
// Tasks of a semaphore: `group` is "holders" or "waiting".
export const members = (key, group, values, signal) =>
  request(`${semaphoreAt(key)}/${group}?${query(values)}`, { signal });
