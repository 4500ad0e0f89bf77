"""Explains why a server is not trusted, or does not trust the client, and what to do."""

from __future__ import annotations

import ssl
from typing import Optional

from .errors import UntrustedError
from .server_url import ServerUrl

#: What OpenSSL reports when the other side does not speak TLS; its versions differ.
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")
#: What a server reports that does not trust the certificate of a client.
_REFUSED = ("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "UNSUPPORTED_CERTIFICATE", "DECRYPT_ERROR")
#: Results of the verification of a certificate in OpenSSL.
_NOT_YET_VALID, _EXPIRED, _OTHER_NAME = (9,), (10,), (62, 64)


def untrusted(server: ServerUrl, error: OSError) -> Optional[UntrustedError]:
    """The error of a certificate, which does not become right with time; none for any other error."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UntrustedError(f"the certificate of {server} is not trusted: {_problem(server, error)}")
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or ""
    if reason in _NO_TLS:
        return UntrustedError(f"{server} answers without TLS; use http:// in the URL, or give the server a certificate")
    own = "give one in TASKYARD_CLIENT_CERT with its key in TASKYARD_CLIENT_KEY"
    if reason.endswith("ALERT_CERTIFICATE_REQUIRED"):
        return UntrustedError(f"{server} asks for a client certificate and got none; {own}")
    if "_ALERT_" in reason and reason.endswith((*_REFUSED, "CERTIFICATE_EXPIRED")):
        return UntrustedError(f"{server} refused the client certificate ({reason}); {own} that the server trusts")
    return None


def _problem(server: ServerUrl, error: ssl.SSLCertVerificationError) -> str:
    why, code = error.verify_message, error.verify_code
    if code in _EXPIRED:
        return "it has expired; renew it on the server, or correct the clock of this machine"
    if code in _NOT_YET_VALID:
        return "it is not valid yet; correct the clock of this machine or of the one that issued it"
    if code in _OTHER_NAME:
        return f"it is not for the name {server.host} ({why}); use a name of the certificate in the URL"
    return f"{why}; if it is the right one, name its authority in TASKYARD_CA"
