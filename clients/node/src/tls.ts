// The certificates of encrypted connections, and what their errors mean.

import { createPrivateKey, X509Certificate } from "node:crypto";
import { readFileSync } from "node:fs";
import tls, { type ConnectionOptions as TlsOptions } from "node:tls";

import type { ConnectionOptions } from "./connection.js";

/** The files in which systems keep trusted root certificates; the Rust client uses the same. */
const SYSTEM_FILES = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/** What OpenSSL reports when the other side does not speak TLS; its versions differ. */
const NO_TLS = /WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|HTTP_REQUEST|UNKNOWN_PROTOCOL|PACKET_LENGTH_TOO_LONG/;
/** What a server reports that does not trust the certificate of a client. */
const REFUSED = /_ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_UNKNOWN|CERTIFICATE_EXPIRED|UNSUPPORTED_CERTIFICATE|DECRYPT_ERROR)/;

/** The certificates of the options or of the environment; throws a TypeError if one cannot be used. */
export function tlsOptions(options: ConnectionOptions): TlsOptions {
  const ca = certificate(options.ca, "ca", "TASKYARD_CA", "the certificate of an authority");
  const isGiven = options.clientCert !== undefined || options.clientKey !== undefined;
  const cert = certificate(options.clientCert, "clientCert", isGiven ? undefined : "TASKYARD_CLIENT_CERT", "the certificate of a client");
  const key = privateKey(options.clientKey, isGiven ? undefined : "TASKYARD_CLIENT_KEY");
  if ((cert === undefined) !== (key === undefined)) {
    throw new TypeError("a client certificate and its key must be given together (TASKYARD_CLIENT_CERT, TASKYARD_CLIENT_KEY)");
  }
  if (cert !== undefined && key !== undefined && !new X509Certificate(cert).checkPrivateKey(createPrivateKey(key))) {
    throw new TypeError("the key of the client does not belong to its certificate");
  }
  // The file may contain the certificate of the server itself, whichever authority signed it; versions before 22.9 ignore this.
  const trusted = { ca: ca ?? systemRoots(), allowPartialTrustChain: true };
  // Made once: the certificates of a system are many, and the agent would read all of them for each connection.
  const secureContext = tls.createSecureContext({ minVersion: "TLSv1.2", ...trusted, ...(cert === undefined ? {} : { cert, key }) });
  // Set here, because an environment variable of Node would switch the verification off.
  return { rejectUnauthorized: true, secureContext };
}

/** The certificates that the system trusts, or SSL_CERT_FILE instead; undefined if there are none, for those of Node itself. */
function systemRoots(): Pem[] | undefined {
  const named = certificate(undefined, "ca", "SSL_CERT_FILE", "a file of trusted certificates");
  const roots = named ?? firstUsable(SYSTEM_FILES);
  const found = roots === undefined ? listedRoots() : [roots];
  if (found.length === 0) return undefined;
  const extra = firstUsable([process.env["NODE_EXTRA_CA_CERTS"] ?? ""]);
  return extra === undefined ? found : [...found, extra];
}

/** The first of these files that has a certificate. */
function firstUsable(files: readonly string[]): Pem | undefined {
  for (const file of files) {
    try {
      const pem = readFileSync(file);
      new X509Certificate(pem);
      return pem;
    } catch {
      // It does not exist, or is of no use.
    }
  }
  return undefined;
}

/** The certificates of systems that keep them in no file, if this version of Node can list them. */
function listedRoots(): Pem[] {
  const { getCACertificates } = tls as { getCACertificates?: (type: "system") => string[] };
  return getCACertificates?.("system") ?? [];
}

/** Why a server is not trusted or does not trust the client, and what to do; undefined for any other error. */
export function tlsProblem(url: URL, cause: Error): string | undefined {
  const code = (cause as NodeJS.ErrnoException).code ?? "";
  // Errors of OpenSSL have a code of their own only if they are met while reading.
  const why = code === "EPROTO" ? cause.message.toUpperCase().replaceAll(" ", "_") : code;
  const server = url.origin;
  const own = "give one in TASKYARD_CLIENT_CERT with its key in TASKYARD_CLIENT_KEY";
  if (NO_TLS.test(why)) return `${server} answers without TLS; use http:// in the URL, or give the server a certificate`;
  if (/_ALERT_CERTIFICATE_REQUIRED/.test(why)) return `${server} asks for a client certificate and got none; ${own}`;
  if (REFUSED.test(why)) return `${server} refused the client certificate (${why}); ${own} that the server trusts`;
  const refused = `the certificate of ${server} is not trusted`;
  if (why === "CERT_HAS_EXPIRED") return `${refused}: it has expired; renew it on the server, or correct the clock of this machine`;
  if (why === "ERR_TLS_CERT_ALTNAME_INVALID") {
    return `${refused}: it is not for the name ${url.hostname}; use a name of the certificate in the URL`;
  }
  if (/CERT|SELF_SIGNED|UNABLE_TO_(GET|VERIFY)/.test(why)) {
    return `${refused} (${why}); if it is the right one, name its authority in TASKYARD_CA`;
  }
  return undefined;
}

type Pem = string | Buffer;

function certificate(given: Pem | undefined, option: string, variable: string | undefined, what: string): Pem | undefined {
  // The agent ignores what is not a certificate, and no connection would be trusted then.
  return checked(given, option, variable, what, (pem) => void new X509Certificate(pem));
}

function privateKey(given: Pem | undefined, variable: string | undefined): Pem | undefined {
  return checked(given, "clientKey", variable, "the private key of a client", (pem) => void createPrivateKey(pem));
}

function checked(given: Pem | undefined, option: string, variable: string | undefined, what: string, check: (pem: Pem) => void): Pem | undefined {
  const file = variable === undefined ? undefined : process.env[variable];
  try {
    const pem = given ?? (file ? readFileSync(file) : undefined);
    if (pem !== undefined) check(pem);
    return pem;
  } catch (cause) {
    const where = given === undefined ? `the file '${file}' of ${variable}` : `the option ${option}`;
    throw new TypeError(`${where} is not ${what}: ${(cause as Error).message}`, { cause });
  }
}
