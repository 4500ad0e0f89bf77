"""Sends requests over connections that are kept open between requests."""

from __future__ import annotations

import os
import select
import socket
import time
from typing import Dict, List, Optional, Protocol, Tuple

from .errors import NotTaskyardError, OutcomeUnknownError, TaskyardError, UnreachableError
from .response import MalformedResponse, ResponseParser
from .server_url import ServerUrl
from .tls_errors import untrusted

#: How long a server may take to accept a connection, in seconds.
CONNECT_MAX = 10.0
#: How long a server may take to respond unless a client sets another limit, in addition to the wait in the request.
TIMEOUT_DEFAULT = 60.0
#: How long a connection is kept open while no request uses it: less than servers and firewalls keep it.
IDLE_TIME_MAX = 60.0
#: How many connections are kept open while no request uses them.
IDLE_MAX = 64
#: The bytes that are read at once.
READ_BYTES = 256 * 1024

#: The status and the body of a response.
Answer = Tuple[int, bytes]


class Transport(Protocol):
    """Carries requests to a server."""

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        """Sends a request and returns the response, which may take `wait` seconds longer than others."""

    def close(self) -> None:
        """Closes the connections that no request uses."""


class Connection:
    """One connection to a server, for one request at a time."""

    def __init__(self, server: ServerUrl, timeout: float) -> None:
        self._server = server
        try:
            plain = socket.create_connection((server.host, server.port), min(timeout, CONNECT_MAX))
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self._socket = server.tls.wrap_socket(plain, server_hostname=server.host) if server.tls else plain
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            raise no_connection(server, error) from error

    def exchange(self, request: bytes, seconds: float) -> ResponseParser:
        """Sends a request and reads its response, which may take this many seconds."""
        response = ResponseParser()
        try:
            self._socket.settimeout(seconds)
            is_sent = self._send(request)
            while True:
                data = self._socket.recv(READ_BYTES)
                if not data:
                    if response.end():
                        break
                    raise OutcomeUnknownError(f"no answer from {self._server}: the connection was closed")
                if response.feed(data):
                    break
        except OSError as error:
            lost = OutcomeUnknownError(f"no answer from {self._server}: {error}")
            raise untrusted(self._server, error) or lost from error
        except MalformedResponse as error:
            raise NotTaskyardError(f"{self._server} is not a taskyard server ({error})") from error
        response.keep_alive = response.keep_alive and is_sent
        return response

    def _send(self, request: bytes) -> bool:
        """Sends a request; returns whether the server has read all of it."""
        try:
            self._socket.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            # One that is too large is refused before all of it was read. If there is no response, reading fails, too.
            return False
        return True

    def is_usable(self) -> bool:
        """Whether the server has kept the connection open. Bytes without a request are a sign that it has not."""
        try:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)
        except (OSError, ValueError):
            return False

    def end_request(self) -> None:
        """Ends the request that another thread waits for: the server sends a response that it has begun, or none."""
        self._shut_down(socket.SHUT_WR)

    def abort(self) -> None:
        """Ends the request that another thread waits for, which closes the connection then."""
        self._shut_down(socket.SHUT_RDWR)

    def _shut_down(self, directions: int) -> None:
        try:
            # Not the method of a TLS socket, which could not read afterwards.
            socket.socket.shutdown(self._socket, directions)
        except OSError:
            pass  # The connection is closed already.

    def close(self) -> None:
        """Closes the connection."""
        self._socket.close()

    def __del__(self) -> None:
        # A client that was never closed leaves its connections to the garbage collector.
        if hasattr(self, "_socket"):
            self._socket.close()


def no_connection(server: ServerUrl, error: OSError) -> TaskyardError:
    """Why a connection could not be made: a wrong certificate does not become right with time."""
    return untrusted(server, error) or UnreachableError(f"no connection to {server}: {error}; is the server running?")


class HttpTransport:
    """The connections to one server. Threads and forked processes may share it."""

    def __init__(self, server: ServerUrl, timeout: float = TIMEOUT_DEFAULT) -> None:
        self.server, self.timeout = server, timeout
        self._idle: List[Tuple[Connection, float]] = []
        #: The connections of requests in progress. As with the others, only methods of built-in types change these, which are
        #: atomic: a lock that a thread holds while another one forks would stay locked.
        self._busy: Dict[Connection, None] = {}
        self._ended = False
        self._process = os.getpid()

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        """Sends a request over an idle connection or a new one."""
        connection = self._connection()
        self._busy[connection] = None
        try:
            # The end may not have seen this connection.
            self._check_ended()
            request = self.server.request(method, target, body)
            response = connection.exchange(request, wait + self.timeout)
        except BaseException as error:
            connection.close()
            if isinstance(error.__cause__, socket.timeout):
                # Others that were opened with it may be dead, too.
                self.close()
            if self._ended and isinstance(error, OutcomeUnknownError):
                raise OutcomeUnknownError(f"no answer from {self.server}: the worker stopped") from error
            raise
        finally:
            self._busy.pop(connection, None)
        if response.keep_alive and len(self._idle) < IDLE_MAX:
            self._idle.append((connection, time.monotonic()))
            if self._ended:
                # The end may have come before the connection was idle.
                self.close()
        else:
            connection.close()
        return response.status, response.body

    def close(self) -> None:
        """Closes the connections that no request uses."""
        while True:
            try:
                # Another thread may take the last one at any moment.
                connection, _ = self._idle.pop()
            except IndexError:
                return
            connection.close()

    def end(self) -> None:
        """Ends requests in progress and closes all connections, for ever; later requests raise `UnreachableError`."""
        self._ended = True
        self.close()
        if self._process == os.getpid():
            for connection in list(self._busy):
                connection.abort()

    def _check_ended(self) -> None:
        if self._ended:
            raise UnreachableError(f"no connection to {self.server}: the worker stopped")

    def _connection(self) -> Connection:
        self._check_ended()
        if self._process != os.getpid():
            # After a fork the connections belong to the parent.
            self._idle, self._busy, self._process = [], {}, os.getpid()
        while True:
            try:
                connection, since = self._idle.pop()
            except IndexError:
                return Connection(self.server, self.timeout)
            if time.monotonic() - since < IDLE_TIME_MAX and connection.is_usable():
                return connection
            connection.close()
