// Formats numbers, times and the reasons why tasks wait.

const numbers = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => numbers.format(value);

// Why a task does not run, in the words of this page.
const REASONS = { buried: "set aside; retry makes it ready", attempts_used_up: "its attempts are used up; retry makes it ready" };
export const reason = (found) => (found ? REASONS[found.name] ?? found.text : "");

// The servers whose numbers are not in an answer about all servers, with the reasons.
export const missingServers = (servers = []) =>
  (servers.length ? `Not included: ${servers.map(({ url, reason }) => `${url} (${reason})`).join(", ")}` : "");

// A number on an axis: "1.5K".
export const compact = (value) => (value >= 10_000 ? short : numbers).format(value);

export const rate = (value) => (value >= 10_000 ? short : numbers).format(
  value >= 10 ? Math.round(value) : Math.round(value * 10) / 10);

// An integer that may be larger than JavaScript's numbers.
export const exact = (value) => (typeof value === "object" && value !== null ? value.rawJSON : `${value}`);

// A length of time: "4 s", "3 min", "2 h 5 min", "12 d".
export function span(seconds) {
  if (seconds < 10 && seconds % 1) return `${Math.max(seconds, 0).toFixed(1)} s`;
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${number(Math.round(s / 86_400))} d`;
}

// A measured duration with two or three digits: "350 µs", "12 ms", "1.2 s".
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  const [factor, unit] = seconds < 1e-3 ? [1e6, "µs"] : seconds < 1 ? [1e3, "ms"] : [1, "s"];
  if (seconds >= 120) return span(seconds);
  const value = seconds * factor;
  return `${value >= 10 ? Math.round(value) : Math.round(value * 10) / 10} ${unit}`;
}

export const ago = (moment, now) => `${span(Math.max(Math.round(now - moment), 0))} ago`;

export const ahead = (moment, now) =>
  moment > now ? `in ${span(Math.max(Math.ceil(moment - now), 1))}` : "now";

const two = (value) => `${value}`.padStart(2, "0");

// A moment in the time zone of this machine: "2026-11-16 17:24:05".
export function moment(seconds) {
  const date = new Date(seconds * 1000);
  if (Number.isNaN(date.getTime())) return "never";
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function bytes(count) {
  if (count < 1024) return many(count, "byte");
  const [size, unit] = count < 1 << 20 ? [count / 1024, "KiB"] : [count / (1 << 20), "MiB"];
  return `${size >= 10 ? Math.round(size) : size.toFixed(1)} ${unit}`;
}

export const many = (count, one, more = `${one}s`) => `${number(count)} ${count === 1 ? one : more}`;

function ready({ tasks, takeable, consumers, paused }) {
  if (!tasks.ready) return null;
  const count = `${number(tasks.ready)} ready`;
  if (paused) return `${count}, not delivered while the tube is paused`;
  if (!takeable) return `${count}, all sub-queues busy`;
  const held = tasks.ready - takeable;
  const rest = held > 0 ? `, ${number(held)} waiting for earlier tasks of their sub-queues` : "";
  return count + rest + (consumers ? ", being delivered" : ", no waiting consumer");
}

function delayed({ tasks, next_wakeup: next }, now) {
  if (!tasks.delayed) return null;
  // The next change is certainly the end of a delay only when all tasks are delayed.
  const alone = tasks.delayed === tasks.total && next !== undefined;
  return `${number(tasks.delayed)} delayed` + (alone ? `, next ${ahead(next, now)}` : "");
}

// Why tasks of a tube wait, as a list of short remarks: the most urgent first.
export function why(tube, now) {
  const { tasks, capacity, consumers, paused } = tube;
  const remarks = [
    paused && "paused",
    tasks.total >= capacity && `full: capacity is ${many(capacity, "task")}`,
    ready(tube),
    delayed(tube, now),
    tasks.buried && `${number(tasks.buried)} buried`,
    tasks.taken && `${number(tasks.taken)} taken`,
  ].filter(Boolean);
  if (consumers && !tasks.ready) remarks.push(`${many(consumers, "waiting consumer")}`);
  return remarks.length ? remarks : ["no tasks waiting"];
}
