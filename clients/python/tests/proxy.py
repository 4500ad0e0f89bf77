"""A proxy in front of a server whose connections a test cuts or freezes."""

from __future__ import annotations

import socket
import threading
from typing import List, Optional


class Proxy:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._links: List[_Link] = []
        #: How many connections were forwarded.
        self.accepted = 0
        self._is_cut = False
        #: Held while a connection is added or all are ended, so that none is added in between.
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Ends all connections, and each new one at once."""
        with self._lock:
            self._is_cut = True
            for link in self._links:
                link.close()

    def mend(self) -> None:
        """Forwards new connections again."""
        self._is_cut = False

    def freeze(self) -> int:
        """Loses all further bytes of the connections that exist, as a firewall does; returns how many there are."""
        for link in self._links:
            link.is_frozen = True
        return len(self._links)

    def close(self) -> None:
        """Ends all connections; returns when no thread uses a socket any more."""
        self.cut()
        # This wakes the thread that accepts; a close alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for link in self._links:
            link.join()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                far = None if self._is_cut else self._connect()
                if far is None:
                    near.close()
                else:
                    self.accepted += 1
                    self._links.append(_Link(near, far))

    def _connect(self) -> Optional[socket.socket]:
        try:
            return socket.create_connection(("127.0.0.1", self._port))
        except OSError:
            return None


class _Link:
    """Both ends of a forwarded connection."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.is_frozen = False
        self._ends = (near, far)
        ways = ((near, far), (far, near))
        self._threads = [threading.Thread(target=self._copy, args=way, daemon=True) for way in ways]
        for thread in self._threads:
            thread.start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                if not self.is_frozen:
                    target.sendall(data)
            if not self.is_frozen:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        for end in self._ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()

    def join(self) -> None:
        """Waits until nothing is forwarded any more, after a close."""
        for thread in self._threads:
            thread.join()
