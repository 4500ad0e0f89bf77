// Asks the server. Knows the token and nothing about the page.

const TOKEN = "taskyard-token";
const ANSWER_MS_MAX = 10_000;

// What the server refused; status 401 is a token that is missing or wrong.
class Refusal extends Error {
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

async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = {};
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  if (body) headers["Content-Type"] = "application/json";
  const limit = AbortSignal.timeout(ANSWER_MS_MAX);
  const answer = await fetch(path, {
    method,
    headers,
    body: body && JSON.stringify(body),
    signal: signal ? AbortSignal.any([signal, limit]) : limit,
  });
  if (answer.ok) return answer.json();
  // A proxy in between may answer something else than JSON.
  const refusal = await answer.json().catch(() => null);
  throw new Refusal(answer.status, refusal?.error?.message ?? `status ${answer.status}`);
}

const at = (tube) => `v1/tubes/${encodeURIComponent(tube)}`;

// All tubes, with those of the service itself if `internal` is set.
export const stats = (internal, signal) => ask(`v1/stats${internal ? "?internal=true" : ""}`, { signal });

// What runs beside the queue.
export const services = (signal) => ask("v1/services", { signal });

export const setPaused = (tube, paused) => ask(at(tube), { method: "PATCH", body: { paused } });

// Who holds tasks of the tube and who waits for one, at most `count` of each.
export async function people(tube, count, signal) {
  const [held, waiting] = await Promise.all([
    ask(`${at(tube)}/deliveries?count=${count}`, { signal }),
    ask(`${at(tube)}/consumers?count=${count}`, { signal }),
  ]);
  return { deliveries: held.deliveries, consumers: waiting.consumers };
}
