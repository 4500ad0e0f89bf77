"""A proxy in front of a server whose connections a test cuts or freezes."""

from __future__ import annotations

import socket
import threading
from typing import List


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
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends all connections, and each new one at once."""
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
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._is_cut:
                near.close()
            else:
                self.accepted += 1
                self._links.append(_Link(near, socket.create_connection(("127.0.0.1", self._port))))


class _Link:
    """Both ends of a forwarded connection."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self.is_frozen = False
        self._ends = (near, far)
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while True:
                data = source.recv(65536)
                if self.is_frozen:
                    continue
                if not data:
                    break
                target.sendall(data)
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
