// Computes the scales of charts: round numbers on the axes, and fewer values than pixels.

// Steps of a time axis, in seconds.
const TIME_STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400];

const two = (value) => `${value}`.padStart(2, "0");

// Round numbers from 0 to at least `top`.
export function ticks(top, count = 4) {
  const rough = Math.max(top, Number.MIN_VALUE) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough * (1 - 1e-9)) * power;
  const last = Math.max(1, Math.ceil(top / step - 1e-9));
  return Array.from({ length: last + 1 }, (_, i) => i * step);
}

// The unit in which durations up to `top` seconds are shown on an axis: its name, and its length in seconds.
export function timeUnit(top) {
  if (top < 1e-3) return ["µs", 1e-6];
  if (top < 1) return ["ms", 1e-3];
  if (top < 120) return ["s", 1];
  if (top < 7200) return ["min", 60];
  return top < 172_800 ? ["h", 3600] : ["d", 86_400];
}

// Moments with round local times between two others, at least `apart` pixels from each other.
export function timeTicks(from, until, width, apart = 80) {
  const most = Math.max(1, Math.floor(width / apart));
  const step = TIME_STEPS.find((seconds) => (until - from) / seconds <= most) ?? TIME_STEPS.at(-1);
  const zone = new Date(until * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= until; at += step) {
    found.push({ at, text: timeText(at, step) });
  }
  return found;
}

// A moment as short as the step allows; midnight shows the day.
export function timeText(at, step) {
  const date = new Date(at * 1000);
  const [h, m, s] = [date.getHours(), date.getMinutes(), date.getSeconds()];
  if (step >= 60 && !h && !m) return `${date.toLocaleDateString("en", { weekday: "short" })} ${date.getDate()}`;
  return `${two(h)}:${two(m)}${step < 60 ? `:${two(s)}` : ""}`;
}

const average = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const largest = (values) => values.reduce((most, value) => (value > most ? value : most));

// Combines the values to at most `most`: the average of a rate, the maximum of anything else. Groups keep their limits while the
// window moves, so that the curve does not flicker. `first` is the number of the first interval.
export function combine(values, first, most, how) {
  const size = Math.max(1, Math.ceil(values.length / most));
  const points = [];
  for (let begin = 0; begin < values.length;) {
    const end = Math.min(values.length, begin + size - ((first + begin) % size));
    const group = values.slice(begin, end).filter((value) => value !== null);
    const value = group.length ? (how === "average" ? average(group) : largest(group)) : null;
    points.push({ middle: (begin + end) / 2, value });
    begin = end;
  }
  return points;
}
