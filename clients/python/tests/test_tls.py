"""HTTPS, with the authority of the certificate that `TASKYARD_CA` or `ca` names."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import subprocess
import tempfile
import threading
from typing import List

import taskyard
from taskyard import errors
from tests.fixture import ServerTest, wait_until


class TlsProxy:
    """Ends TLS in front of a server, as a proxy does."""

    def __init__(self, folder: str, port: int) -> None:
        self.certificate = os.path.join(folder, "cert.pem")
        key = os.path.join(folder, "key.pem")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        subprocess.run([*command, "-keyout", key, "-out", self.certificate], check=True, capture_output=True)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._port = port
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://localhost:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            secure = self._context.wrap_socket(connection, server_side=True)
        except OSError:
            connection.close()
            return
        with secure, socket.create_connection(("127.0.0.1", self._port)) as server:
            answers = threading.Thread(target=_copy, args=(server, secure), daemon=True)
            answers.start()
            _copy(secure, server)
            answers.join()

    def close(self) -> None:
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copies until the source ends, then ends the target."""
    try:
        while True:
            data = source.recv(65536)
            if not data:
                break
            target.sendall(data)
    except OSError:
        pass
    try:
        socket.socket.shutdown(target, socket.SHUT_WR)
    except OSError:
        pass


class Tls(ServerTest):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.proxy = TlsProxy(folder.name, self.server.port)
        self.addCleanup(self.proxy.close)

    def test_both_clients_verify_the_server(self) -> None:
        with taskyard.Client(self.proxy.url, ca=self.proxy.certificate) as client:
            self.assertEqual(client.put(self.tube, 1).id, 0)
            self.assertEqual(client.put(self.tube, 2).id, 1)
        self.assertEqual(self.proxy.accepted, 1)

        async def put() -> int:
            os.environ["TASKYARD_CA"] = self.proxy.certificate
            try:
                async with taskyard.AsyncClient(self.proxy.url) as client:
                    return (await client.put(self.tube, 3)).id
            finally:
                del os.environ["TASKYARD_CA"]

        self.assertEqual(asyncio.run(put()), 2)

    def test_a_certificate_that_is_not_trusted_is_a_final_error(self) -> None:
        """The client repeated the request for as long as for a server that is away."""
        for client in (taskyard.Client(self.proxy.url, repeat_for=1e9), taskyard.AsyncClient(self.proxy.url, repeat_for=1e9)):
            with self.assertRaises(errors.UntrustedError) as raised:
                tubes = client.tubes()
                asyncio.run(tubes)  # type: ignore[arg-type]
            self.assertIn("name its authority in TASKYARD_CA", str(raised.exception))

    def test_an_authority_that_cannot_be_read_is_refused_at_once(self) -> None:
        """The client was made, and its first request failed as if the server were away."""
        for file in ("/nonexistent/ca.pem", __file__):
            with self.assertRaises(ValueError) as raised:
                taskyard.App(self.proxy.url, ca=file)
            self.assertIn(file, str(raised.exception))

    def test_a_worker_stops_while_it_waits(self) -> None:
        app = taskyard.App(self.proxy.url, ca=self.proxy.certificate)
        self.addCleanup(app.client.close)
        ran: List[int] = []

        @app.task(self.tube, raw=True)
        def count(number: int) -> None:
            ran.append(number)

        worker = app.worker()
        worker.start()
        count.put(1)
        wait_until(lambda: ran == [1] and self.client.consumers(self.tube) != [], "the worker waits for more")
        self.assertTrue(worker.stop())
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 0)
