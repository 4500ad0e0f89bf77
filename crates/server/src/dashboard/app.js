// Fetches the numbers every second and shows them. Texts are set as text, never as HTML.

import { stats, token } from "./api.js";
import * as details from "./details.js";
import { note } from "./rates.js";
import * as services from "./services.js";
import { make, say, show } from "./table.js";
import * as format from "./format.js";

const EVERY_MS = 1_000;
const RETRY_MS_MAX = 15_000;
const URL_DEFAULT = "http://127.0.0.1:7070";

const part = (id) => document.getElementById(id);

let pending = null;
let timer = 0;
let failures = 0;
let newest = null;

// Shows the state of the connection: "live", "reconnecting", "paused" or "locked".
function state(name, text = name) {
  document.body.dataset.state = name;
  say(part("state"), text);
}

function showServer({ version, store, durable, durability, uptime }) {
  say(part("version"), version);
  const durabilityText = durability || (durable ? "durable" : "not durable");
  say(part("server"), `${store} store, ${durabilityText}, up ${format.span(Math.floor(uptime))}`);
}

function showTotals({ tubes, tasks, consumers }) {
  const list = part("totals");
  const totals = { tubes, ready: tasks.ready, delayed: tasks.delayed, taken: tasks.taken,
    buried: tasks.buried, done: tasks.done, waiting: consumers };
  if (!list.children.length) {
    for (const key of Object.keys(totals)) {
      list.appendChild(make("div", key)).append(make("dt", "", key), make("dd"));
    }
  }
  Object.values(totals).forEach((value, i) => say(list.children[i].lastChild, format.number(value)));
}

// The same three lines as the first screen of `taskyard serve`.
function showCommands() {
  const url = location.origin === URL_DEFAULT ? "" : ` --url ${location.origin}`;
  const flags = url + (token.get() ? " --token TOKEN" : "");
  const lines = ["put mail '{\"to\": \"ann\"}'", "take mail --lease 1h", "ack mail 0"];
  part("commands").replaceChildren(...lines.map((line) => make("code", "", `${newest.server.program} ${line}${flags}\n`)));
}

function openDetails(name) {
  details.open(name);
  refresh();
}

function showTubes() {
  const { tubes, time } = newest;
  const found = show(part("tubes"), tubes, time, part("filter").value, openDetails);
  part("search").hidden = tubes.length < 8 && !part("filter").value;
  say(part("shown"), found.shown < tubes.length ? `${found.shown} of ${format.number(tubes.length)} shown` : "");
}

function showAll() {
  const empty = !newest.tubes.length;
  if (empty && part("empty").hidden) showCommands();
  part("empty").hidden = !empty;
  part("filled").hidden = empty;
  showServer(newest.server);
  showTotals(newest.total);
  showTubes();
}

function askForToken() {
  details.close();
  if (token.get()) say(part("token-hint"), "The token is wrong.");
  token.forget();
  services.forget(part("services"));
  part("token-form").hidden = false;
  part("problem").hidden = part("empty").hidden = part("filled").hidden = true;
  part("token").focus();
  state("locked", "token required");
}

function failed(error) {
  if (error.status === 401) return askForToken();
  failures += 1;
  const wait = Math.min(EVERY_MS * 2 ** (failures - 1), RETRY_MS_MAX);
  const what = error.status ? `The server refused the request: ${error.message}.` : "The server does not respond.";
  const old = newest ? " The numbers below are out of date." : "";
  say(part("problem"), `${what} Retrying in ${format.span(wait / 1000)}.${old}`);
  part("problem").hidden = false;
  state("reconnecting");
  timer = setTimeout(refresh, wait);
}

async function refresh() {
  clearTimeout(timer);
  pending?.abort();
  const mine = (pending = new AbortController());
  const started = performance.now();
  try {
    newest = await stats(part("internal").checked, mine.signal);
    note(newest.tubes, newest.time);
    failures = 0;
    part("token-form").hidden = part("problem").hidden = true;
    showAll();
    if (details.shown() !== null) await details.refresh(newest.tubes, newest.time, mine.signal);
    await services.refresh(part("services"), mine.signal);
    state("live");
    // A server with very many tubes is queried less often, so that this page is never its main load.
    timer = setTimeout(refresh, Math.max(EVERY_MS, 4 * (performance.now() - started)));
  } catch (error) {
    // A newer refresh has replaced this one.
    if (pending === mine) failed(error);
  }
}

function onVisibilityChange() {
  if (!document.hidden) return refresh();
  clearTimeout(timer);
  pending?.abort();
  pending = null;
  state("paused");
}

document.addEventListener("visibilitychange", onVisibilityChange);
part("filter").addEventListener("input", showTubes);
part("internal").addEventListener("change", refresh);
part("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(part("token").value.trim());
  part("token").value = "";
  refresh();
});
details.onPause(refresh);
onVisibilityChange();
