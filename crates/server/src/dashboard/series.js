// Fetches time series and shows them as charts. After the first request only newer intervals are fetched.

import { series } from "./api.js";
import { chart } from "./chart.js";
import { make, say, show } from "./dom.js";
import { missingServers } from "./format.js";
import { setQuery } from "./router.js";

// The ranges that can be chosen: the server has an hour of seconds and two days of minutes.
const RANGES = {
  "5m": { text: "5 min", step: "1s", seconds: 300 },
  "1h": { text: "1 hour", step: "1s", seconds: 3_600 },
  "12h": { text: "12 hours", step: "1m", seconds: 43_200 },
  "2d": { text: "2 days", step: "1m", seconds: 172_800 },
};
const RANGE_DEFAULT = "5m";
// Minutes change rarely.
const MINUTES_EVERY_MS = 10_000;

const COUNTS = ["puts", "takes", "acks", "fails", "ready", "taken", "delayed", "buried"];
const PERCENTILES = ["p50", "p90", "p99"];

const RATES = { title: "Rates", kind: "rate", lines: [
  { key: "puts", label: "Puts", class: "put" }, { key: "takes", label: "Takes", class: "take" },
  { key: "acks", label: "Acks", class: "ack" }, { key: "fails", label: "Fails", class: "fail" }] };
const DEPTH = { title: "Depth", kind: "count", lines: [
  { key: "ready", label: "Ready", class: "ready" }, { key: "delayed", label: "Delayed", class: "delayed" },
  { key: "taken", label: "Taken", class: "taken" }, { key: "buried", label: "Buried", class: "buried" }] };
const percentiles = (title, of) => ({ title, kind: "time", lines: PERCENTILES.map((name) => (
  { key: `${of}.${name}`, label: name === "p50" ? "Median" : `${name.slice(1)}th percentile`, class: name })) });

export const CHARTS = {
  rates: RATES, depth: DEPTH, wait: percentiles("Wait time", "wait"), run: percentiles("Run time", "run"),
};

function flat(answer) {
  const values = Object.fromEntries(COUNTS.map((key) => [key, answer[key]]));
  for (const of of ["wait", "run"]) for (const name of PERCENTILES) values[`${of}.${name}`] = answer[of][name];
  return { from: answer.from, step: answer.step, values };
}

// Fills the beginning of the range, in which the server did not run yet, with empty intervals.
function pad(answer, length) {
  const lacking = Math.max(0, length - answer.values.puts.length);
  for (const key of Object.keys(answer.values)) {
    answer.values[key] = [...new Array(lacking).fill(null), ...answer.values[key]];
  }
  return { ...answer, from: answer.from - lacking * answer.step };
}

// Appends newer intervals and drops those that left the range; false if there is a gap or the clock was set.
function extend(kept, newer, most) {
  const length = kept.values.puts.length;
  if (newer.values.puts.length && Math.abs(newer.from - (kept.from + length * kept.step)) > kept.step / 2) return false;
  const surplus = Math.max(0, length + newer.values.puts.length - most);
  for (const [key, values] of Object.entries(kept.values)) {
    values.push(...newer.values[key]);
    values.splice(0, surplus);
  }
  kept.from += surplus * kept.step;
  return true;
}

// The charts with these names, of a tube or of all tubes. The range is in the query of the address.
export function charts(names, tube) {
  const drawn = names.map((name) => chart(CHARTS[name]));
  const missing = make("p", { class: "note missing", hidden: true });
  const radios = Object.entries(RANGES).map(([name, { text }]) => {
    const input = make("input", { type: "radio", name: "range", value: name,
      change: () => setQuery({ range: name === RANGE_DEFAULT ? null : name }, { replace: true }) });
    return make("label", {}, input, make("span", {}, text));
  });
  const chooser = make("fieldset", { class: "segments" }, make("legend", { class: "hidden-text" }, "Time range"), radios);
  const box = make("div", { class: "charts" }, drawn.map(({ element }) => element));
  let range = null;
  let kept = null;
  let fetched = 0;
  let withoutServers = "";

  async function fetchSeries(signal) {
    const { step, seconds } = RANGES[range];
    if (step === "1m" && kept && performance.now() - fetched < MINUTES_EVERY_MS) return;
    const wanted = { tube, step, from: kept ? kept.from + kept.values.puts.length * kept.step : -seconds };
    const found = await series(wanted, signal);
    const answer = flat(found);
    // Servers that are back have numbers for the intervals that are shown already.
    const without = missingServers(found.missing);
    if (withoutServers && without !== withoutServers && kept) kept = null;
    else if (!kept) kept = pad(answer, seconds / answer.step);
    else if (!extend(kept, answer, seconds / kept.step)) kept = null;
    withoutServers = without;
    fetched = performance.now();
  }

  return {
    element: box,
    chooser,
    missing,
    update(query) {
      const wanted = query.range in RANGES ? query.range : RANGE_DEFAULT;
      if (wanted !== range) kept = null;
      range = wanted;
      for (const label of radios) label.firstChild.checked = label.firstChild.value === range;
    },
    async refresh(signal) {
      try {
        await fetchSeries(signal);
      } catch (error) {
        // A server may collect no series, or the tube is gone; the rest of the view shows that.
        if (error.status !== 400 && error.status !== 404) throw error;
        say(missing, `No charts: ${error.message}.`);
        show(missing, true);
        show(box, false);
        return;
      }
      say(missing, withoutServers);
      show(missing, withoutServers !== "");
      show(box, true);
      if (kept) for (const { draw } of drawn) draw(kept);
    },
  };
}
