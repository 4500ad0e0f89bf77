// Opens views of the dashboard in Chromium and measures when they show their rows, and how smooth they are while tasks are put.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { url, views, seconds } = JSON.parse(process.argv[2]);
const { TASKYARD_CHROMIUM: chromium, TASKYARD_CHROMEDRIVER: chromedriver } = process.env;
const folder = mkdtempSync(join(tmpdir(), "taskyard-page-"));
const FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,800",
  `--user-data-dir=${folder}`];

// The first line that names the port of the driver.
function startDriver() {
  const driver = spawn(chromedriver, ["--port=0"], { stdio: ["ignore", "pipe", "inherit"] });
  const port = new Promise((resolve, reject) => {
    let printed = "";
    driver.on("error", reject);
    driver.on("exit", () => reject(new Error(`the driver ended: ${printed}`)));
    driver.stdout.on("data", (data) => {
      printed += data;
      const found = /successfully on port (\d+)/.exec(printed);
      if (found) resolve(Number(found[1]));
    });
  });
  return { driver, port };
}

async function call(base, method, path, body) {
  const answer = await fetch(`${base}${path}`, { method, body: body && JSON.stringify(body) });
  const { value } = await answer.json();
  if (!answer.ok) throw new Error(`${path}: ${value.message}`);
  return value;
}

// Resolves in the page with the milliseconds until the condition holds.
const SHOWN = (condition) => `const done = arguments[0];
  const look = () => (${condition}) ? done(performance.now()) : requestAnimationFrame(look);
  look();`;

// Resolves in the page with the times between frames and the long tasks of the main thread, in milliseconds.
const SMOOTH = `const done = arguments[0];
  const [gaps, long] = [[], []];
  new PerformanceObserver((list) => long.push(...list.getEntries().map((entry) => entry.duration))).observe({ type: "longtask" });
  const end = performance.now() + ${seconds * 1000};
  let last = performance.now();
  const frame = () => {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    if (now < end) requestAnimationFrame(frame); else done({ gaps, long });
  };
  requestAnimationFrame(frame);`;

async function measureView(session, { name, path, shown }) {
  await call(session, "POST", "/url", { url: `${url}${path}` });
  const first = await call(session, "POST", "/execute/async", { script: SHOWN(shown), args: [] });
  const { gaps, long } = await call(session, "POST", "/execute/async", { script: SMOOTH, args: [] });
  gaps.sort((a, b) => a - b);
  return { name, first, frames: gaps.length / seconds, p99: gaps[Math.floor(gaps.length * 0.99)], longest: gaps.at(-1), long: long.length };
}

const { driver, port } = startDriver();
try {
  const base = `http://127.0.0.1:${await port}`;
  const options = { binary: chromium, args: FLAGS };
  const capabilities = { alwaysMatch: { browserName: "chrome", "goog:chromeOptions": options } };
  const { sessionId } = await call(base, "POST", "/session", { capabilities });
  const session = `${base}/session/${sessionId}`;
  await call(session, "POST", "/timeouts", { script: 60_000 + seconds * 1000 });
  const measured = [];
  for (const view of views) measured.push(await measureView(session, view));
  await call(base, "DELETE", `/session/${sessionId}`);
  console.log(JSON.stringify(measured));
} finally {
  driver.kill();
  rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
}
