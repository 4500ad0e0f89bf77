// Connections over TLS, with certificates from the folder that TASKYARD_TEST_CERTIFICATES names.

import assert from "node:assert/strict";
import { once } from "node:events";
import fs, { copyFileSync, readFileSync, renameSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

import { Taskyard, Worker } from "taskyard";

import { atEnd, Server } from "./fixture.mjs";

// Those of the shell.
for (const name of ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"]) delete process.env[name];

const file = (name) => join(process.env.TASKYARD_TEST_CERTIFICATES, name);
const ca = readFileSync(file("ca.pem"));

/** The address of a server with this certificate. */
async function encrypted(t, name, args = []) {
  const certificate = ["--tls-cert", file(`${name}.pem`), "--tls-key", file(`${name}.key`)];
  const server = await Server.start(t, ["--store", "memory:", ...certificate, ...args]);
  return { server, url: `https://127.0.0.1:${server.port}` };
}

function connect(t, url, options) {
  const client = new Taskyard(url, options);
  atEnd(t, () => client.close());
  return client;
}

const untrusted = (text) => (error) => error.code === "untrusted" && error.message.includes(text);

test("TLS with the authority of the options or of TASKYARD_CA", async (t) => {
  const { url } = await encrypted(t, "server");
  const client = connect(t, url, { ca });
  await client.put("a", 1);
  process.env.TASKYARD_CA = file("ca.pem");
  atEnd(t, () => delete process.env.TASKYARD_CA);
  const other = connect(t, url);
  const worker = new Worker(other, "a", () => undefined, { signals: false });
  await once(worker, "done");
  await worker.stop();
  assert.equal((await client.tube("a")).tasks.total, 0);
});

/** Only the list that Node was built with was used, which does not have the authority of a company. */
test("without an authority those of the system are trusted", async (t) => {
  const { url } = await encrypted(t, "server");
  const listed = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
  const system = new Map();
  const read = fs.readFileSync;
  t.mock.method(fs, "readFileSync", (path, ...rest) => (listed.includes(path) ? read(system.get(path) ?? "/nonexistent", ...rest) : read(path, ...rest)));
  // Without such a file those of Node.
  await assert.rejects(connect(t, url).tubes(), untrusted("name its authority in TASKYARD_CA"));
  for (const path of listed) {
    system.clear();
    system.set(path, file("ca.pem"));
    assert.deepEqual(await connect(t, url).tubes(), [], path);
  }
  // The first one counts, unless it has no certificates.
  system.set(listed[0], file("other_ca.pem"));
  await assert.rejects(connect(t, url).tubes(), untrusted("name its authority in TASKYARD_CA"));
  system.set(listed[0], "/dev/null");
  assert.deepEqual(await connect(t, url).tubes(), []);
});

test("SSL_CERT_FILE is used instead of the certificates of the system, and NODE_EXTRA_CA_CERTS in addition", async (t) => {
  const { url } = await encrypted(t, "server");
  atEnd(t, () => ["SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "TASKYARD_CA"].forEach((name) => delete process.env[name]));
  process.env.SSL_CERT_FILE = file("ca.pem");
  assert.deepEqual(await connect(t, url).tubes(), []);
  process.env.TASKYARD_CA = file("other_ca.pem");
  await assert.rejects(connect(t, url).tubes(), untrusted("name its authority in TASKYARD_CA"));
  delete process.env.TASKYARD_CA;
  process.env.SSL_CERT_FILE = file("other_ca.pem");
  await assert.rejects(connect(t, url).tubes(), untrusted("name its authority in TASKYARD_CA"));
  process.env.NODE_EXTRA_CA_CERTS = file("ca.pem");
  assert.deepEqual(await connect(t, url).tubes(), []);
});

test("certificates that are not right are refused", async (t) => {
  const { url } = await encrypted(t, "server");
  const unknown = untrusted("name its authority in TASKYARD_CA");
  await assert.rejects(connect(t, url).tubes(), unknown);
  await assert.rejects(connect(t, url, { ca: readFileSync(file("other_ca.pem")) }).tubes(), unknown);
  for (const [name, why] of [
    ["expired", "it has expired; renew it on the server"],
    ["other_name", "it is not for the name 127.0.0.1"],
    ["self_signed", "name its authority in TASKYARD_CA"],
  ]) {
    const wrong = await encrypted(t, name);
    await assert.rejects(connect(t, wrong.url, { ca }).tubes(), untrusted(why), name);
  }
});

test("the certificate of a server that signed itself is trusted if it is given", async (t) => {
  const { url } = await encrypted(t, "self_signed");
  assert.deepEqual(await connect(t, url, { ca: readFileSync(file("self_signed.pem")) }).tubes(), []);
});

test("a client certificate may be required", async (t) => {
  const { url } = await encrypted(t, "server", ["--tls-client-ca", file("ca.pem")]);
  await assert.rejects(connect(t, url, { ca }).tubes(), untrusted("asks for a client certificate and got none; give one in TASKYARD_CLIENT_CERT"));
  const pair = (name) => ({ clientCert: readFileSync(file(`${name}.pem`)), clientKey: readFileSync(file(`${name}.key`)) });
  assert.deepEqual(await connect(t, url, { ca, ...pair("client") }).tubes(), []);
  await assert.rejects(connect(t, url, { ca, ...pair("other_client") }).tubes(), untrusted("refused the client certificate"));
  process.env.TASKYARD_CLIENT_CERT = file("client.pem");
  process.env.TASKYARD_CLIENT_KEY = file("client.key");
  atEnd(t, () => delete process.env.TASKYARD_CLIENT_CERT);
  atEnd(t, () => delete process.env.TASKYARD_CLIENT_KEY);
  assert.deepEqual(await connect(t, url, { ca }).tubes(), []);
});

test("the wrong scheme is explained", async (t) => {
  const { url } = await encrypted(t, "server");
  await assert.rejects(connect(t, url.replace("https:", "http:")).tubes(), /use https:\/\//);
  const plain = await Server.start(t);
  await assert.rejects(connect(t, plain.url.replace("http:", "https:"), { ca }).tubes(), untrusted("answers without TLS; use http://"));
});

test("a certificate is replaced without a failed request", async (t) => {
  const show = (name) => {
    for (const kind of ["pem", "key"]) {
      copyFileSync(file(`${name}.${kind}`), file(`node_new.${kind}`));
      renameSync(file(`node_new.${kind}`), file(`node_shown.${kind}`));
    }
  };
  show("server");
  const { server, url } = await encrypted(t, "node_shown");
  const kept = connect(t, url, { ca, retry: 0 });
  for (let number = 0; number < 10; number += 1) {
    show(number % 2 === 0 ? "renewed" : "server");
    server.child.kill("SIGHUP");
    await kept.put("a", number);
    await connect(t, url, { ca, retry: 0 }).put("a", number);
  }
  assert.equal((await kept.tube("a")).tasks.total, 20);
});

/** They were ignored, although the caller expects a verified server. */
test("certificates for a server without TLS are refused", () => {
  const ca = readFileSync(file("ca.pem"));
  assert.throws(() => new Taskyard("http://localhost", { ca }), /^TypeError: connections to http:\/\/localhost are not encrypted/);
  assert.throws(() => new Taskyard("http://localhost", { clientCert: ca, clientKey: ca }), /^TypeError: connections to/);
});

/** What is not a certificate was ignored, and each request failed as if the server were away or not trusted. */
test("files that cannot be used are refused at once", (t) => {
  assert.throws(() => new Taskyard("https://localhost", { ca: "garbage" }), /^TypeError: the option ca/);
  assert.throws(() => new Taskyard("https://localhost", { clientCert: "garbage", clientKey: "x" }), /^TypeError: the option clientCert/);
  const cert = readFileSync(file("client.pem"));
  assert.throws(() => new Taskyard("https://localhost", { clientCert: cert }), /must be given together/);
  const otherKey = readFileSync(file("other_client.key"));
  assert.throws(() => new Taskyard("https://localhost", { clientCert: cert, clientKey: otherKey }), /does not belong to its certificate/);
  for (const variable of ["TASKYARD_CA", "SSL_CERT_FILE"]) {
    t.after(() => delete process.env[variable]);
    for (const name of ["/nonexistent/ca.pem", process.execPath]) {
      process.env[variable] = name;
      const isNamed = ({ message }) => message.includes(name) && message.includes(variable);
      assert.throws(() => new Taskyard("https://localhost"), (error) => error instanceof TypeError && isNamed(error));
      // It is not used without TLS.
      new Taskyard("http://localhost");
    }
    delete process.env[variable];
  }
});
