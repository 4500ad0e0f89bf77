"""Workers in this process against a server."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import Any, Dict, List

import taskyard
from taskyard import App, Worker
from taskyard.logs import JsonFormatter, TextFormatter
from tests.fixture import PATIENCE, ServerTest, own_server, wait_until


class Signal:
    """A call from a task function to its test, which may let the function go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.may_end = threading.Event()

    def call(self) -> None:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)


class Workers(ServerTest):
    def setUp(self) -> None:
        super().setUp()
        self.app = App(self.server.url)
        self.addCleanup(self.app.client.close)

    def start(self, **options: Any) -> Worker:
        worker = self.app.worker(**options)
        worker.start()
        self.addCleanup(lambda: worker.stop(0) if worker._takers else None)
        return worker

    def stop(self, worker: Worker, grace: float = PATIENCE) -> bool:
        finished = worker.stop(grace)
        worker._takers = []
        return finished

    def total(self) -> int:
        total: int = self.client.tube(self.tube)["tasks"]["total"]
        return total

    def test_functions_run_tasks(self) -> None:
        ran: List[str] = []

        @self.app.task(self.tube)
        def send(to: str, text: str = "hello", **more: Any) -> None:
            ran.append(f"{to} {text} {more}")

        send("ann")
        send.put("ben", text="hi", pri=1)
        send.put(to="cy", urgent=True)
        send.options(pri=2).put("dan")
        send.put_many([{"to": "eve"}], pri=3)
        worker = self.start(concurrency=1)
        wait_until(lambda: self.total() == 0, "all tasks are done")
        self.assertTrue(self.stop(worker))
        expected = ["ann hello {}", "cy hello {'urgent': True}", "ben hi {}", "dan hello {}", "eve hello {}"]
        self.assertEqual(ran, expected)
        with self.assertRaises(TypeError):
            send.put(wrong=1, text=2)

    def test_asynchronous_functions_run_together(self) -> None:
        met: List[int] = []
        #: Made on the loop of the worker, as Python 3.9 requires.
        events: List[asyncio.Event] = []

        @self.app.task(self.tube)
        async def meet(number: int) -> None:
            met.append(number)
            own = asyncio.Event()
            events.append(own)
            if len(met) == 5:
                for event in events:
                    event.set()
            await own.wait()

        for number in range(5):
            meet.put(number)
        worker = self.start(concurrency=5)
        wait_until(lambda: self.total() == 0, "all tasks met")
        self.assertTrue(self.stop(worker))
        self.assertEqual(sorted(met), list(range(5)))

    def test_results_and_outcomes(self) -> None:
        self.client.create_tube(self.tube, keep_done=60)

        @self.app.task(self.tube, raw=True)
        def decide(what: Any) -> Any:
            if what == "bury":
                raise taskyard.Bury("no such user")
            if what == "retry":
                raise taskyard.Retry("busy", delay=60)
            if what == "release":
                raise taskyard.Release(delay=60)
            results = {"huge": "z" * 70000, "object": object(), "bytes": b"\x00", "accents": accents}
            return results.get(str(what), what)

        # Stored with two bytes for each character; its JSON has six.
        accents = "é" * 30000
        for what in ("bury", "retry", "release", {"a": 1}, "huge", "object", "bytes", "accents"):
            decide.put(what)
        worker = self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["kept"] == 5, "five tasks are done")
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["ready"] == 0, "no task is ready")
        self.stop(worker)
        tasks = [self.client.task(self.tube, id) for id in range(8)]
        states = [task.state for task in tasks]
        self.assertEqual(states, ["buried", "delayed", "delayed", "done", "done", "done", "done", "done"])
        self.assertEqual([task.attempts for task in tasks[:3]], [0, 1, 0])
        self.assertEqual([task.fields.get("error") for task in tasks[:2]], ["no such user", "busy"])
        self.assertEqual([task.result for task in tasks[3:]], [{"a": 1}, None, None, b"\x00", accents])

    def test_exceptions_are_stored_and_retried(self) -> None:
        attempts: List[int] = []

        @self.app.task(self.tube, retries=2, retry_delay=0)
        def fails(number: int) -> None:
            attempts.append(taskyard.current_task().attempt)
            raise ValueError(f"wrong number {number}")

        fails.put(number=7)
        worker = self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 1, "the task is buried")
        self.stop(worker)
        self.assertEqual(attempts, [1, 2, 3])
        task = self.client.task(self.tube, 0)
        first, *rest = task.failures[0]["error"].split("\n")
        self.assertEqual(first, "ValueError: wrong number 7")
        self.assertEqual(len(rest), 2, "the frame of the function alone")
        self.assertIn("in fails", rest[-2])
        self.assertIn('raise ValueError(f"wrong number', rest[-1])
        self.assertTrue(task.fields["error"].startswith("ValueError: wrong number 7"))
        self.assertEqual(task.failures[0]["worker"], worker.name)

    def test_a_payload_that_the_function_cannot_use_fails_alone(self) -> None:
        done = threading.Event()

        @self.app.task(self.tube, retries=0)
        def send(to: str) -> None:
            done.set()

        for payload in ([1, 2], {"wrong": 1}, b"\xc1", {"to": "ann"}):
            self.client.put(self.tube, payload)
        worker = self.start(concurrency=1)
        self.assertTrue(done.wait(PATIENCE))
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 3, "three tasks are buried")
        self.stop(worker)

    def test_a_payload_of_the_wrong_shape_is_buried_after_ten_attempts(self) -> None:
        @self.app.task(self.tube, retry_delay=0)
        def send(to: str) -> None:
            if to == "inside":
                raise TypeError("of the function itself")

        for payload in ([1, 2], {"wrong": 1}):
            self.client.put(self.tube, payload)
        self.client.put(self.tube, {}, attempts_max=12)
        worker = self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 3, "all tasks are buried")
        self.client.put(self.tube, {"to": "inside"})
        wait_until(lambda: self.client.task(self.tube, 3).attempts > 12, "an error of the function has no limit")
        self.stop(worker)
        tasks = [self.client.task(self.tube, id) for id in range(3)]
        self.assertEqual([task.attempts for task in tasks[:2]], [9, 9], "nine failures, then the task was buried")
        self.assertEqual(tasks[2].attempts, 12)
        self.assertIn("cannot decode the payload: send needs an object", tasks[0].fields["error"])
        self.assertIn("unexpected keyword argument 'wrong'", tasks[1].fields["error"])

    def test_delays_without_a_policy_grow_and_a_policy_wins(self) -> None:
        policy = f"{self.tube}.policy"
        self.client.create_tube(policy, retry={"delay": 500, "jitter": 0})
        for tube in (self.tube, policy):

            @self.app.task(tube, raw=True)
            def fails(number: int) -> None:
                raise ValueError("no")

            fails.put(1)
        worker = self.start()
        delays = []
        for tube, attempts in ((self.tube, 2), (policy, 1)):
            wait_until(lambda: self.client.task(tube, 0).attempts == attempts, "the task failed")
            task = self.client.task(tube, 0)
            delays.append(round(task.fields["due"] - task.fields["failed_at"]))
        self.stop(worker)
        self.assertEqual(delays, [2, 500])

    def test_leases_are_extended_while_a_function_blocks(self) -> None:
        signal = Signal()

        @self.app.task(self.tube)
        def slow() -> None:
            signal.call()

        slow.put()
        # Extended after two seconds, so that a busy machine has four more.
        worker = self.start(lease=6.0)
        self.assertTrue(signal.begun.wait(PATIENCE))
        task = self.client.peek(self.tube, [0])[0]
        lease, until = task.lease, task.fields["lease_until"]
        wait_until(lambda: self.client.peek(self.tube, [0])[0].fields["lease_until"] > until, "it is extended")
        self.assertEqual(self.client.peek(self.tube, [0])[0].lease, lease)
        signal.may_end.set()
        wait_until(lambda: self.total() == 0, "the task is done")
        self.assertEqual(self.client.tube(self.tube)["calls"]["take"], 1)
        self.stop(worker)

    def test_a_lost_task_cancels_its_function(self) -> None:
        begun, cancelled = threading.Event(), threading.Event()

        @self.app.task(self.tube)
        def slow() -> None:
            begun.set()
            try:
                while True:
                    time.sleep(0.001)
            except taskyard.Cancelled:
                cancelled.set()
                raise

        slow.put()
        worker = self.start(lease=9.0)
        self.assertTrue(begun.wait(PATIENCE))
        self.client.delete(self.tube, [0])
        self.assertTrue(cancelled.wait(PATIENCE))
        begun.clear()
        slow.put()
        self.assertTrue(begun.wait(PATIENCE), "the thread runs the next task")
        self.assertFalse(self.stop(worker, grace=0))
        task = self.client.task(self.tube, 1)
        self.assertEqual((task.state, task.attempts), ("ready", 0))

    def test_a_lost_task_cancels_its_asynchronous_function(self) -> None:
        begun, cancelled = threading.Event(), threading.Event()

        @self.app.task(self.tube)
        async def slow() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        slow.put()
        worker = self.start(lease=9.0)
        self.assertTrue(begun.wait(PATIENCE))
        self.client.bury(taskyard.Delivery(self.tube, 0), "stop it")
        self.assertTrue(cancelled.wait(PATIENCE))
        self.stop(worker)
        self.assertEqual(self.client.task(self.tube, 0).state, "buried")

    def test_the_time_limit_ends_an_asynchronous_function(self) -> None:
        @self.app.task(self.tube, time_limit=0.05, retries=0)
        async def endless() -> None:
            await asyncio.Event().wait()

        endless.put()
        worker = self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 1, "the task is buried")
        self.assertIn("time limit of 0.05 s", self.client.task(self.tube, 0).fields["error"])
        self.stop(worker)

    def test_the_traceback_of_an_asynchronous_function_is_stored(self) -> None:
        @self.app.task(self.tube, retries=0)
        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("wrong number")

        fails.put()
        worker = self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 1, "the task is buried")
        self.stop(worker)
        first, *rest = self.client.task(self.tube, 0).fields["error"].split("\n")
        self.assertEqual(first, "ValueError: wrong number")
        self.assertEqual(len(rest), 2, "the frame of the function alone")
        self.assertIn("in fails", rest[0])
        self.assertIn('raise ValueError("wrong number")', rest[1])

    def asynchronous_functions(self, ends: "asyncio.Event", begun: threading.Event, cancelled: threading.Event) -> None:
        @self.app.task(self.tube)
        async def slow() -> None:
            self.loop = asyncio.get_running_loop()
            begun.set()
            try:
                await ends.wait()
            except asyncio.CancelledError:
                cancelled.set()
                raise

        slow.put()

    def test_a_stop_waits_for_an_asynchronous_function(self) -> None:
        ends, begun, cancelled = asyncio.Event(), threading.Event(), threading.Event()
        self.asynchronous_functions(ends, begun, cancelled)
        worker = self.start()
        self.assertTrue(begun.wait(PATIENCE))
        outcome: List[bool] = []
        stopping = threading.Thread(target=lambda: outcome.append(worker.stop()))
        stopping.start()
        wait_until(lambda: worker._takers[0]._stopping.is_set(), "the worker stops")
        self.loop.call_soon_threadsafe(ends.set)
        stopping.join()
        self.assertEqual((outcome, cancelled.is_set()), ([True], False))
        self.assertEqual(self.total(), 0)

    def test_a_stop_cancels_an_asynchronous_function_when_its_grace_is_over(self) -> None:
        ends, begun, cancelled = asyncio.Event(), threading.Event(), threading.Event()
        self.asynchronous_functions(ends, begun, cancelled)
        worker = self.start()
        self.assertTrue(begun.wait(PATIENCE))
        self.assertFalse(worker.stop(0))
        self.assertTrue(cancelled.is_set())
        task = self.client.task(self.tube, 0)
        self.assertEqual((task.state, task.attempts), ("ready", 0))

    def test_the_time_limit_ends_a_function(self) -> None:
        @self.app.task(self.tube, time_limit=0.05, retries=0)
        def endless() -> None:
            while True:
                time.sleep(0.001)

        endless.put()
        worker = self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 1, "the task is buried")
        self.assertIn("time limit", self.client.task(self.tube, 0).fields["error"])
        self.stop(worker)

    def test_a_stop_waits_and_gives_back_what_has_not_begun(self) -> None:
        signal = Signal()

        @self.app.task(self.tube)
        def slow() -> None:
            signal.call()

        for _ in range(3):
            slow.put()
        worker = self.start(concurrency=1)
        self.assertTrue(signal.begun.wait(PATIENCE))
        # Two tasks that were taken ahead.
        taken = self.client.take_many(self.tube, 2, worker=worker.name)
        pool = worker._pools[False]
        pool.submit([taskyard.RunningTask(slow, task.fields, time.monotonic() + 60) for task in taken])
        stopping = threading.Thread(target=lambda: outcome.append(self.stop(worker)))
        outcome: List[bool] = []
        stopping.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["ready"] == 2, "two tasks are given back")
        signal.may_end.set()
        stopping.join()
        self.assertEqual(outcome, [True])
        states = {task.id: (task.state, task.attempts) for task in self.client.tasks(self.tube)}
        self.assertEqual(states, {1: ("ready", 0), 2: ("ready", 0)})

    def test_a_task_that_waits_behind_a_slow_one_is_given_back(self) -> None:
        signal = Signal()

        @self.app.task(self.tube, raw=True)
        def slow(_number: int) -> None:
            signal.call()

        slow.put(0)
        worker = self.start(concurrency=1)
        self.assertTrue(signal.begun.wait(PATIENCE))
        slow.put(1)
        taken = self.client.take(self.tube)
        assert taken is not None
        worker._pools[False].submit([taskyard.RunningTask(slow, taken.fields, time.monotonic() + 60)])
        wait_until(lambda: self.client.task(self.tube, 1).state == "ready", "it is given back")
        signal.may_end.set()
        wait_until(lambda: self.total() == 0, "both are done")
        self.stop(worker)

    def test_a_stop_ends_a_waiting_take_and_loses_nothing(self) -> None:
        """Tasks that the server had sent at the moment of the stop were lost until their leases ended."""

        @self.app.task(self.tube, raw=True)
        def count(number: int) -> None:
            ran.append(number)

        ran: List[int] = []
        self.client.create_tube(self.tube)
        for _ in range(20):
            worker = self.start(concurrency=1)
            wait_until(lambda: self.client.consumers(self.tube) != [], "a take waits")
            putting = threading.Thread(target=self.client.put, args=(self.tube, 1))
            putting.start()
            self.stop(worker)
            putting.join()
            self.assertEqual(self.client.tube(self.tube)["tasks"]["taken"], 0)
        ready = self.client.tube(self.tube)["tasks"]["ready"]
        self.assertEqual(len(ran) + ready, 20)

    def test_workers_are_listed(self) -> None:
        @self.app.task(self.tube)
        def nothing() -> None: ...

        nothing.put()
        worker = self.start(name=f"host:1:{self.tube}")
        wait_until(lambda: self.total() == 0, "the task is done")
        listed: Dict[str, Any] = next(item for item in self.client.workers() if item["name"] == worker.name)
        self.assertEqual((listed["version"], listed["tubes"], listed["done"]), ("0.1.0", [self.tube], 1))
        self.stop(worker)

    def test_wrong_functions_and_options_are_refused(self) -> None:
        self.app.task(self.tube)(lambda: None)
        with self.assertRaises(ValueError):
            self.app.task(self.tube)(lambda: None)
        with self.assertRaises(TypeError):
            self.app.task("other")(lambda *values: None)
        with self.assertRaises(ValueError):
            self.app.worker(tubes=["unknown"])
        with self.assertRaises(LookupError):
            taskyard.current_task()


