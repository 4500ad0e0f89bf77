"""How outcomes reach the server: odd ones, lost answers, proxies, dead connections, tubes without delays."""

from __future__ import annotations

import contextvars
import json
import threading
import time
import unittest
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

import taskyard
from taskyard import App, Worker, errors, execution
from taskyard.finisher import Finisher
from taskyard.transport import Answer
from tests.fixture import PATIENCE, ServerTest, wait_until
from tests.proxy import Proxy

#: Answers a finish request with its parts, or raises what a transport raises.
Script = Callable[[List[Dict[str, Any]]], Any]


class ScriptedTransport:
    """Answers as the test says, and notes the parts of each finish."""

    def __init__(self, answer: Script, kind: str = "fifottl") -> None:
        self._answer, self._kind = answer, kind
        self.sent: List[List[Dict[str, Any]]] = []

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        if method == "GET":
            return 200, json.dumps({"kind": self._kind}).encode()
        parts = json.loads(body or b"")["tasks"]
        self.sent.append(parts)
        status, answer = self._answer(parts)
        return status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    def close(self) -> None:
        pass


def all_done(parts: List[Dict[str, Any]]) -> Tuple[int, Any]:
    return 200, {"outcomes": ["done"] * len(parts)}


def refusal(status: int, code: str) -> Tuple[int, Any]:
    return status, {"error": {"code": code, "message": code}}


class Finishers(unittest.TestCase):
    def setUp(self) -> None:
        self.app = App("http://127.0.0.1:1", repeat_for=0)
        self.function = self.app.task("work", raw=True)(lambda data: None)

    def task(self, id: int, lease: float = 60.0) -> taskyard.RunningTask:
        fields = {"id": id, "lease": id, "attempts": 0, "state": "taken", "data": id}
        return taskyard.RunningTask(self.function, fields, time.monotonic() + lease)

    def finisher(self, answer: Script, kind: str = "fifottl") -> Tuple[Finisher, ScriptedTransport]:
        transport = ScriptedTransport(answer, kind)
        finisher = Finisher(taskyard.Client("http://127.0.0.1:1", repeat_for=0, transport=transport))
        self.addCleanup(finisher.stop, 0)
        return finisher, transport

    def test_an_ack_is_repeated_until_taskyard_answers(self) -> None:
        """The page of a proxy was taken for an answer, and the ack was dropped."""
        answers: List[Any] = [(status, "<html>") for status in (502, 503, 504, 429, 200, 404)]
        answers += [refusal(500, "internal"), refusal(503, "overloaded"), errors.UnreachableError("away")]

        def answer(parts: List[Dict[str, Any]]) -> Any:
            if not answers:
                return all_done(parts)
            next = answers.pop(0)
            if isinstance(next, Exception):
                raise next
            return next

        finisher, transport = self.finisher(answer)
        finisher._hurry.wait = lambda seconds: False  # type: ignore[method-assign, assignment]
        # Its lease has ended here; the server decides whether it has ended there, too.
        task = self.task(7, lease=0)
        finisher.add(task, execution.ack(task))
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(transport.sent, [[{"verb": "ack", "id": 7, "lease": 7}]] * 10)

    def test_a_refusal_ends_a_request_and_not_the_thread(self) -> None:
        codes = [(401, "unauthorized"), (404, "tube_not_found"), (501, "missing_feature")]
        finisher, transport = self.finisher(lambda parts: refusal(*codes.pop(0)) if codes else all_done(parts))
        for id in range(4):
            task = self.task(id)
            finisher.add(task, execution.ack(task))
            wait_until(lambda: len(transport.sent) == id + 1, "the ack was sent")
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(len(transport.sent), 4)

    def test_an_outcome_that_is_refused_is_found_and_the_others_are_sent(self) -> None:
        def answer(parts: List[Dict[str, Any]]) -> Any:
            if any(part.get("result") == 13 for part in parts):
                return refusal(413, "too_large")
            accepted.extend(parts)
            return all_done(parts)

        accepted: List[Dict[str, Any]] = []
        first = threading.Event()

        def wait_first(parts: List[Dict[str, Any]]) -> Any:
            first.wait(PATIENCE)
            return answer(parts)

        finisher, transport = self.finisher(wait_first)
        for id in range(65):
            task = self.task(id)
            finisher.add(task, execution.done(task, id))
        first.set()
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(sorted(part["id"] for part in accepted), list(range(65)))
        self.assertEqual([part["id"] for part in accepted if "result" not in part], [13])
        self.assertLess(len(transport.sent), 20)

    def test_a_stop_says_whether_all_was_sent(self) -> None:
        def away(parts: List[Dict[str, Any]]) -> Any:
            raise errors.UnreachableError("away")

        finisher, transport = self.finisher(away)
        task = self.task(0)
        finisher.add(task, execution.ack(task))
        wait_until(lambda: transport.sent != [], "the ack was sent")
        self.assertFalse(finisher.stop(0))

    def test_a_bug_in_a_request_does_not_end_the_thread(self) -> None:
        """One exception that was not foreseen ended the thread, and no task of the worker was ever finished again."""
        results: List[Any] = [KeyError("bug")]

        def answer(parts: List[Dict[str, Any]]) -> Any:
            if results:
                raise results.pop()
            return all_done(parts)

        finisher, transport = self.finisher(answer)
        odd = self.task(2)
        finisher.add(self.task(1), execution.ack(self.task(1)))
        wait_until(lambda: len(transport.sent) == 1, "the first was sent")
        finisher.add(odd, {"verb": "bury", "id": 2, "lease": 2, "error": object()})  # type: ignore[typeddict-item]
        self.assertFalse(finisher.stop(PATIENCE), "the first was not sent")
        self.assertEqual([part["verb"] for part in transport.sent[1]], ["fail"])

    def test_after_a_lost_answer_only_a_lease_that_holds_counts_as_done(self) -> None:
        lost = [True]

        def answer(parts: List[Dict[str, Any]]) -> Any:
            if lost.pop() if lost else False:
                raise errors.OutcomeUnknownError("lost")
            return 200, {"outcomes": ["missing"] * len(parts)}

        finisher, _ = self.finisher(answer)
        with self.assertLogs("taskyard.worker", "WARNING") as logs:
            batch = [(self.task(1), execution.ack(self.task(1))), (self.task(2, lease=0), execution.ack(self.task(2)))]
            finisher._send("work", batch)
        ended = [record.task for record in logs.records if "ended before" in record.getMessage()]  # type: ignore[attr-defined]
        self.assertEqual(ended, [2])

    def test_outcomes_that_wait_are_sent_at_a_stop_and_lost_ones_never(self) -> None:
        finisher, transport = self.finisher(all_done, kind="utube")
        kept, lost = self.task(1), self.task(2)
        for task in (kept, lost):
            finisher.add(task, execution.failure(task, "no", 3600.0))
        wait_until(lambda: len(finisher.held) == 2, "both wait")
        lost.cancel(taskyard.running_task.CancelReason.LOST)
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual([part["id"] for part in sum(transport.sent, [])], [1])


