"""Parses the URL of a server and builds the heads of requests to it."""

from __future__ import annotations

import os
import ssl
import sys
from typing import Optional
from urllib.parse import quote, urlsplit

from .version import VERSION

URL_DEFAULT = "http://127.0.0.1:7070"


class ServerUrl:
    """The address of a server with the token and the authority of its certificate.

    What is not given comes from `TASKYARD_URL`, `TASKYARD_TOKEN` and `TASKYARD_CA`.
    """

    def __init__(
        self, url: Optional[str] = None, token: Optional[str] = None, ca: Optional[str] = None
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
        authority = ca if ca is not None else os.environ.get("TASKYARD_CA") or None
        #: How to verify the server; none without TLS.
        self.tls = trusting(authority) if self.is_secure else None

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
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise ValueError(f"'{authority}' is not a file with the certificate of an authority: {error}") from error


def segment(text: str) -> str:
    """Encodes a part of a path or of a query."""
    return quote(text, safe="-._~")
