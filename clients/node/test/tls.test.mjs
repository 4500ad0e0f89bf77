// Connections over TLS, through a proxy with a certificate of its own authority.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import tls from "node:tls";

import { Taskyard, Worker } from "taskyard";

import { atEnd, Server } from "./fixture.mjs";

/** A TLS address before the server, and the file of its certificate. */
async function encrypted(t, port) {
  const folder = mkdtempSync(join(tmpdir(), "taskyard-node-tls-"));
  atEnd(t, () => rmSync(folder, { recursive: true }));
  const [key, cert] = [join(folder, "key.pem"), join(folder, "cert.pem")];
  const subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"];
  const curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
  execFileSync("openssl", ["req", "-x509", ...curve, "-nodes", "-days", "2", "-keyout", key, "-out", cert, ...subject], { stdio: "ignore" });
  const listener = tls.createServer({ key: readFileSync(key), cert: readFileSync(cert) }, (near) => {
    const far = net.connect(port, "127.0.0.1");
    near.on("error", () => far.destroy());
    far.on("error", () => near.destroy());
    near.pipe(far).pipe(near);
  });
  listener.on("tlsClientError", () => undefined);
  listener.listen(0, "127.0.0.1");
  await once(listener, "listening");
  atEnd(t, () => listener.close());
  return { url: `https://127.0.0.1:${listener.address().port}`, cert };
}

test("TLS with the authority of the options or of TASKYARD_CA", async (t) => {
  const { url, cert } = await encrypted(t, (await Server.start(t)).port);
  await assert.rejects(new Taskyard(url).put("a", 1), (error) => error.code === "untrusted" && /TASKYARD_CA/.test(error.message));
  const client = new Taskyard(url, { ca: readFileSync(cert) });
  atEnd(t, () => client.close());
  await client.put("a", 1);
  process.env.TASKYARD_CA = cert;
  atEnd(t, () => delete process.env.TASKYARD_CA);
  const other = new Taskyard(url);
  atEnd(t, () => other.close());
  const worker = new Worker(other, "a", () => undefined, { signals: false });
  await once(worker, "done");
  await worker.stop();
  assert.equal((await client.tube("a")).tasks.total, 0);
});

/** What is not a certificate was ignored, and each request failed as if the server were away or not trusted. */
test("an authority that cannot be read is refused at once", (t) => {
  assert.throws(() => new Taskyard("https://localhost", { ca: "garbage" }), /^TypeError: the option ca/);
  t.after(() => delete process.env.TASKYARD_CA);
  for (const file of ["/nonexistent/ca.pem", process.execPath]) {
    process.env.TASKYARD_CA = file;
    assert.throws(() => new Taskyard("https://localhost"), (error) => error instanceof TypeError && error.message.includes(file));
    // It is not used without TLS.
    new Taskyard("http://localhost");
  }
});