class WorkerTest(ServerTest):
    def setUp(self) -> None:
        super().setUp()
        self.app = App(self.server.url)
        self.addCleanup(self.app.client.close)

    def start(self, app: Optional[App] = None, **options: Any) -> Worker:
        worker = (app or self.app).worker(**options)
        worker.start()
        self.addCleanup(worker.stop, 0)
        return worker


class OddOutcomes(WorkerTest):
    def test_wrong_delays_follow_the_retry_policy(self) -> None:
        """Each of these ended the thread that sends outcomes, or the one that ran the function."""
        self.client.create_tube(self.tube, retry={"delay": 500, "jitter": 0})
        delays: List[Any] = [float("inf"), float("nan"), -1, "soon", object(), timedelta(seconds=-1), timedelta(minutes=1), 70]
        raised: List[Exception] = [IndexError(), KeyError("x"), ValueError(), taskyard.Retry()]

        def retry_delay(attempt: int) -> float:
            raise raised.pop()

        @self.app.task(self.tube, raw=True, retry_delay=retry_delay)
        def fails(number: int) -> None:
            if number < len(delays):
                raise taskyard.Retry("busy", delay=delays[number])
            raise ValueError("no")

        for number in range(12):
            fails.put(number)
        self.start(concurrency=1)
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["delayed"] == 12, "all tasks failed")
        tasks = [self.client.task(self.tube, id) for id in range(12)]
        due = [round(task.fields["due"] - task.fields["failed_at"]) for task in tasks]
        # For the first six the function of the delays is asked, which fails, too.
        self.assertEqual(due, [500] * 6 + [60, 70] + [500] * 4)

    def test_a_delay_may_be_a_timedelta(self) -> None:
        @self.app.task(self.tube, raw=True, retry_delay=timedelta(minutes=2))
        def fails(number: int) -> None:
            if number:
                raise taskyard.Release(timedelta(minutes=3))
            raise ValueError("no")

        fails.put(0)
        fails.put(1)
        self.start()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["delayed"] == 2, "both tasks wait")
        failed, released = [self.client.task(self.tube, id) for id in (0, 1)]
        self.assertEqual(round(failed.fields["due"] - failed.fields["failed_at"]), 120)
        self.assertEqual((failed.attempts, released.attempts), (1, 0))
        for wrong in (-1.0, float("inf")):
            with self.assertRaises(ValueError):
                self.app.task("other", retry_delay=wrong)(lambda: None)

    def test_exceptions_that_cannot_be_shown_fail_their_task(self) -> None:
        class Odd(Exception):
            def __str__(self) -> str:
                raise KeyError("no text")

        class OddBury(taskyard.Bury):
            def __str__(self) -> str:
                raise KeyError("no text")

        @self.app.task(self.tube, raw=True, retries=0)
        def fails(number: int) -> None:
            raise [Odd(), OddBury(), ValueError("half \ud800 of a character")][number]

        for number in range(3):
            fails.put(number)
        self.start(concurrency=1)
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["buried"] == 3, "all tasks are buried")
        self.assertEqual(self.client.task(self.tube, 1).fields["error"], "OddBury")

    def test_context_variables_end_with_their_task(self) -> None:
        user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="none")
        seen: List[str] = []

        @self.app.task(self.tube, raw=True)
        def work(name: str) -> None:
            seen.append(user.get())
            user.set(name)

        for name in ("ann", "ben"):
            work.put(name)
        self.start(concurrency=1)
        wait_until(lambda: len(seen) == 2, "both ran")
        self.assertEqual(seen, ["none", "none"])

    def test_a_tube_without_delays_gets_failures_later(self) -> None:
        """The server ignores the delay there: a failing task was delivered 400 times in a second."""
        self.client.create_tube(self.tube, kind="fifo")
        ran: List[int] = []

        @self.app.task(self.tube, raw=True, retry_delay=3600)
        def work(number: int) -> None:
            ran.append(number)
            if number == 0:
                raise ValueError("no")

        work.put(0)
        worker = self.start(concurrency=1, lease=4.0)
        wait_until(lambda: len(worker._finisher.held) == 1, "the failure waits")
        work.put(1)
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 1, "the next task runs meanwhile")
        until = self.client.peek(self.tube, [0])[0].fields["lease_until"]
        wait_until(lambda: self.client.peek(self.tube, [0])[0].fields["lease_until"] > until, "the lease is extended")
        self.assertTrue(worker.stop())
        self.assertEqual(ran, [0, 1])
        task = self.client.task(self.tube, 0)
        self.assertEqual((task.state, task.attempts), ("ready", 1))


