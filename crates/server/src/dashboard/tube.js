// A tube: its tasks by state, its charts, and its details.

import { pauseOrResume, truncateTube } from "./actions.js";
import { now, tube as fetchTube } from "./api.js";
import { announce, make, mark, remark, say, show } from "./dom.js";
import { backlog } from "./estimates.js";
import * as format from "./format.js";
import { to } from "./router.js";
import { charts } from "./series.js";
import { tabs } from "./tabs.js";
import { taskList } from "./task_list.js";
import { tubeDetails } from "./tube_details.js";
import { offers } from "./user.js";

const STATES = ["ready", "delayed", "taken", "buried"];
const title = (text) => text[0].toUpperCase() + text.slice(1);

// The tabs: one for each state, then charts and details.
function tabItems(name, info) {
  const state = (key, text, count) => ({ name: key || "all", text, count, href: to.tube(name, { state: key }) });
  const count = (value) => (info && value !== undefined ? format.number(value) : undefined);
  const items = [state("", "All", count(info?.tasks.total)),
    ...STATES.map((key) => state(key, title(key), count(info?.tasks[key])))];
  // Finished tasks are kept only if the tube says so.
  if (info?.keep_done !== undefined) items.push(state("done", "Done", count(info.tasks.kept)));
  for (const key of ["charts", "details"]) items.push({ name: key, text: title(key), href: to.tube(name, { show: key }) });
  return items;
}

export function tube(route, { refresh: refreshAll, setTitle }) {
  const [name] = route.args;
  let info = null;
  let query = route.query;
  const kind = make("small");
  const why = make("p", { id: "why" });
  const drain = make("p", { id: "drain" });
  const pause = make("button", { type: "button", id: "pause", hidden: true,
    click: () => pauseOrResume(name, info.paused, after) }, "Pause");
  const truncate = make("button", { type: "button", id: "truncate", class: "danger", hidden: true,
    click: () => truncateTube(name, after) }, "Truncate");
  const missing = make("p", { class: "card", role: "alert", hidden: true });
  const strip = tabs(`Tasks of ${name} by state, and more`, "panel");
  const panel = make("div", { id: "panel", role: "tabpanel", class: "stack" });
  const content = make("div", { class: "stack" }, strip.element, panel);
  const element = make("div", { class: "stack" },
    make("nav", { class: "crumbs", "aria-label": "Path" }, make("a", { href: to.overview() }, "Overview")),
    make("div", { class: "bar title" }, make("h2", { id: "tube-name", tabindex: "-1" }, name), kind,
      make("span", { class: "buttons" }, pause, truncate)),
    why, drain, missing, content);

  // How many tasks a search by this state compares; 0 if that is not known.
  const total = (state) => info?.tasks[state === "done" ? "kept" : state || "total"] ?? 0;
  const list = taskList(name, { refresh: refreshAll, total });
  const graphs = charts(["rates", "depth", "wait", "run"], name);
  const chartPart = { element: make("div", { class: "stack" }, make("div", { class: "bar" }, graphs.chooser), graphs.missing, graphs.element),
    update: graphs.update, refresh: graphs.refresh };
  const parts = { charts: chartPart, details: tubeDetails(name) };
  let part = null;

  function after(text) {
    if (text) announce(text);
    refreshAll();
  }

  function update(newRoute) {
    query = newRoute.query;
    part = parts[query.show] ?? list;
    if (panel.firstChild !== part.element) panel.replaceChildren(part.element);
    part.update?.(query);
    const open = query.show in parts ? query.show : query.state || "all";
    strip.fill(tabItems(name, info), open);
    mark(panel, "aria-labelledby", `tab-${open}`);
  }

  function showInfo() {
    say(kind, info.kind + (info.temporary ? ", temporary" : ""));
    remark(why, format.why(info, now()));
    mark(why, "data-paused", info.paused ? "" : null);
    say(drain, backlog(info));
    say(pause, info.paused ? "Resume" : "Pause");
    show(pause, offers("pause_tube", name));
    show(truncate, offers("truncate", name));
    strip.fill(tabItems(name, info), query.show in parts ? query.show : query.state || "all");
  }

  async function refresh(signal) {
    try {
      info = await fetchTube(name, signal);
    } catch (error) {
      if (error.status !== 404 && error.status !== 400) throw error;
      say(missing, error.status === 404 ? `There is no tube “${name}” on this server.` : `${error.message}.`);
      show(missing, true);
      show(content, false);
      for (const button of [pause, truncate]) show(button, false);
      return;
    }
    show(missing, false);
    show(content, true);
    showInfo();
    await part.refresh(signal, info);
  }

  setTitle(name);
  update(route);
  return { element, update, refresh, leave: list.leave };
}
