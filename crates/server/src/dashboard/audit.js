// The latest actions of operators and administrators on this server.

import { audit as fetchAudit } from "./api.js";
import { make, say, show } from "./dom.js";
import * as format from "./format.js";
import { setQuery, to } from "./router.js";
import { grid } from "./table.js";

const ENTRIES_MAX = 1_000;
const ROWS_MAX = 200;

const TONES = { refused: "busy", failed: "bad", unknown: "busy" };
const LINKS = { tube: to.tube, semaphore: to.semaphore, schedule: to.schedule };

// What the request said beside its target.
const about = ({ ids, filter, detail, error, omitted }) => [
  ids !== undefined && format.many(ids, "id"),
  filter !== undefined && `filter ${filter}`,
  detail,
  error,
  omitted && `${format.number(omitted)} attempts without effect before this one are not listed`,
].filter(Boolean).join("; ");

const COLUMNS = [
  { label: "Time", class: "time", text: ({ time }) => format.moment(Date.parse(time) / 1000), title: ({ time }) => time },
  { label: "User", head: true, text: ({ user }) => user ?? "–" },
  { label: "From", text: ({ address, protocol }) => (address ? `${address} (${protocol})` : protocol) },
  { label: "Action", text: ({ action }) => action.replaceAll("_", " ") },
  { label: "Target", create: (cell) => (entry) => {
    const text = entry.target === undefined ? entry.target_kind : `${entry.target_kind} ${entry.target}`;
    if (cell.textContent === text) return;
    const link = entry.target !== undefined && LINKS[entry.target_kind]?.(entry.target);
    cell.replaceChildren(...(link ? [`${entry.target_kind} `, make("a", { href: link }, entry.target)] : [text]));
  } },
  { label: "Tasks", class: "count", text: ({ tasks }) => (tasks === undefined ? "–" : format.number(tasks)) },
  { label: "Outcome", text: ({ outcome }) => outcome, tone: ({ outcome }) => TONES[outcome] ?? null },
  { label: "Details", class: "audit-about", text: about },
];

export function audit(route, { setTitle }) {
  let query = route.query;
  let newest = [];
  const search = make("input", { id: "filter", type: "search", placeholder: "Search entries",
    "aria-label": "Search entries by user, address, action or target",
    input: () => setQuery({ search: search.value }, { replace: true }) });
  const shown = make("span", { class: "note" });
  const table = grid({ label: "Audit", columns: COLUMNS, key: ({ key }) => key, className: "audit" });
  const nothing = make("p", { class: "card note", hidden: true });
  const lost = make("p", { class: "problem", role: "alert", hidden: true });
  const bar = make("div", { class: "bar" }, search, shown);
  const element = make("div", { class: "stack" }, make("h2", { tabindex: "-1" }, "Audit"),
    make("p", { class: "note" }, "What operators and administrators changed on this server since it started, the newest first."),
    lost, nothing, bar, table.element);

  function draw() {
    const text = (query.search ?? "").toLowerCase();
    const words = ({ user, address, action, target }) => [user, address, action, action.replaceAll("_", " "), target];
    const found = newest.filter((entry) => words(entry).some((word) => (word ?? "").toLowerCase().includes(text)));
    table.show(found.slice(0, ROWS_MAX));
    show(table.element, found.length > 0);
    show(bar, newest.length > 0);
    const part = found.length > ROWS_MAX ? `${ROWS_MAX} of ${format.number(found.length)} shown; search for others` : "";
    say(shown, found.length ? part : "No entry matches");
  }

  async function fetchAll(signal) {
    try {
      const { entries, errors } = await fetchAudit(ENTRIES_MAX, signal);
      // Entries of the same millisecond are told apart by their order from the oldest on.
      const times = new Map();
      newest = entries.reverse().map((entry) => {
        const number = (times.get(entry.time) ?? 0) + 1;
        times.set(entry.time, number);
        return { ...entry, key: `${entry.time} ${number}` };
      }).reverse();
      show(lost, Boolean(errors));
      say(lost, errors ? `${format.many(errors, "entry", "entries")} could not be written to the audit file.` : "");
      show(nothing, !newest.length);
      say(nothing, "No action was recorded since the server started.");
    } catch (error) {
      if (error.status !== 403) throw error;
      newest = [];
      show(nothing, true);
      say(nothing, "Only an administrator of all names sees the audit.");
    }
  }

  setTitle("Audit");
  search.value = query.search ?? "";
  return {
    element,
    update(newRoute) {
      query = newRoute.query;
      if (document.activeElement !== search) search.value = query.search ?? "";
      draw();
    },
    async refresh(signal) {
      await fetchAll(signal);
      draw();
    },
  };
}
