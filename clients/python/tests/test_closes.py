"""Requests while a client or a worker is closed: they finish or fail with a clear error, and no connection stays open.

That all connections to the server are closed is checked after each test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import warnings
from typing import Any, Callable, Iterator, List, Tuple
from unittest import mock

import taskyard
from taskyard import App, Worker, calls, errors, transport
from taskyard.execution import Outcome
from taskyard.pools import LoopPool
from taskyard.transport import Connection, HttpTransport
from tests.fixture import PATIENCE, ServerTest, extend_leases, open_sockets, wait_until
from tests.proxy import Proxy


class Call:
    """A call in a thread of its own, and what it returned or raised."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.returned: Any = None
        self.raised: Any = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.returned = self._function()
        except BaseException as error:
            self.raised = error

    def end(self) -> Any:
        """Waits for the end, and returns what was returned."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the call hangs"
        if self.raised is not None:
            raise self.raised
        return self.returned


@contextlib.contextmanager
def unclosed() -> Iterator[List[str]]:
    """What the garbage collector finds that was not closed."""
    found: List[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
        gc.collect()
    found.extend(str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning))


class Clients(ServerTest):
    def waiting_take(self, client: taskyard.Client) -> Call:
        self.client.create_tube(self.tube, if_not_exists=True)
        call = Call(lambda: client.take(self.tube, wait=PATIENCE))
        wait_until(lambda: self.client.consumers(self.tube) != [], "a take waits")
        return call

    def test_a_request_during_a_close_finishes_and_leaves_no_connection(self) -> None:
        """Its connection was kept for later requests after the client was closed."""
        client = taskyard.Client(self.server.url)
        take = self.waiting_take(client)
        client.close()
        self.client.put(self.tube, 7)
        self.assertEqual(take.end().data, 7)
        self.client.close()
        self.assertEqual(open_sockets(self.server.port), [])
        client.tubes()
        self.assertNotEqual(open_sockets(self.server.port), [], "the client can still be used")
        client.close()

    def test_a_request_that_is_repeated_after_a_close_leaves_no_connection(self) -> None:
        client = taskyard.Client(self.server.url)
        begin = client._transport.exchange
        failures = [errors.UnreachableError("away")]

        def exchange(*args: Any) -> Any:
            if failures:
                client.close()
                raise failures.pop()
            return begin(*args)

        with mock.patch.object(client._transport, "exchange", exchange):
            client.tubes()
        self.client.close()
        self.assertEqual(open_sockets(self.server.port), [])

    def test_a_close_while_another_thread_takes_the_last_connection(self) -> None:
        """The close raised an IndexError."""
        client = taskyard.Client(self.server.url)
        client.tubes()
        of_client = client._transport
        assert isinstance(of_client, HttpTransport)

        class Raced(List[Any]):
            """Its last element is taken between the look and the pop."""

            def __len__(self) -> int:
                length = super().__len__()
                while super().__len__():
                    super().pop()[0].close()
                return length

        of_client._idle = Raced(of_client._idle)
        client.close()
        client.close()

    def test_an_end_ends_requests_in_progress_and_refuses_later_ones(self) -> None:
        client = self.client.copy(0.0, PATIENCE)
        client.tubes()
        take = self.waiting_take(client)
        client._end()
        with self.assertRaisesRegex(errors.OutcomeUnknownError, "the worker stopped"):
            take.end()
        with self.assertRaisesRegex(errors.UnreachableError, "the worker stopped"):
            client.tubes()

    def ended_at(self, moment: str) -> Tuple[taskyard.Client, Any]:
        """A client that is ended in the middle of its next request, at this moment, and what makes it so."""
        client = self.client.copy(0.0, PATIENCE)

        class Ended(Connection):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                if moment == "connected":
                    client._end()

            def exchange(self, *args: Any) -> Any:
                response = super().exchange(*args)
                if moment == "answered":
                    client._end()
                return response

        return client, mock.patch.object(transport, "Connection", Ended)

    def test_an_end_while_a_request_connects(self) -> None:
        client, patch = self.ended_at("connected")
        with patch, self.assertRaisesRegex(errors.UnreachableError, "the worker stopped"):
            client.tubes()

    def test_an_end_while_a_response_arrives(self) -> None:
        client, patch = self.ended_at("answered")
        with patch:
            self.assertIsInstance(client.tubes(), list)
        with self.assertRaises(errors.UnreachableError):
            client.tubes()

    def test_an_end_while_a_connection_becomes_idle(self) -> None:
        client = self.client.copy(0.0, PATIENCE)
        of_client = client._transport
        assert isinstance(of_client, HttpTransport)

        class Idle(List[Any]):
            def __len__(self) -> int:
                client._end()
                return super().__len__()

        of_client._idle = Idle()
        self.assertIsInstance(client.tubes(), list)

    def test_a_connection_that_cannot_be_set_up_is_closed(self) -> None:
        refuse = mock.patch("socket.socket.setsockopt", side_effect=OSError("no"))
        with unclosed() as found, refuse, self.assertRaises(errors.UnreachableError):
            Connection(self.client._server, PATIENCE)
        self.assertEqual(found, [])

    def test_an_asynchronous_request_during_a_close_leaves_no_connection(self) -> None:
        """Its connection was put into a list that was closed already."""
        self.client.create_tube(self.tube)

        async def run() -> Any:
            client = taskyard.AsyncClient(self.server.url)
            taking = asyncio.ensure_future(client.take(self.tube, wait=PATIENCE))
            while not await client.consumers(self.tube):
                pass
            await client.close()
            self.client.put(self.tube, 7)
            return (await taking).data

        with unclosed() as found:
            self.assertEqual(asyncio.run(run()), 7)
        self.assertEqual(found, [])


class Workers(ServerTest):
    def worker(self, url: str, **options: Any) -> Worker:
        app = App(url)
        self.addCleanup(app.client.close)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.addCleanup(self.may_end.set)

        @app.task(self.tube)
        def slow() -> None:
            self.begun.set()
            self.may_end.wait(PATIENCE)

        self.placed = slow.put()
        worker = app.worker(**options)
        worker.start()
        self.addCleanup(worker.stop, 0)
        self.assertTrue(self.begun.wait(PATIENCE))
        return worker

    def extended(self, worker: taskyard.Worker) -> None:
        extend_leases(worker, lambda: [self.client.task(self.tube, self.placed.id).fields["lease_until"]])

    def test_a_stop_closes_the_connections_for_leases_and_outcomes(self) -> None:
        """They stayed open until the garbage collector found them, which reported unclosed sockets."""
        # If outcomes may take longer than extensions, leases are extended over another connection than the one for outcomes.
        for answer_min in (2000.0, 1.0):
            with mock.patch("taskyard.worker.FINISH_ANSWER_MIN", answer_min):
                worker = self.worker(self.server.url, concurrency=1, lease=3600.0)
            self.extended(worker)
            self.may_end.set()
            self.assertTrue(worker.stop())
            self.client.close()
            worker._app.client.close()
            wait_until(lambda: not open_sockets(self.server.port), "all connections are closed")

    def test_a_stop_leaves_no_connection_of_a_server_that_does_not_answer(self) -> None:
        proxy = Proxy(self.server.port)
        self.addCleanup(proxy.close)
        with mock.patch("taskyard.taker.WAIT", calls.WAIT_MAX):
            worker = self.worker(proxy.url, concurrency=2, lease=12.0)
            wait_until(lambda: self.client.consumers(self.tube) != [], "a take waits")
        self.extended(worker)
        port = int(proxy.url.rsplit(":", 1)[1])
        proxy.freeze()
        worker.stop(0)
        worker._app.client.close()
        wait_until(lambda: not open_sockets(port), "all connections are closed")

    def test_two_stops_at_once(self) -> None:
        worker = self.worker(self.server.url)
        stops = [Call(lambda: worker.stop(PATIENCE)) for _ in range(2)]
        wait_until(worker._takers[0]._stopping.is_set, "a stop began")
        self.may_end.set()
        self.assertEqual([stop.end() for stop in stops], [True, True])

    def test_a_stop_while_a_taker_connects(self) -> None:
        """The stop saw no connection; that of the take was opened afterwards."""
        app = App(self.server.url)
        self.addCleanup(app.client.close)
        app.task(self.tube)(lambda: None)
        connecting, may_connect = threading.Event(), threading.Event()
        self.addCleanup(may_connect.set)

        class Slow(Connection):
            def __init__(self, *args: Any) -> None:
                connecting.set()
                assert may_connect.wait(PATIENCE)
                super().__init__(*args)

        with mock.patch("taskyard.taker.Connection", Slow):
            worker = app.worker()
            worker.start()
            self.assertTrue(connecting.wait(PATIENCE))
            stop = Call(worker.stop)
            wait_until(worker._takers[0]._stopping.is_set, "the stop began")
            may_connect.set()
            self.assertTrue(stop.end())
        worker._takers[0].join(time.monotonic() + PATIENCE)
        self.client.close()
        self.assertEqual(open_sockets(self.server.port), [])


class LoopPools(ServerTest):
    def test_tasks_that_come_after_the_stop_are_given_back(self) -> None:
        """The closed loop raised a RuntimeError in the thread that takes tasks, whose connection stayed open."""
        app = App(self.server.url)

        async def nothing(data: Any) -> None: ...

        function = app.task(self.tube, raw=True)(nothing)
        settled: List[Tuple[int, Outcome]] = []
        pool = LoopPool(1, lambda task, outcome: settled.append((task.id, outcome)))
        pool.stop()
        pool.stop()
        fields = {"id": 3, "lease": 4, "attempts": 0, "state": "taken", "data": 1}
        pool.submit([taskyard.RunningTask(function, fields, time.monotonic() + 60)])
        self.assertEqual(settled, [(3, {"verb": "release", "id": 3, "lease": 4, "delay": 0.0, "counted": False})])
        self.assertEqual((pool.held, pool.queued), ({}, {}))

    def test_a_function_that_blocks_the_loop_delays_its_close(self) -> None:
        begun, may_end = threading.Event(), threading.Event()
        app = App(self.server.url)

        async def blocks(data: Any) -> None:
            begun.set()
            may_end.wait(PATIENCE)

        function = app.task(self.tube, raw=True)(blocks)
        pool = LoopPool(1, lambda task, outcome: None)
        # It would print how long the function blocks.
        pool._loop.set_debug(False)
        fields = {"id": 3, "lease": 4, "attempts": 0, "state": "taken", "data": 1}
        pool.submit([taskyard.RunningTask(function, fields, time.monotonic() + 60)])
        self.assertTrue(begun.wait(PATIENCE))
        pool.stop()
        self.assertFalse(pool._loop.is_closed())
        may_end.set()
        pool._thread.join(PATIENCE)
        self.assertTrue(pool._loop.is_closed())
