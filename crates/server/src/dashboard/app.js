// Shows the view of the current address, and refreshes it every second while the page is visible.

import { identify, now, services, stats } from "./api.js";
import { audit } from "./audit.js";
import { hasActions, make, mark, say, show } from "./dom.js";
import * as format from "./format.js";
import { overview } from "./overview.js";
import * as router from "./router.js";
import { schedule, schedules } from "./schedules.js";
import { semaphore, semaphores } from "./semaphores.js";
import { pool, sql } from "./services.js";
import * as signIn from "./sign_in.js";
import { task } from "./task.js";
import { tube } from "./tube.js";
import { mayWithAll, mayWithAny, setUser, user } from "./user.js";
import { workers } from "./workers.js";

const EVERY_MS = 1_000;
const RETRY_MS_MAX = 15_000;

const VIEWS = { overview, tube, task, schedules, schedule, semaphores, semaphore, workers, audit, sql, pool };
// The part of the navigation to which a view belongs. A service is listed if the server hosts it.
const PARTS = [
  ["overview", "Overview", ["overview", "tube", "task"]],
  ["schedules", "Schedules", ["schedules", "schedule"]],
  ["semaphores", "Semaphores", ["semaphores", "semaphore"]],
  ["workers", "Workers", ["workers"]],
  ["audit", "Audit", ["audit"]],
  ["sql", "SQL tasks", ["sql"]],
  ["pool", "Pool", ["pool"]],
];

const part = (id) => document.getElementById(id);

let view = null;
let shownRoute = null;
let pending = null;
let timer = 0;
let failures = 0;
// When the server started, in seconds since the epoch; known after the first answer.
let started = null;
let store = "";
let restoreScroll = null;
// The user may be another one after the page was hidden: other tabs have the same session.
let isUserCertain = false;

// Shows the state of the connection: "live", "reconnecting", "refused", "paused" or "locked".
function state(name, text = name) {
  document.body.dataset.state = name;
  say(part("state"), text);
}

function showServer({ server }) {
  started = now() - server.uptime;
  say(part("version"), server.version);
  const durability = server.durability || (server.durable ? "durable" : "not durable");
  store = `${server.store} store, ${durability}`;
  showUptime();
}

function showUptime() {
  say(part("server"), `${store}, up ${format.span(Math.max(0, Math.floor(now() - started)))}`);
}

function showNav() {
  const links = PARTS.map(([name, text]) => make("a", { href: router.to[name](), "data-view": name }, text));
  part("nav").replaceChildren(...links);
  for (const name of ["sql", "pool"]) show(part("nav").querySelector(`[data-view=${name}]`), false);
}

function markNav(route) {
  PARTS.forEach(([name, , views], i) => {
    const link = part("nav").children[i];
    mark(link, "aria-current", name === route?.view ? "page" : views.includes(route?.view) ? "true" : null);
    if (name === route?.view) show(link, true);
  });
}

// Fetches once what every view shows: the user, the server, and which services it hosts.
async function introduce(signal) {
  if (!isUserCertain || !user()) {
    const before = user()?.user;
    await identify(signal);
    isUserCertain = true;
    if (before !== undefined && before !== user().user) leaveView();
    signIn.showUser();
  }
  if (started !== null) return;
  show(part("nav").querySelector("[data-view=workers]"), mayWithAny("show_workers"));
  show(part("nav").querySelector("[data-view=audit]"), mayWithAll("show_audit"));
  showServer(await stats({}, signal));
  for (const { name } of (await services(signal)).services) {
    const link = part("nav").querySelector(`[data-view="${CSS.escape(name)}"]`);
    if (link) show(link, true);
  }
}

// A question belongs to the view that asked it.
const closeDialogs = () => document.querySelectorAll("dialog[open]").forEach((dialog) => dialog.close());

// What the view showed may belong to another user.
function leaveView() {
  closeDialogs();
  view?.leave?.();
  view = null;
  started = null;
  part("view").replaceChildren();
}

