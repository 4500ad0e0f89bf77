// Maps the address of the page to a view, and moves between views without loading the page again.

// The page may be below a path of a proxy; this file is in assets/.
const ROOT = new URL("..", import.meta.url).pathname;

const VIEWS = [
  [/^$/, "overview"],
  [/^tubes\/([^/]+)$/, "tube"],
  [/^tubes\/([^/]+)\/tasks\/(\d+)$/, "task"],
  [/^schedules$/, "schedules"],
  [/^schedules\/([^/]+)$/, "schedule"],
  [/^semaphores$/, "semaphores"],
  [/^semaphores\/([^/]+)$/, "semaphore"],
  [/^workers$/, "workers"],
  [/^audit$/, "audit"],
  [/^sql$/, "sql"],
  [/^pool-status$/, "pool"],
];

const positions = new Map();
let listener = () => {};
let last = null;
let keys = 0;

// The address of an endpoint or a view.
export const at = (path) => ROOT + path;

function query(values) {
  const set = Object.entries(values ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return set.length ? `?${new URLSearchParams(set)}` : "";
}

export const to = {
  overview: (values) => at("") + query(values),
  tube: (name, values) => at(`tubes/${encodeURIComponent(name)}`) + query(values),
  task: (tube, id) => at(`tubes/${encodeURIComponent(tube)}/tasks/${id}`),
  schedules: (values) => at("schedules") + query(values),
  schedule: (name) => at(`schedules/${encodeURIComponent(name)}`),
  semaphores: () => at("semaphores"),
  semaphore: (key, values) => at(`semaphores/${encodeURIComponent(key)}`) + query(values),
  workers: (values) => at("workers") + query(values),
  audit: (values) => at("audit") + query(values),
  sql: () => at("sql"),
  pool: () => at("pool-status"),
};

// The view of an address, the names in its path, and its query; null for any other address.
function parse(url) {
  if (!url.pathname.startsWith(ROOT)) return null;
  const path = url.pathname.slice(ROOT.length);
  for (const [pattern, view] of VIEWS) {
    const found = pattern.exec(path);
    if (!found) continue;
    try {
      const args = found.slice(1).map(decodeURIComponent);
      return { view, args, query: Object.fromEntries(url.searchParams) };
    } catch {
      return null;
    }
  }
  return null;
}

export const route = () => parse(new URL(location.href));

// Reports the current address; a view that only has another query stays as it is.
function changed(scroll, first = false) {
  const now = route();
  const sameView = !first && last !== null && last.view === now?.view && `${last.args}` === `${now.args}`;
  last = now;
  listener(now, { sameView, scroll: sameView ? null : scroll, first });
}

// Goes to an address of the page, as a new entry of the history unless `replace` is set.
export function go(href, { replace = false } = {}) {
  const key = replace ? history.state?.key : `${performance.timeOrigin}.${(keys += 1)}`;
  history[replace ? "replaceState" : "pushState"]({ key }, "", href);
  changed(0);
}

// Changes the query of the current address; null and "" remove a value.
export function setQuery(changes, options) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  go(url.pathname + url.search, options);
}

// A click on a link of the page, unless it asks for a new window.
function onClick(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || link.target || link.download || link.getAttribute("href").startsWith("#") || event.defaultPrevented) return;
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !parse(url)) return;
  event.preventDefault();
  go(link.href, { replace: link.href === location.href });
}

// Calls `change` with the route now, and whenever it changes.
export function start(change) {
  listener = change;
  history.scrollRestoration = "manual";
  if (!history.state?.key) history.replaceState({ key: `${performance.timeOrigin}` }, "");
  document.addEventListener("click", onClick);
  addEventListener("scroll", () => positions.set(history.state?.key, scrollY), { passive: true });
  addEventListener("popstate", () => changed(positions.get(history.state?.key) ?? 0));
  changed(null, true);
}
