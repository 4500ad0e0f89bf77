"""Lost answers: idempotent puts, stores without keys, servers that are away, other programs at the address."""

from __future__ import annotations

import asyncio
import socket
import threading
import unittest
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

import taskyard
from taskyard import errors
from taskyard.async_sender import AsyncHttpTransport
from tests.fixture import wait_until
from tests.lossy_transport import LossyTest


class LostAnswers(LossyTest):
    def test_a_put_whose_answer_was_lost_is_repeated_without_a_second_task(self) -> None:
        client = self.lossy(["answer", "request", "answer"])
        self.assertEqual(client.put(self.tube, 1), taskyard.Placed(0, "ready", False))
        self.assertEqual(client.put_many(self.tube, [2, 3])[1].id, 2)
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 3)

    def test_other_puts_are_not_repeated(self) -> None:
        client = self.lossy(["answer"], idempotent=False)
        with self.assertRaises(errors.OutcomeUnknownError):
            client.put(self.tube, 1)
        client = self.lossy(["answer"])
        with self.assertRaises(errors.OutcomeUnknownError):
            # The key is free as soon as the task is done, so a second task could be added.
            client.put(self.tube, 2, key="a")
        self.assertEqual(self.lossy(["answer"]).put(self.tube, 3, key="b", unique_for=60).id, 2)
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 3)

    def test_an_ack_that_was_lost_is_repeated(self) -> None:
        self.client.put_many(self.tube, [1, 2])
        first, second = self.client.take_many(self.tube, 2)
        self.lossy(["request"]).ack(first)
        with self.assertRaises(errors.OutcomeUnknownError):
            # Ended by the first request, or because its lease expired: the second answer cannot tell.
            self.lossy(["answer"]).ack(second)
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 0)
        with self.assertRaises(errors.StaleDeliveryError):
            self.client.ack(second)

    def test_requests_that_would_do_harm_twice_are_not_repeated(self) -> None:
        self.client.put(self.tube, 1)
        task = self.client.take(self.tube)
        assert task is not None
        for delivery in (task, taskyard.Delivery(self.tube, task.id)):
            with self.assertRaises(errors.OutcomeUnknownError):
                self.lossy(["request"]).touch(delivery, 1)
        with self.assertRaises(errors.OutcomeUnknownError):
            # Without a lease the second request could end another delivery.
            self.lossy(["request"]).ack(taskyard.Delivery(self.tube, task.id))

    def test_takes_are_not_repeated_and_reads_are(self) -> None:
        self.client.put(self.tube, 1)
        with self.assertRaises(errors.OutcomeUnknownError):
            self.lossy(["answer"]).take(self.tube)
        self.assertEqual(self.lossy(["answer"]).tube(self.tube)["tasks"]["taken"], 1)


