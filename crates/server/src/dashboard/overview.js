// The overview: totals, charts of all tubes, and the table of tubes.

import { now, services, stats } from "./api.js";
import { make, say, show } from "./dom.js";
import * as format from "./format.js";
import { note } from "./rates.js";
import { to } from "./router.js";
import { charts } from "./series.js";
import { tubesTable } from "./tubes.js";
import { mayWithAll, user } from "./user.js";

const URL_DEFAULT = "http://127.0.0.1:7070";
// A service is asked rarely: its answer may need a query of another system.
const SERVICES_EVERY_MS = 10_000;
const SERVICES = { sql: ["SQL tasks", to.sql], pool: ["Pool", to.pool], manager: ["Worker manager", to.workers] };
const TOTALS = ["tubes", "ready", "delayed", "taken", "buried", "done", "waiting"];

// The same three lines as the first screen of `taskyard serve`.
function commands(program) {
  const url = location.origin === URL_DEFAULT ? "" : ` --url ${location.origin}`;
  const flags = url + (user()?.has_users ? " --token-file FILE" : "");
  const lines = ["put mail '{\"to\": \"ann\"}'", "take mail --lease 1h", "ack mail 0"];
  return lines.map((line) => make("code", {}, `${program} ${line}${flags}\n`));
}

// Shows the services that have a problem, each with a link to its view.
function serviceProblems() {
  const element = make("div", { id: "service-problems", class: "stack", hidden: true });
  let asked = -Infinity;
  let shown = "";
  return { element, async refresh(signal) {
    if (performance.now() - asked < SERVICES_EVERY_MS) return;
    const bad = (await services(signal)).services.filter(({ problem }) => problem);
    asked = performance.now();
    show(element, bad.length > 0);
    const text = JSON.stringify(bad.map(({ name, problem }) => [name, problem]));
    if (text === shown) return;
    shown = text;
    element.replaceChildren(...bad.map(({ name, problem }) => {
      const [title, href] = SERVICES[name] ?? [name, to.overview];
      return make("p", { class: "card problem", role: "alert" }, make("a", { href: href() }, title), `: ${problem}`);
    }));
  } };
}

export function overview(route, { showServer }) {
  const values = TOTALS.map(() => make("dd"));
  const totals = make("dl", { id: "totals" },
    TOTALS.map((name, i) => make("div", { class: name }, make("dt", {}, name), values[i])));
  const commandLines = make("pre", { id: "commands" });
  const empty = make("section", { id: "empty", class: "card", hidden: true }, make("h3", {}, "No tubes yet"),
    make("p", {}, "Run in a terminal; this page updates itself:"), commandLines);
  const problems = serviceProblems();
  const table = tubesTable(now);
  const graphs = charts(["rates", "depth"]);
  const chartSection = make("section", { class: "stack", "aria-label": "Charts of all tubes" },
    make("div", { class: "bar" }, make("h3", {}, "All tubes"), graphs.chooser), graphs.missing, graphs.element);
  const filled = make("div", { id: "filled", class: "stack", hidden: true }, totals, chartSection, table.element);
  const element = make("div", { class: "stack" },
    make("h2", { class: "hidden-text", tabindex: "-1" }, "Overview"), problems.element, empty, filled);
  let internal = false;

  function update({ query }) {
    internal = Boolean(query.internal);
    table.update(query);
    graphs.update(query);
  }

  async function refresh(signal) {
    const newest = await stats({ internal: internal || null, estimate: true }, signal);
    note(newest.tubes, newest.time);
    showServer(newest);
    const isEmpty = !newest.tubes.length;
    if (isEmpty && empty.hidden) commandLines.replaceChildren(...commands(newest.server.program));
    show(empty, isEmpty);
    show(filled, !isEmpty);
    const { tubes, tasks, consumers } = newest.total;
    const counts = { tubes, ...tasks, waiting: consumers };
    TOTALS.forEach((name, i) => {
      say(values[i], format.number(counts[name]));
      values[i].classList.toggle("zero", !counts[name]);
    });
    table.show(newest.tubes);
    // The sum of all tubes is for users who may see all of them.
    const seesAll = mayWithAll("show_tube");
    show(chartSection, seesAll);
    if (!isEmpty && seesAll) await graphs.refresh(signal);
    await problems.refresh(signal);
  }

  update(route);
  return { element, update, refresh };
}
