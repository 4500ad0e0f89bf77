"""Parses the URL of a server and builds the heads of requests to it."""

from __future__ import annotations

import os
import ssl
import sys
from typing import Optional
from urllib.parse import quote, urlsplit

from .version import VERSION

URL_DEFAULT = "http://127.0.0.1:7070"

#: Trust a certificate that is not that of an authority. Python has a name for it since 3.10.
PARTIAL_CHAIN = ssl.VerifyFlags(0x80000)


class ServerUrl:
    """The address of a server with the token, the authority of its certificate and the certificate of the client.

    What is not given comes from `TASKYARD_URL`, `TASKYARD_TOKEN`, `TASKYARD_CA`, `TASKYARD_CLIENT_CERT` and
    `TASKYARD_CLIENT_KEY`.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        client_cert: Optional[str] = None,
        client_key: Optional[str] = None,
    ) -> None:
        given = url if url is not None else os.environ.get("TASKYARD_URL") or URL_DEFAULT
        parts = urlsplit(given.strip())
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"'{given}' is not the URL of a server; use one such as {URL_DEFAULT}")
        self.is_secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.is_secure else 80)
        self.path = parts.path.rstrip("/")
        host = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = host if parts.port is None else f"{host}:{parts.port}"
        self._token = token if token is not None else os.environ.get("TASKYARD_TOKEN")
        self._headers = self._fixed_headers()
        #: How to verify the server; none without TLS.
        self.tls: Optional[ssl.SSLContext] = None
        if self.is_secure:
            self.tls = trusting(ca if ca is not None else os.environ.get("TASKYARD_CA") or None)
            if client_cert is None and client_key is None:
                client_cert = os.environ.get("TASKYARD_CLIENT_CERT") or None
                client_key = os.environ.get("TASKYARD_CLIENT_KEY") or None
            show(self.tls, client_cert, client_key)
        elif ca is not None or client_cert is not None or client_key is not None:
            raise ValueError(f"connections to '{self}' are not encrypted; use https://, or leave out ca and client_cert")

    def __str__(self) -> str:
        scheme = "https" if self.is_secure else "http"
        return f"{scheme}://{self.authority}{self.path}"

    def request(self, method: str, target: str, body: Optional[bytes]) -> bytes:
        """The bytes of a request; the target begins with a slash."""
        line = f"{method} {self.path}{target} HTTP/1.1\r\n{self._headers}"
        if body is None:
            return f"{line}\r\n".encode("ascii")
        head = f"{line}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        return head.encode("ascii") + body

    def _fixed_headers(self) -> str:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        headers = f"host: {self.authority}\r\nuser-agent: taskyard/{VERSION} (python {python})\r\n"
        token = (self._token or "").strip()
        if not token:
            return headers
        if not all("!" <= char <= "~" for char in token):
            raise ValueError("the token may contain visible ASCII characters only, without spaces")
        return f"{headers}authorization: Bearer {token}\r\n"


def trusting(authority: Optional[str]) -> ssl.SSLContext:
    """Trusts the certificates of an authority, or of those that the system trusts; the file must be readable now."""
    try:
        context = ssl.create_default_context(cafile=authority)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if authority is not None:
            # The file may contain the certificate of the server itself, whichever authority signed it.
            context.verify_flags |= PARTIAL_CHAIN
        return context
    except OSError as error:
        raise ValueError(f"'{authority}' is not a file with the certificate of an authority: {error}") from error


def show(context: ssl.SSLContext, certificate: Optional[str], key: Optional[str]) -> None:
    """Shows a certificate to servers that ask for one; the files must be readable now."""
    if certificate is None and key is None:
        return
    if certificate is None or key is None:
        raise ValueError("a client certificate and its key must be given together (TASKYARD_CLIENT_CERT, TASKYARD_CLIENT_KEY)")
    try:
        # An encrypted key would wait for a passphrase at the terminal.
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:
        raise ValueError(f"'{certificate}' is not a client certificate with its key in '{key}': {error}") from error


def segment(text: str) -> str:
    """Encodes a part of a path or of a query."""
    return quote(text, safe="-._~")