class Restarts(ServerTest):
    def test_a_worker_survives_restarts_of_the_server(self) -> None:
        server = own_server(self)
        app = App(server.url)
        self.addCleanup(app.client.close)
        ran: List[int] = []
        count = app.task("count", raw=True)(ran.append)
        numbers = list(range(300))
        worker = app.worker(concurrency=4, lease=5)
        worker.start()
        for number in numbers:
            count.put(number)
            if number % 100 == 50:
                server.kill()
                restart = threading.Thread(target=server.start)
                restart.start()
            elif number % 100 == 99:
                restart.join()
        wait_until(lambda: app.client.tube("count")["tasks"]["total"] == 0, "all tasks are done")
        self.assertTrue(worker.stop())
        self.assertEqual(sorted(set(ran)), numbers)


class Formats(ServerTest):
    def test_log_records_have_the_worker_and_their_fields(self) -> None:
        app = App(self.server.url)
        self.addCleanup(app.client.close)
        app.task(self.tube)(lambda: None).put()
        with self.assertLogs("taskyard.worker", "DEBUG") as logs:
            worker = app.worker()
            worker.start()
            wait_until(lambda: any(record.getMessage() == "task done" for record in logs.records), "the task is done")
            worker.stop()
        record = next(record for record in logs.records if record.getMessage() == "task done")
        line = json.loads(JsonFormatter("web1:7:mail").format(record))
        expected = {"worker": "web1:7:mail", "tube": self.tube, "task": 0, "attempt": 1, "level": "debug"}
        self.assertEqual({name: line.get(name) for name in expected}, expected)
        self.assertGreaterEqual(line["seconds"], 0)
        odd = logging.makeLogRecord({"msg": "odd", "levelname": "INFO", "user": object()})
        self.assertIn("object", json.loads(JsonFormatter().format(odd))["user"])
        self.assertIn("tube=" + self.tube, TextFormatter().format(record))

    def test_errors_fit_into_what_servers_keep(self) -> None:
        def deep(n: int) -> None:
            if n == 0:
                raise ValueError("é" * 3000)
            deep(n - 1)

        try:
            deep(30)
        except ValueError as error:
            text = taskyard.execution.error_text(error)
        self.assertLessEqual(len(text.encode()), 1024)
        json.dumps(text)
