// Sends requests to the server, with the token.

const TOKEN = "taskyard-token";
const RESPONSE_MS_MAX = 10_000;

// A refused request; status 401 is a missing or wrong token.
class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

async function request(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  const limit = AbortSignal.timeout(RESPONSE_MS_MAX);
  const response = await fetch(path, {
    method,
    headers,
    body: body && JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  if (response.ok) return response.json();
  // A proxy in between may not respond with JSON.
  const failure = await response.json().catch(() => null);
  throw new RequestError(response.status, failure?.error?.message ?? `status ${response.status}`);
}

const at = (tube) => `v1/tubes/${encodeURIComponent(tube)}`;

// All tubes, including internal ones if `internal` is set.
export const stats = (internal, signal) => request(`v1/stats${internal ? "?internal=true" : ""}`, { signal });

// The services hosted beside the queue.
export const services = (signal) => request("v1/services", { signal });

export const setPaused = (tube, paused) => request(at(tube), { method: "PATCH", body: { paused } });

// The deliveries and the waiting consumers of the tube, at most `count` of each.
export async function deliveriesAndConsumers(tube, count, signal) {
  const [held, waiting] = await Promise.all([
    request(`${at(tube)}/deliveries?count=${count}`, { signal }),
    request(`${at(tube)}/consumers?count=${count}`, { signal }),
  ]);
  return { deliveries: held.deliveries, consumers: waiting.consumers };
}