class ScriptedServer:
    """A server that answers each request as the test says: with bytes, or by closing the connection."""

    def __init__(self, answer: Callable[[str], Optional[bytes]]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: List[str] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                request = self._read(connection)
                self.requests.append(request)
                answer = self._answer(request)
                if answer is not None:
                    connection.sendall(answer)

    @staticmethod
    def _read(connection: socket.socket) -> str:
        data = b""
        while b"\r\n\r\n" not in data:
            data += connection.recv(65536)
        head, _, body = data.partition(b"\r\n\r\n")
        for line in head.decode().lower().split("\r\n"):
            if line.startswith("content-length:"):
                while len(body) < int(line.split(":")[1]):
                    body += connection.recv(65536)
        return (head + b"\r\n\r\n" + body).decode()

    def close(self) -> None:
        self._listener.close()


def response(status: int, body: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode()


class EventLoops(LossyTest):
    def test_event_loops_that_share_a_client_keep_their_connections(self) -> None:
        """The connection of one loop was given to the other, which then waited for ever or failed."""
        self.client.create_tube(self.tube)
        shared = taskyard.AsyncClient(self.server.url)
        ended = threading.Event()

        async def take() -> None:
            async with shared:
                self.assertIsNotNone(await shared.take(self.tube, wait=60))
                await asyncio.to_thread(ended.wait)

        async def put() -> None:
            async with shared:
                await shared.put(self.tube, 1)
                await asyncio.to_thread(wait_until, lambda: len(idle_of(shared)) == 2, "both connections are idle")
                await shared.tubes()
                ended.set()

        taking = threading.Thread(target=lambda: asyncio.run(take()))
        taking.start()
        wait_until(lambda: self.client.consumers(self.tube) != [], "the take waits")
        asyncio.run(put())
        taking.join()


def idle_of(client: taskyard.AsyncClient) -> List[object]:
    transport = client._transport
    assert isinstance(transport, AsyncHttpTransport)
    return [connection for idle in list(transport._idle.values()) for connection in idle]


MISSING = '{"error": {"code": "missing_feature", "message": "the store has no keys"}}'
PLACED = '{"tasks": [{"id": 5, "state": "ready"}]}'


class Scripted(unittest.TestCase):
    def serve(self, answer: Callable[[str], Optional[bytes]]) -> ScriptedServer:
        server = ScriptedServer(answer)
        self.addCleanup(server.close)
        return server

    def test_a_store_without_keys_is_remembered(self) -> None:
        server = self.serve(lambda request: response(501, MISSING) if '"key"' in request else response(200, PLACED))
        client = taskyard.Client(server.url)
        self.assertEqual(client.put("a", 1).id, 5)
        self.assertEqual(client.put("a", 2).id, 5)
        self.assertEqual(["key" in request for request in server.requests], [True, False, False])

        async def put() -> None:
            other = taskyard.AsyncClient(server.url)
            await other.put("a", 1)
            await other.put("a", 2)

        asyncio.run(put())
        self.assertEqual(["key" in request for request in server.requests[3:]], [True, False, False])

    def test_a_store_without_keys_gets_no_put_twice(self) -> None:
        server = self.serve(lambda request: response(501, MISSING) if '"key"' in request else None)
        with self.assertRaises(errors.OutcomeUnknownError):
            taskyard.Client(server.url).put("a", 1)
        self.assertEqual(len(server.requests), 2)

    def test_a_put_whose_key_may_be_free_again_is_not_repeated(self) -> None:
        """A put with any `unique_for` was repeated, and could add a second task when the key was free again."""
        cases: List[Tuple[float, float, Dict[str, Any]]] = [
            (10, 0, {"key": "a", "unique_for": 1}),
            (10, 0, {"key": "a", "unique_for": timedelta(seconds=10)}),
            (10, 50, {"key": "a", "unique_for": 60}),
            (600, 0, {}),
            (590, 10, {}),
        ]
        for repeat_for, timeout, options in cases:
            self.assertEqual(self.puts_after_lost_answer(repeat_for, timeout, options), [1, 1], (repeat_for, options))
        cases = [(10, 0, {"key": "a", "unique_for": 11}), (10, 50, {"key": "a", "unique_for": 61}), (589, 10, {})]
        for repeat_for, timeout, options in cases:
            self.assertEqual(self.puts_after_lost_answer(repeat_for, timeout, options), [2, 2], (repeat_for, options))

    def puts_after_lost_answer(self, repeat_for: float, timeout: float, options: Dict[str, Any]) -> List[int]:
        """How many requests a put of each client sends if the first answer is lost."""
        sent: List[int] = []
        for is_async in (False, True):
            answers = [None, response(200, PLACED)]
            server = self.serve(lambda request: answers.pop(0))
            try:
                if is_async:
                    client = taskyard.AsyncClient(server.url, repeat_for=repeat_for)
                    asyncio.run(client.put("a", 1, timeout=timeout, **options))
                else:
                    taskyard.Client(server.url, repeat_for=repeat_for).put("a", 1, timeout=timeout, **options)
                self.assertEqual(len(server.requests), 2)
            except errors.OutcomeUnknownError:
                self.assertEqual(len(server.requests), 1)
            sent.append(len(server.requests))
        return sent

    def test_another_missing_feature_is_an_error(self) -> None:
        server = self.serve(lambda request: response(501, MISSING))
        client = taskyard.Client(server.url)
        for _ in range(2):
            with self.assertRaises(errors.MissingFeatureError):
                client.put("a", 1, attempts_max=3)
        self.assertTrue(client._has_keys)

    def test_a_server_that_starts_is_asked_again(self) -> None:
        away = '{"error": {"code": "store_away", "message": "starting"}}'
        answers = [response(503, away), response(503, away), response(200, '{"outcomes": ["done"]}')]
        server = self.serve(lambda request: answers.pop(0))
        taskyard.Client(server.url).ack(taskyard.Delivery("a", 1))
        self.assertEqual(len(server.requests), 3)

    def test_errors_of_a_proxy_are_no_answers(self) -> None:
        """The page of a proxy before a server that restarts was taken for another program, and the put was given up."""
        page = "<html>bad gateway</html>"
        answers = [response(status, page) for status in (502, 503, 504, 429)] + [response(200, PLACED)]
        server = self.serve(lambda request: answers.pop(0))
        self.assertEqual(taskyard.Client(server.url).put("a", 1).id, 5)
        self.assertEqual(len({request.partition("\r\n\r\n")[2] for request in server.requests}), 1)
        server = self.serve(lambda request: response(502, page))
        with self.assertRaises(errors.OutcomeUnknownError):
            taskyard.Client(server.url).take("a")
        self.assertEqual(len(server.requests), 1)

    def test_a_server_that_does_not_answer_in_time(self) -> None:
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with self.assertRaises(errors.OutcomeUnknownError):
            taskyard.App(url, timeout=0.05).client.take("a")
        with self.assertRaises(errors.OutcomeUnknownError):
            asyncio.run(taskyard.App(url, timeout=0.05).async_client.take("a"))

    def test_responses_in_pieces_and_chunks(self) -> None:
        chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;x=y\r\n{\"tub\r\n7\r\nes\":[]}\r\n0\r\n\r\n"
        for data in (chunked, b"HTTP/1.0 200 OK\r\n\r\n{\"tubes\":[]}", b"HTTP/1.1 100 x\r\n\r\n" + chunked):
            for size in (1, 3, len(data)):
                parser = taskyard.response.ResponseParser()
                pieces = [data[start : start + size] for start in range(0, len(data), size)]
                is_complete = [parser.feed(piece) for piece in pieces][-1] or parser.end()
                self.assertTrue(is_complete)
                self.assertEqual((parser.status, parser.body), (200, b'{"tubes":[]}'))

    def test_other_programs_are_recognised(self) -> None:
        answers = [b"SSH-2.0-OpenSSH\r\n\r\n", response(200, "<html>"), response(404, "{}"), response(200, "[]")]
        answers += [b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a" * 70000]
        for answer in answers:
            server = self.serve(lambda request: answer)
            with self.assertRaises(errors.NotTaskyardError):
                taskyard.Client(server.url).tubes()
            with self.assertRaises(errors.NotTaskyardError):
                asyncio.run(taskyard.AsyncClient(server.url).tubes())

    def test_a_response_that_breaks_off_has_an_unknown_outcome(self) -> None:
        server = self.serve(lambda request: b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{}")
        with self.assertRaises(errors.OutcomeUnknownError):
            taskyard.Client(server.url).take("a")
        with self.assertRaises(errors.OutcomeUnknownError):
            asyncio.run(taskyard.AsyncClient(server.url).take("a"))
