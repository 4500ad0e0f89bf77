"""Sends calls for the blocking client and repeats those that may be repeated."""

from __future__ import annotations

import copy
import time
from typing import Optional, TypeVar

from .calls import Call, Repeats, wants_no_keys
from .errors import TaskyardError
from .server_url import ServerUrl
from .transport import TIMEOUT_DEFAULT, HttpTransport, Transport

T = TypeVar("T")
S = TypeVar("S", bound="Sender")


class Sender:
    """What the blocking client is built on."""

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        client_cert: Optional[str] = None,
        client_key: Optional[str] = None,
        idempotent: bool = True,
        repeat_for: float = 10.0,
        timeout: float = TIMEOUT_DEFAULT,
        transport: Optional[Transport] = None,
    ) -> None:
        self._server = ServerUrl(url, token, ca, client_cert, client_key)
        self._transport: Transport = transport or HttpTransport(self._server, timeout)
        self._idempotent = idempotent
        self._repeat_for = repeat_for
        #: Whether the store of the server has keys, as far as known.
        self._has_keys = True
        #: How often the client was closed.
        self._closes = 0

    def copy(self: S, repeat_for: float, timeout: float) -> S:
        """A client of the same server with connections of its own."""
        made = copy.copy(self)
        made._transport = HttpTransport(self._server, timeout)
        made._repeat_for = repeat_for
        return made

    @property
    def url(self) -> str:
        """The URL of the server, without credentials."""
        return str(self._server)

    def _send(self, call: Call[T]) -> T:
        closes = self._closes
        try:
            return self._send_repeatedly(call)
        finally:
            if self._closes != closes:
                # Its connection was in use when the others were closed, or was opened afterwards.
                self._transport.close()

    def _send_repeatedly(self, call: Call[T]) -> T:
        repeats = Repeats(call, self._repeat_for)
        while True:
            try:
                status, body = self._transport.exchange(call.method, call.target, call.body, call.wait)
                return call.answer(self._server, status, body)
            except TaskyardError as error:
                other = wants_no_keys(call, error)
                if other is not None:
                    answer = self._send_repeatedly(other)
                    self._has_keys = False
                    return answer
                pause = repeats.pause_after(error)
            time.sleep(pause)

    def close(self) -> None:
        """Closes the connections, those of requests in progress when these have ended; the client can still be used."""
        self._closes += 1
        self._transport.close()

    def _end(self) -> None:
        """Ends requests in progress and closes the connections; the client cannot be used any more."""
        if isinstance(self._transport, HttpTransport):
            self._transport.end()
        else:
            self._transport.close()
