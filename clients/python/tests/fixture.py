"""Starts servers for the tests: the program that `TASKYARD_BINARY` names."""

from __future__ import annotations

import gc
import logging
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from typing import Callable, List, Optional

import taskyard

# What workers log about the failures that tests cause would hide the output of the tests.
logging.getLogger("taskyard").setLevel(logging.CRITICAL)

#: How long a test waits for something that must happen, in seconds.
PATIENCE = 60.0
#: The exit code of a server whose address another program uses.
ADDRESS_IN_USE = 9


def keep(kind: str, text: str) -> None:
    """Keeps output, or secrets that must not be in any, where `cargo xtask test` searches it."""
    folder = os.environ.get("TASKYARD_TEST_OUTPUT")
    if folder:
        with open(os.path.join(folder, kind, f"python-{os.getpid()}"), "a", encoding="utf-8") as file:
            file.write(text)


class Server:
    """A server in a process of its own, with its tasks in memory or in a folder."""

    def __init__(self, store: str = "memory:", *args: str, port: int = 0, token: Optional[str] = None) -> None:
        self.store, self.args, self.token = store, args, token
        self.port = port
        self.start()

    def start(self) -> None:
        """Starts it, again at the same port. A client of another test may use that port for a moment while the server is away."""
        deadline = time.monotonic() + PATIENCE
        while not self._run():
            code = self.process.wait()
            self._close()
            assert code == ADDRESS_IN_USE and time.monotonic() < deadline, f"exit code {code}: {''.join(self.output)}"

    def _run(self) -> bool:
        """Starts the process; returns whether it serves."""
        binary = os.environ["TASKYARD_BINARY"]
        address = f"127.0.0.1:{self.port}"
        command = [binary, "serve", "--store", self.store, "--http", address, "--iproto", "off", *self.args]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TASKYARD_")}
        if self.token is not None:
            environment["TASKYARD_TOKEN"] = self.token
            keep("secrets", self.token + "\n")
        self.output: List[str] = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        ready = threading.Event()
        ports: List[int] = []

        def read() -> None:
            assert self.process.stdout is not None
            for line in self.process.stdout:
                self.output.append(line)
                found = re.search(r"https?://[a-z0-9.]+:(\d+)", line)
                if found and found.group(1) != "0":
                    ports.append(int(found.group(1)))
                    ready.set()
            ready.set()

        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        assert ready.wait(PATIENCE), "".join(self.output)
        if ports:
            self.port = ports[0]
        return bool(ports)

    @property
    def url(self) -> str:
        scheme = "https" if "--tls-cert" in self.args else "http"
        return f"{scheme}://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Ends the server as a power failure would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._close()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        self._close()

    def _close(self) -> None:
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        keep("output", "".join(self.output))


class ServerTest(unittest.TestCase):
    """Tests that share one server in memory; each uses tubes of its own."""

    server: Server

    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server()

    @classmethod
    def tearDownClass(cls) -> None:
        cls.server.stop()

    def setUp(self) -> None:
        # What is registered first is done last.
        self.addCleanup(wait_until, lambda: not open_sockets(self.server.port), "all connections are closed")
        self.client = taskyard.Client(self.server.url)
        self.addCleanup(self.client.close)
        #: The tube of this test.
        self.tube = self.id().rsplit(".", 1)[-1]


def own_server(test: unittest.TestCase, *args: str) -> Server:
    """A server on a folder, which the test may kill and start again."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    server = Server(f"sqlite:{folder.name}/data", *args)
    test.addCleanup(server.stop)
    return server


def open_sockets(port: int) -> List[socket.socket]:
    """The connections of this process to a port of this machine that are not closed, whether or not something uses them."""
    return [found for found in gc.get_objects() if isinstance(found, socket.socket) and _peer_port(found) == port]


def _peer_port(found: socket.socket) -> int:
    try:
        return int(found.getpeername()[1])
    except (OSError, IndexError, TypeError):
        return 0  # It is closed, or has no peer.


def wait_until(condition: Callable[[], bool], what: str, progress: Callable[[], int] = lambda: 0) -> None:
    """Waits for a state that only requests can show, as long as there is progress: a number that changes."""
    deadline, before = time.monotonic() + PATIENCE, progress()
    while not condition():
        if time.monotonic() > deadline:
            now = progress()
            if now == before:
                raise AssertionError(f"not within {PATIENCE:.0f} s: {what}")
            deadline, before = time.monotonic() + PATIENCE, now
        time.sleep(0.01)


def extend_leases(worker: taskyard.Worker, leases: Callable[[], List[float]]) -> None:
    """Lets a worker extend the leases of its tasks, as it does when a third of their time has passed."""
    keeper, before = worker._keeper, leases()
    assert keeper is not None

    def extended() -> bool:
        keeper._check(time.monotonic() + worker._lease / 2)
        return all(now > then for now, then in zip(leases(), before))

    # Within a millisecond the end of a lease stays the same.
    wait_until(extended, "the leases are extended")
