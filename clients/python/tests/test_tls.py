"""HTTPS: certificates of the server and of the client, from the folder that `TASKYARD_TEST_CERTIFICATES` names."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import unittest
from typing import Any, Callable, List
from unittest import mock

import taskyard
from taskyard import errors
from tests.fixture import Server, ServerTest, open_sockets, wait_until


def file(name: str) -> str:
    """A file with a certificate or a key."""
    return os.path.join(os.environ["TASKYARD_TEST_CERTIFICATES"], name)


def tls_server(test: Any, name: str, *args: str) -> Server:
    """A server with this certificate, until the test ends."""
    server = Server("memory:", "--tls-cert", file(f"{name}.pem"), "--tls-key", file(f"{name}.key"), *args)
    test.addCleanup(server.stop)
    return server


def tubes(url: str, **options: Any) -> List[Callable[[], Any]]:
    """A call of each client, which would be repeated for very long."""

    def blocking() -> Any:
        with taskyard.Client(url, repeat_for=1e9, **options) as client:
            return client.tubes()

    async def call() -> Any:
        async with taskyard.AsyncClient(url, repeat_for=1e9, **options) as client:
            return await client.tubes()

    return [blocking, lambda: asyncio.run(call())]


class Tls(ServerTest):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("memory:", "--tls-cert", file("server.pem"), "--tls-key", file("server.key"))

    def setUp(self) -> None:
        self.addCleanup(wait_until, lambda: not open_sockets(self.server.port), "all connections are closed")
        self.client = taskyard.Client(self.server.url, ca=file("ca.pem"))
        self.addCleanup(self.client.close)
        self.tube = self.id().rsplit(".", 1)[-1]

    def assert_untrusted(self, call: Callable[[], Any], text: str) -> None:
        with self.assertRaises(errors.UntrustedError) as raised:
            call()
        self.assertIn(text, str(raised.exception))

    def test_both_clients_verify_the_server(self) -> None:
        own = tls_server(self, "server")
        with taskyard.Client(own.url, ca=file("ca.pem")) as client:
            self.assertEqual(client.put(self.tube, 1).id, 0)
            self.assertEqual(client.put(self.tube, 2).id, 1)
            # Tickets of the server arrive without a request and must not end the connection.
            self.assertIn("taskyard_http_connections 1\n", client.metrics())
        self.client.put(self.tube, 1)
        with mock.patch.dict(os.environ, TASKYARD_CA=file("ca.pem")):
            for call in tubes(self.server.url):
                self.assertTrue(call())

    def test_the_roots_of_the_system_are_trusted(self) -> None:
        with mock.patch.dict(os.environ, SSL_CERT_FILE=file("ca.pem")):
            for call in tubes(self.server.url):
                call()
        with mock.patch.dict(os.environ, SSL_CERT_FILE=file("other_ca.pem")):
            for call in tubes(self.server.url):
                self.assert_untrusted(call, "name its authority in TASKYARD_CA")

    def test_the_certificate_of_a_server_is_trusted_if_it_is_given_itself(self) -> None:
        own = tls_server(self, "self_signed")
        for call in tubes(self.server.url, ca=file("server.pem")) + tubes(own.url, ca=file("self_signed.pem")):
            call()

    def test_a_certificate_that_is_not_trusted_is_a_final_error(self) -> None:
        """The client repeated the request for as long as for a server that is away."""
        for call in tubes(self.server.url) + tubes(self.server.url, ca=file("other_ca.pem")):
            self.assert_untrusted(call, "name its authority in TASKYARD_CA")

    def test_wrong_certificates_are_refused(self) -> None:
        for name, text in (
            ("expired", "it has expired; renew it on the server"),
            ("other_name", "it is not for the name 127.0.0.1"),
            ("self_signed", "name its authority in TASKYARD_CA"),
        ):
            server = tls_server(self, name)
            for call in tubes(server.url, ca=file("ca.pem")):
                self.assert_untrusted(call, text)

    def test_a_client_certificate_may_be_required(self) -> None:
        server = tls_server(self, "server", "--tls-client-ca", file("ca.pem"))
        for call in tubes(server.url, ca=file("ca.pem")):
            self.assert_untrusted(call, "asks for a client certificate and got none; give one in TASKYARD_CLIENT_CERT")
        own = {"client_cert": file("client.pem"), "client_key": file("client.key")}
        for call in tubes(server.url, ca=file("ca.pem"), **own):
            self.assertEqual(call(), [])
        with mock.patch.dict(os.environ, TASKYARD_CLIENT_CERT=file("client.pem"), TASKYARD_CLIENT_KEY=file("client.key")):
            for call in tubes(server.url, ca=file("ca.pem")):
                self.assertEqual(call(), [])
        other = {"client_cert": file("other_client.pem"), "client_key": file("other_client.key")}
        for call in tubes(server.url, ca=file("ca.pem"), **other):
            self.assert_untrusted(call, "refused the client certificate")

    def test_the_wrong_scheme_is_explained(self) -> None:
        plain = Server()
        self.addCleanup(plain.stop)
        for call in tubes(plain.url.replace("http:", "https:"), ca=file("ca.pem")):
            self.assert_untrusted(call, "answers without TLS; use http://")
        for call in tubes(self.server.url.replace("https:", "http:")):
            with self.assertRaises(errors.RefusedError) as raised:
                call()
            self.assertIn("use https://", str(raised.exception))

    def test_certificates_for_a_server_without_tls_are_refused(self) -> None:
        """They were ignored, although the caller expects a verified server."""
        own = {"client_cert": file("client.pem"), "client_key": file("client.key")}
        for client in (taskyard.Client, taskyard.AsyncClient):
            for options in ({"ca": file("ca.pem")}, own):
                with self.assertRaisesRegex(ValueError, "'http://localhost' are not encrypted; use https://"):
                    client("http://localhost", **options)

    def test_files_that_cannot_be_read_are_refused_at_once(self) -> None:
        """The client was made, and its first request failed as if the server were away."""
        for name in ("/nonexistent/ca.pem", __file__):
            with self.assertRaises(ValueError) as raised:
                taskyard.App(self.server.url, ca=name)
            self.assertIn(name, str(raised.exception))
            with self.assertRaises(ValueError) as raised:
                taskyard.App(self.server.url, client_cert=name, client_key=name)
            self.assertIn(name, str(raised.exception))
        with self.assertRaises(ValueError) as raised:
            taskyard.Client(self.server.url, client_cert=file("client.pem"), client_key=file("other_client.key"))
        self.assertIn("other_client.key", str(raised.exception))
        with self.assertRaises(ValueError) as raised:
            taskyard.Client(self.server.url, client_cert=file("client.pem"))
        self.assertIn("must be given together", str(raised.exception))

    def test_a_worker_stops_while_it_waits(self) -> None:
        app = taskyard.App(self.server.url, ca=file("ca.pem"))
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


class Renewal(unittest.TestCase):
    def test_a_worker_goes_on_while_the_certificate_is_replaced(self) -> None:
        shown, key = file("shown.pem"), file("shown.key")
        self._show("server")
        server = Server("memory:", "--tls-cert", shown, "--tls-key", key)
        self.addCleanup(server.stop)
        app = taskyard.App(server.url, ca=file("ca.pem"))
        self.addCleanup(app.client.close)
        ran: List[int] = []

        @app.task("mail", raw=True)
        def count(number: int) -> None:
            ran.append(number)

        worker = app.worker()
        worker.start()
        for number in range(10):
            self._show(("renewed", "server")[number % 2])
            server.process.send_signal(signal.SIGHUP)
            # Each client makes a connection of its own.
            with taskyard.Client(server.url, ca=file("ca.pem"), repeat_for=0) as client:
                client.put("mail", number)
        wait_until(lambda: sorted(ran) == list(range(10)), "all tasks have run")
        self.assertTrue(worker.stop())

    def _show(self, name: str) -> None:
        for kind in ("pem", "key"):
            new = file(f"new.{kind}")
            shutil.copy(file(f"{name}.{kind}"), new)
            os.rename(new, file(f"shown.{kind}"))