class Connections(WorkerTest):
    def setUp(self) -> None:
        super().setUp()
        self.proxy = Proxy(self.server.port)
        self.addCleanup(self.proxy.close)
        self.far = App(self.proxy.url)
        self.addCleanup(self.far.client.close)
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.ran: List[int] = []

        @self.far.task(self.tube)
        def slow() -> None:
            self.ran.append(taskyard.current_task().attempt)
            self.begun.set()
            assert self.may_end.wait(PATIENCE)

        self.slow = slow

    def lease_until(self) -> float:
        until: float = self.client.peek(self.tube, [0])[0].fields["lease_until"]
        return until

    def wait_for_extension(self) -> None:
        until = self.lease_until()
        wait_until(lambda: self.lease_until() > until, "the lease is extended")

    def test_a_dead_connection_costs_no_lease(self) -> None:
        """The thread that extends leases waited 60 s for the answer on a connection that a firewall had dropped."""
        self.slow.put()
        self.start(self.far, concurrency=1, lease=8.0)
        self.assertTrue(self.begun.wait(PATIENCE))
        self.wait_for_extension()
        self.assertGreaterEqual(self.proxy.freeze(), 2)
        self.wait_for_extension()
        self.wait_for_extension()
        self.may_end.set()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 0, "the task is done")
        self.assertEqual(self.ran, [1])

    def test_an_ack_on_a_dead_connection_is_sent_over_another(self) -> None:
        self.far.task("other")(lambda: None).put()
        self.slow.put()
        self.start(self.far, concurrency=2, lease=8.0)
        self.assertTrue(self.begun.wait(PATIENCE))
        wait_until(lambda: self.client.tube("other")["calls"]["ack"] >= 1, "the connection for outcomes is open")
        self.proxy.freeze()
        self.may_end.set()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 0, "the task is done")
        self.assertEqual(self.ran, [1])

    def test_an_ack_reaches_a_server_that_was_away(self) -> None:
        self.slow.put()
        worker = self.start(self.far, concurrency=1)
        self.assertTrue(self.begun.wait(PATIENCE))
        with self.assertLogs("taskyard.worker", "WARNING") as logs:
            self.proxy.cut()
            self.may_end.set()
            wait_until(lambda: sum("are sent again" in line for line in logs.output) >= 2, "the ack is repeated")
        self.assertEqual(self.client.tube(self.tube)["tasks"]["taken"], 1)
        self.proxy.mend()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 0, "the task is done")
        self.assertTrue(worker.stop())
        self.assertEqual(self.ran, [1])
