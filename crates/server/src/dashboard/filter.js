// The search form of a tube: its fields are in the query of the address, with the names of the API.

import { make, mark } from "./dom.js";
import { setQuery } from "./router.js";

// The conditions beyond the state, which make a list a search.
export const CONDITIONS = ["match", "error", "key", "worker", "attempts_min", "subqueue", "created_from", "created_until",
  "finished_from", "finished_until"];
const TIMES = ["created_from", "created_until", "finished_from", "finished_until"];

const two = (value) => `${value}`.padStart(2, "0");

// Seconds since the epoch as a field of local time, and back.
function localTime(seconds) {
  const date = new Date(Number(seconds) * 1000);
  if (!seconds || Number.isNaN(date.getTime())) return "";
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day}T${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

const epoch = (text) => (text ? `${new Date(text).getTime() / 1000}` : "");

// The filter for the API from the query of the address.
export function filterOf(query) {
  const filter = query.state ? { state: query.state } : {};
  for (const name of CONDITIONS) if (query[name]) filter[name] = query[name];
  return filter;
}

export const isSearch = (query) => CONDITIONS.some((name) => query[name]);

// The same filter as JSON for an action: numbers are numbers.
export function actionFilter(query) {
  const filter = filterOf(query);
  for (const name of ["attempts_min", ...TIMES]) if (name in filter) filter[name] = Number(filter[name]);
  return filter;
}

export function filterForm() {
  const field = (name, label, attributes) => {
    const input = make("input", { id: `find-${name}`, name, type: "search", autocomplete: "off", ...attributes });
    return [name, input, make("label", { class: "field" }, make("span", {}, label), input)];
  };
  const main = [
    field("match", "Payload contains", { size: "24" }),
    field("error", "Error contains", { size: "24" }),
  ];
  const others = [
    field("key", "Key"),
    field("worker", "Worker", { placeholder: "host:process:program" }),
    field("attempts_min", "Attempts, at least", { type: "number", min: "1", step: "1" }),
    field("subqueue", "Sub-queue"),
    field("created_from", "Created from", { type: "datetime-local", step: "1" }),
    field("created_until", "Created before", { type: "datetime-local", step: "1" }),
    field("finished_from", "Finished from", { type: "datetime-local", step: "1" }),
    field("finished_until", "Finished before", { type: "datetime-local", step: "1" }),
  ];
  const fields = [...main, ...others];
  const more = make("details", { class: "more" }, make("summary", {}, "More conditions"),
    make("div", { class: "fields" }, others.map(([, , label]) => label)));
  const clear = make("button", { type: "button", click: () => change(() => "") }, "Clear");

  function change(value) {
    const changes = { after: null };
    for (const [name, input] of fields) changes[name] = value(name, input);
    setQuery(changes);
  }

  const form = make("form", { class: "search", role: "search", "aria-label": "Find tasks",
    submit: (event) => {
      event.preventDefault();
      change((name, input) => (TIMES.includes(name) ? epoch(input.value) : input.value));
    } },
    make("div", { class: "fields" }, main.map(([, , label]) => label),
      make("span", { class: "buttons" }, make("button", { class: "primary" }, "Search"), clear)),
    more);

  return {
    element: form,
    update(query) {
      for (const [name, input] of fields) {
        const value = TIMES.includes(name) ? localTime(query[name]) : query[name] ?? "";
        if (input.value !== value) input.value = value;
      }
      if (others.some(([name]) => query[name])) more.open = true;
      mark(clear, "disabled", !isSearch(query));
    },
  };
}
