"""Sends calls for the asyncio client over connections that are kept open, and repeats those that may be repeated."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Dict, List, Optional, Protocol, Tuple, TypeVar

from .calls import Call, Repeats, wants_no_keys
from .errors import NotTaskyardError, OutcomeUnknownError, TaskyardError, UnreachableError
from .response import MalformedResponse, ResponseParser
from .server_url import ServerUrl
from .tls_errors import untrusted
from .transport import CONNECT_MAX, IDLE_MAX, IDLE_TIME_MAX, READ_BYTES, TIMEOUT_DEFAULT, Answer, no_connection

T = TypeVar("T")


class AsyncTransport(Protocol):
    """Carries requests to a server."""

    async def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        """Sends a request and returns the response, which may take `wait` seconds longer than others."""

    async def close(self) -> None:
        """Closes the connections that no request uses."""


class AsyncConnection:
    """One connection to a server, for one request at a time."""

    def __init__(self, server: ServerUrl, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer

    @staticmethod
    async def open(server: ServerUrl, timeout: float) -> AsyncConnection:
        """Connects to a server."""
        within = min(timeout, CONNECT_MAX)
        try:
            opening = asyncio.open_connection(server.host, server.port, ssl=server.tls, limit=2 * READ_BYTES)
            reader, writer = await asyncio.wait_for(opening, within)
        except asyncio.TimeoutError as error:
            raise UnreachableError(f"no connection to {server} within {within:g} s") from error
        except OSError as error:
            raise no_connection(server, error) from error
        connection = AsyncConnection(server, reader, writer)
        plain = writer.get_extra_info("socket")
        try:
            if plain is not None:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError as error:
            connection.close()
            raise no_connection(server, error) from error
        return connection

    async def exchange(self, request: bytes, seconds: float) -> ResponseParser:
        """Sends a request and reads its response, which may take this many seconds."""
        try:
            return await asyncio.wait_for(self._exchange(request), seconds)
        except asyncio.TimeoutError as error:
            raise OutcomeUnknownError(f"no answer from {self._server} within {seconds:g} s") from error
        except OSError as error:
            lost = OutcomeUnknownError(f"no answer from {self._server}: {error}")
            raise untrusted(self._server, error) or lost from error
        except MalformedResponse as error:
            raise NotTaskyardError(f"{self._server} is not a taskyard server ({error})") from error

    async def _exchange(self, request: bytes) -> ResponseParser:
        response = ResponseParser()
        self._writer.write(request)
        await self._writer.drain()
        while True:
            data = await self._reader.read(READ_BYTES)
            if response.feed(data) if data else response.end():
                return response
            if not data:
                raise OutcomeUnknownError(f"no answer from {self._server}: the connection was closed")

    def is_usable(self) -> bool:
        """Whether the server has kept the connection open."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        """Closes the connection."""
        if self._server.is_secure:
            # The end of TLS would wait for the server, and the loop may end before. The length of a response shows its end.
            self._writer.transport.abort()
        else:
            self._writer.close()


#: Connections that no request uses, and since when.
IdleConnections = List[Tuple[AsyncConnection, float]]


class AsyncHttpTransport:
    """The connections to one server. Event loops may share it: each uses connections of its own."""

    def __init__(self, server: ServerUrl, timeout: float = TIMEOUT_DEFAULT) -> None:
        self.server, self.timeout = server, timeout
        #: The connections of each loop that no request uses. A forked process has other loops.
        self._idle: Dict[asyncio.AbstractEventLoop, IdleConnections] = {}

    async def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        """Sends a request over an idle connection or a new one."""
        connection = await self._connection(self._idle_here())
        try:
            request = self.server.request(method, target, body)
            response = await connection.exchange(request, wait + self.timeout)
        except BaseException:
            connection.close()
            raise
        # Not those of the beginning of the request, which may have been closed meanwhile.
        idle = self._idle_here()
        if response.keep_alive and len(idle) < IDLE_MAX:
            idle.append((connection, time.monotonic()))
        else:
            connection.close()
        return response.status, response.body

    async def close(self) -> None:
        """Closes the connections of this loop that no request uses."""
        for connection, _ in self._idle.pop(asyncio.get_running_loop(), []):
            connection.close()

    def _idle_here(self) -> IdleConnections:
        loop = asyncio.get_running_loop()
        if loop not in self._idle:
            for other in [other for other in list(self._idle) if other.is_closed()]:
                self._idle.pop(other, None)
            self._idle[loop] = []
        return self._idle[loop]

    async def _connection(self, idle: IdleConnections) -> AsyncConnection:
        while idle:
            connection, since = idle.pop()
            if time.monotonic() - since < IDLE_TIME_MAX and connection.is_usable():
                return connection
            connection.close()
        return await AsyncConnection.open(self.server, self.timeout)


class AsyncSender:
    """What the asyncio client is built on."""

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
        transport: Optional[AsyncTransport] = None,
    ) -> None:
        self._server = ServerUrl(url, token, ca, client_cert, client_key)
        self._transport: AsyncTransport = transport or AsyncHttpTransport(self._server, timeout)
        self._idempotent = idempotent
        self._repeat_for = repeat_for
        #: Whether the store of the server has keys, as far as known.
        self._has_keys = True
        #: How often the client was closed.
        self._closes = 0

    @property
    def url(self) -> str:
        """The URL of the server, without credentials."""
        return str(self._server)

    async def _send(self, call: Call[T]) -> T:
        closes = self._closes
        try:
            return await self._send_repeatedly(call)
        finally:
            if self._closes != closes:
                # Its connection was in use when the others were closed, or was opened afterwards.
                await self._transport.close()

    async def _send_repeatedly(self, call: Call[T]) -> T:
        repeats = Repeats(call, self._repeat_for)
        while True:
            try:
                status, body = await self._transport.exchange(call.method, call.target, call.body, call.wait)
                return call.answer(self._server, status, body)
            except TaskyardError as error:
                other = wants_no_keys(call, error)
                if other is not None:
                    answer = await self._send_repeatedly(other)
                    self._has_keys = False
                    return answer
                pause = repeats.pause_after(error)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Closes the connections, those of requests in progress when these have ended; the client can still be used."""
        self._closes += 1
        await self._transport.close()