// Asks to sign in. The address stays, so that the same view is shown afterwards.
function lock(text = "") {
  clearTimeout(timer);
  pending?.abort();
  pending = null;
  leaveView();
  part("problem").hidden = true;
  signIn.showForm(text);
  state("locked", "token required");
}

// A request that the user may not send stays refused until the rights change.
function refused({ message }) {
  say(part("problem"), `The server refused the request: ${message}.`);
  part("problem").hidden = false;
  state("refused", "not allowed");
  timer = setTimeout(refresh, RETRY_MS_MAX);
}

function failed(error) {
  if (error.status === 401) {
    const hadSession = Boolean(user()?.session);
    setUser(null);
    return lock(hadSession ? "Your session has ended. Sign in again." : "");
  }
  if (error.status === 403) return refused(error);
  failures += 1;
  const wait = Math.min(EVERY_MS * 2 ** (failures - 1), RETRY_MS_MAX);
  const what = error.status ? `The server refused the request: ${error.message}.` : "The server does not respond.";
  const old = started !== null ? " The numbers below are out of date." : "";
  say(part("problem"), `${what} Retrying in ${format.span(wait / 1000)}.${old}`);
  part("problem").hidden = false;
  state("reconnecting");
  timer = setTimeout(refresh, wait);
}

async function refresh() {
  clearTimeout(timer);
  pending?.abort();
  const mine = (pending = new AbortController());
  const began = performance.now();
  try {
    await introduce(mine.signal);
    view ??= build(shownRoute);
    await view.refresh(mine.signal);
    failures = 0;
    showUptime();
    part("problem").hidden = true;
    signIn.hideForm();
    state("live");
    if (restoreScroll !== null) scrollTo(0, restoreScroll);
    restoreScroll = null;
    // A slow server is queried less often, so that this page is never its main load.
    timer = setTimeout(refresh, Math.max(EVERY_MS, 4 * (performance.now() - began)));
  } catch (error) {
    // A newer refresh has replaced this one.
    if (pending === mine) failed(error);
  }
}

function build(route) {
  const context = { refresh, showServer, setTitle };
  const built = route ? VIEWS[route.view](route, context) : unknown();
  part("view").replaceChildren(built.element);
  return built;
}

const unknown = () => ({
  element: make("section", { class: "card" }, make("h2", { tabindex: "-1" }, "No such view"),
    make("p", {}, "This address belongs to no view. ", make("a", { href: router.to.overview() }, "Overview"))),
  refresh: async () => {},
});

function setTitle(text) {
  document.title = text ? `${text} · Taskyard` : "Taskyard";
}

function onRoute(route, { sameView, scroll, first }) {
  shownRoute = route;
  markNav(route);
  if (sameView && view) {
    view.update?.(route);
  } else if (user() && !signIn.isFormShown()) {
    setTitle("");
    closeDialogs();
    view?.leave?.();
    view = build(route);
    restoreScroll = scroll;
    if (scroll === 0) scrollTo(0, 0);
    // A screen reader reads the new heading; after loading the page it reads from the top.
    if (!first) (part("view").querySelector("h2") ?? part("view")).focus({ preventScroll: true });
  }
  if (!document.hidden && !first) refresh();
}

function onVisibilityChange() {
  // A guest who wants to sign in keeps the form.
  if (!document.hidden) return signIn.isFormShown() && user() ? state("locked", "token required") : refresh();
  isUserCertain = false;
  clearTimeout(timer);
  pending?.abort();
  pending = null;
  state("paused");
}

document.addEventListener("visibilitychange", onVisibilityChange);
addEventListener("userchange", () => {
  isUserCertain = false;
  if (!document.hidden) refresh();
});
signIn.start({
  signedIn: refresh,
  signedOut(problem) {
    if (!problem) leaveView();
    say(part("problem"), problem);
    show(part("problem"), problem !== "");
    if (!problem) refresh();
  },
  wanted: () => lock(),
});
// The address in the page is relative to the view that was loaded first.
document.querySelector("link[rel=icon]").href = router.at("assets/icon.svg");
show(part("read-only"), !hasActions);
showNav();
router.start(onRoute);
onVisibilityChange();
