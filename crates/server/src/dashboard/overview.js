// The overview: totals, charts of all tubes, and the table of tubes.

import { now, stats, token } from "./api.js";
import { make, say, show } from "./dom.js";
import * as format from "./format.js";
import { note } from "./rates.js";
import { charts } from "./series.js";
import { tubesTable } from "./tubes.js";

const URL_DEFAULT = "http://127.0.0.1:7070";
const TOTALS = ["tubes", "ready", "delayed", "taken", "buried", "done", "waiting"];

// The same three lines as the first screen of `taskyard serve`.
function commands(program) {
  const url = location.origin === URL_DEFAULT ? "" : ` --url ${location.origin}`;
  const flags = url + (token.get() ? " --token TOKEN" : "");
  const lines = ["put mail '{\"to\": \"ann\"}'", "take mail --lease 1h", "ack mail 0"];
  return lines.map((line) => make("code", {}, `${program} ${line}${flags}\n`));
}

export function overview(route, { showServer }) {
  const values = TOTALS.map(() => make("dd"));
  const totals = make("dl", { id: "totals" },
    TOTALS.map((name, i) => make("div", { class: name }, make("dt", {}, name), values[i])));
  const commandLines = make("pre", { id: "commands" });
  const empty = make("section", { id: "empty", class: "card", hidden: true }, make("h3", {}, "No tubes yet"),
    make("p", {}, "Run in a terminal; this page updates itself:"), commandLines);
  const table = tubesTable(now);
  const graphs = charts(["rates", "depth"]);
  const filled = make("div", { id: "filled", class: "stack", hidden: true }, totals,
    make("section", { class: "stack", "aria-label": "Charts of all tubes" },
      make("div", { class: "bar" }, make("h3", {}, "All tubes"), graphs.chooser), graphs.missing, graphs.element),
    table.element);
  const element = make("div", { class: "stack" },
    make("h2", { class: "hidden-text", tabindex: "-1" }, "Overview"), empty, filled);
  let internal = false;

  function update({ query }) {
    internal = Boolean(query.internal);
    table.update(query);
    graphs.update(query);
  }

  async function refresh(signal) {
    const newest = await stats(internal, signal);
    note(newest.tubes, newest.time);
    showServer(newest);
    const isEmpty = !newest.tubes.length;
    if (isEmpty && empty.hidden) commandLines.replaceChildren(...commands(newest.server.program));
    show(empty, isEmpty);
    show(filled, !isEmpty);
    const { tubes, tasks, consumers } = newest.total;
    const counts = { tubes, ...tasks, waiting: consumers };
    TOTALS.forEach((name, i) => say(values[i], format.number(counts[name])));
    table.show(newest.tubes);
    if (!isEmpty) await graphs.refresh(signal);
  }

  update(route);
  return { element, update, refresh };
}
