"""How outcomes reach the server: odd ones, lost answers, proxies, dead connections, tubes without delays."""

from __future__ import annotations

import contextvars
import threading
import time
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional
from unittest import mock

import taskyard
from taskyard import App, Worker, errors, execution
from taskyard.finisher import _Unsent
from taskyard.server_url import ServerUrl
from taskyard.transport import Answer, HttpTransport
from tests.fixture import PATIENCE, ServerTest, extend_leases, wait_until
from tests.proxy import Proxy
from tests.scripted_transport import FinisherTest, Script, all_done, refusal


class Finishers(FinisherTest):
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
        # Its lease has ended here; the server decides whether it has ended there, too.
        task = self.task(7, lease=0)
        finisher.add(task, execution.ack(task))
        wait_until(lambda: len(transport.sent) == 10, "the ack was sent ten times")
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(transport.sent, [[{"verb": "ack", "id": 7, "lease": 7}]] * 10)

    def test_a_refusal_of_tasks_ends_a_request_and_not_the_thread(self) -> None:
        codes = [(404, "tube_not_found"), (501, "missing_feature"), (400, "invalid")]
        finisher, transport = self.finisher(lambda parts: refusal(*codes.pop(0)) if codes else all_done(parts))
        for id in range(4):
            task = self.task(id)
            finisher.add(task, execution.ack(task))
            wait_until(lambda: len(transport.sent) == id + 1, "the ack was sent")
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(len(transport.sent), 4)

    def test_a_refusal_that_is_not_about_the_tasks_is_repeated(self) -> None:
        """While a token was replaced, a worker dropped the acks of finished tasks, which ran again."""
        codes = [(401, "unauthorized"), (403, "forbidden"), (429, "too_many_requests"), (404, "route_not_found")]
        finisher, transport = self.finisher(lambda parts: refusal(*codes.pop(0)) if codes else all_done(parts))
        task = self.task(7)
        finisher.add(task, execution.ack(task))
        wait_until(lambda: len(transport.sent) == 5, "the ack was sent until it was accepted")
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(transport.sent, [[{"verb": "ack", "id": 7, "lease": 7}]] * 5)

    def test_a_refused_ack_is_repeated_as_long_as_its_lease(self) -> None:
        def answer(parts: List[Dict[str, Any]]) -> Any:
            self.now += 1.0
            return refusal(403, "forbidden")

        finisher, transport = self.finisher(answer)
        short, long = self.task(1, lease=10.5), self.task(2, lease=20.5)
        with self.assertLogs("taskyard.worker", "ERROR") as logs:
            for task in (short, long):
                finisher.add(task, execution.ack(task))
            wait_until(lambda: len(logs.records) == 2, "both were given up")
        self.assertFalse(finisher.stop(PATIENCE))
        counts = [sum(part["id"] == id for part in sum(transport.sent, [])) for id in (1, 2)]
        # The first one may have been sent alone.
        self.assertIn(counts, [[11, 21], [11, 20]])

    def test_a_tube_that_is_forbidden_does_not_keep_others_from_the_server(self) -> None:
        done = threading.Event()

        def answer(parts: List[Dict[str, Any]]) -> Any:
            if parts[0]["id"] == 1 and not done.is_set():
                return refusal(403, "forbidden")
            if parts[0]["id"] == 2:
                done.set()
            return all_done(parts)

        finisher, transport = self.finisher(answer)
        forbidden, allowed = self.task(1), self.task(2, is_other=True)
        finisher.add(forbidden, execution.ack(forbidden))
        wait_until(lambda: len(transport.sent) >= 3, "the first is repeated")
        finisher.add(allowed, execution.ack(allowed))
        self.assertTrue(done.wait(PATIENCE))
        self.assertTrue(finisher.stop(PATIENCE))

    def away_for(self, seconds: float) -> Script:
        """A server that is away: each request takes a second."""
        back = self.now + seconds

        def answer(parts: List[Dict[str, Any]]) -> Any:
            if self.now < back:
                self.now += 1.0
                raise errors.UnreachableError("away")
            return all_done(parts)

        return answer

    def test_a_stop_sends_until_the_time_is_over(self) -> None:
        """A stop gave up after 10 seconds, although the server was back before the leases and the grace ended."""
        for seconds, sent in ((30.0, True), (15.0, False)):
            finisher, _ = self.finisher(self.away_for(20.0))
            task = self.task(1)
            finisher.add(task, execution.ack(task))
            self.assertEqual(finisher.stop(seconds), sent)

    def test_a_stop_does_not_wait_for_longer_than_the_leases(self) -> None:
        finisher, transport = self.finisher(self.away_for(1000.0))
        began = self.now
        for id, lease in ((1, 5.0), (2, 10.0)):
            task = self.task(id, lease)
            finisher.add(task, execution.ack(task))
        self.assertFalse(finisher.stop(500.0))
        self.assertLess(self.now - began, 20.0)
        self.assertEqual([part["id"] for part in transport.sent[-1]], [2])

    def test_a_stop_that_is_hurried_gives_up_early(self) -> None:
        def away(parts: List[Dict[str, Any]]) -> Any:
            raise errors.UnreachableError("away")

        finisher, transport = self.finisher(away)
        task = self.task(1, lease=5000.0)
        finisher.add(task, execution.ack(task))
        outcomes: List[bool] = []
        stopping = threading.Thread(target=lambda: outcomes.append(finisher.stop(4000.0)))
        stopping.start()
        wait_until(lambda: finisher._ended, "the stop began")
        finisher.hurry(10.0)
        self.now += 11.0
        stopping.join(PATIENCE)
        self.assertEqual(outcomes, [False])

    def test_outcomes_that_are_not_answered_stop_takes(self) -> None:
        away = threading.Event()

        def answer(parts: List[Dict[str, Any]]) -> Any:
            if not away.is_set():
                raise errors.UnreachableError("away")
            return all_done(parts)

        limit = mock.patch("taskyard.finisher.UNANSWERED_MAX", 10)
        limit.start()
        self.addCleanup(limit.stop)
        finisher, _ = self.finisher(answer)
        task = self.task(1)
        for _ in range(10):
            finisher.add(task, execution.ack(task))
        self.assertFalse(finisher.is_full())
        finisher.add(task, execution.ack(task))
        wait_until(finisher.is_full, "one more is too many")
        away.set()
        wait_until(lambda: not finisher.is_full(), "they are sent")
        self.assertTrue(finisher.stop(PATIENCE))

    def test_a_task_that_cannot_be_decoded_is_buried_after_ten_attempts(self) -> None:
        """It was tried again every hour for ever, and no list of buried tasks showed it."""

        def verb(attempts: int, error: Exception, limit: Optional[int] = None, tube_limit: Optional[int] = None) -> str:
            finisher, transport = self.finisher(all_done)
            transport.tube["attempts_max"] = tube_limit  # type: ignore[assignment]
            task = self.task(1)
            task.fields["attempts"] = attempts
            transport.task["attempts_max"] = limit
            finisher.add(task, execution.failed(task, error))
            self.assertTrue(finisher.stop(PATIENCE))
            return str(transport.sent[0][0]["verb"])

        wrong = taskyard.PayloadError("wrong")
        self.assertEqual([verb(8, wrong), verb(9, wrong), verb(10, wrong)], ["fail", "bury", "bury"])
        self.assertEqual(verb(9, ValueError("no")), "fail")
        self.assertEqual([verb(9, wrong, limit=20), verb(9, wrong, tube_limit=20)], ["fail", "fail"])

    def test_nothing_is_buried_while_the_limit_of_the_tube_is_unknown(self) -> None:
        for method in ("tube", "peek"):
            finisher, transport = self.finisher(all_done)
            setattr(finisher._client, method, mock.Mock(side_effect=errors.UnreachableError("away")))
            task = self.task(1)
            task.fields["attempts"] = 30
            finisher.add(task, execution.failed(task, taskyard.PayloadError("wrong")))
            self.assertTrue(finisher.stop(PATIENCE))
            self.assertEqual(transport.sent[0][0]["verb"], "fail")

    def test_the_acks_of_a_moment_travel_together(self) -> None:
        may_answer = threading.Event()

        def answer(parts: List[Dict[str, Any]]) -> Any:
            may_answer.wait(PATIENCE)
            return all_done(parts)

        finisher, transport = self.finisher(answer)
        for id in range(1000):
            task = self.task(id)
            finisher.add(task, execution.ack(task))
            if id == 0:
                wait_until(lambda: len(transport.sent) == 1, "the first is sent at once")
        may_answer.set()
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual([len(parts) for parts in transport.sent], [1, 999])

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
            unsent = _Unsent()
            unsent.added.extend(batch)
            for _ in range(2):
                finisher._send_due("work", unsent)
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


class AwayTransport(HttpTransport):
    """Does not reach the server until the clock of the test has passed a time; each request takes a second of that clock."""

    def __init__(self, server: ServerUrl, back: float) -> None:
        super().__init__(server)
        self.passed, self.back = 0.0, back
        #: Time passes when this is so.
        self.may_pass: Callable[[], bool] = lambda: True

    def clock(self) -> float:
        return time.monotonic() + self.passed

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        if self.passed < self.back:
            wait_until(self.may_pass, "the time may pass")
            self.passed += 1.0
            raise errors.UnreachableError("away")
        return super().exchange(method, target, body, wait)


class Stops(WorkerTest):
    def stop_while_away(self, back: float, grace: float, lease: float) -> bool:
        """Stops a worker whose function has ended, while the server is away for so many seconds."""
        begun = threading.Event()

        @self.app.task(self.tube)
        def work() -> None:
            begun.set()
            # Ends when the stop has begun.
            assert worker._takers[0]._stopping.wait(PATIENCE)

        work.put()
        away = AwayTransport(self.client._server, back)
        client = taskyard.Client(self.server.url, repeat_for=0, transport=away)
        self.addCleanup(client.close)
        worker = self.app.worker(lease=lease, grace=grace)
        worker._own_client = lambda timeout: client  # type: ignore[method-assign]
        worker._clock = away.clock
        worker.start()
        finisher = worker._finisher
        assert finisher is not None
        finisher.pause_min = finisher.pause_max = 0.0
        away.may_pass = lambda: finisher._until > 0.0
        self.assertTrue(begun.wait(PATIENCE))
        return worker.stop()

    def test_a_stop_sends_acks_until_its_grace_is_over(self) -> None:
        self.assertTrue(self.stop_while_away(back=20.0, grace=30.0, lease=3600.0))
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 0)

    def test_a_stop_gives_acks_up_when_its_grace_is_over(self) -> None:
        self.assertFalse(self.stop_while_away(back=50.0, grace=30.0, lease=3600.0))
        self.assertEqual(self.client.task(self.tube, 0).state, "taken")

    def test_a_stop_gives_acks_up_when_their_lease_is_over(self) -> None:
        self.assertFalse(self.stop_while_away(back=3000.0, grace=3600.0, lease=60.0))


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
        worker = self.start(concurrency=1, lease=3600.0)
        finisher = worker._finisher
        assert finisher is not None
        wait_until(lambda: len(finisher.held) == 1, "the failure waits")
        work.put(1)
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 1, "the next task runs meanwhile")
        extend_leases(worker, lambda: [self.client.peek(self.tube, [0])[0].fields["lease_until"]])
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

    def test_a_worker_uses_one_connection_for_each_tube_and_one_for_outcomes(self) -> None:
        """Tubes were created over a third connection, and leases extended over a fourth."""
        count = self.far.task(f"{self.tube}.count", raw=True)(lambda number: None)
        self.client.put_many(count.tube, list(range(500)))
        self.slow.put()
        before = self.proxy.accepted
        worker = self.start(self.far, concurrency=4, lease=3600.0)
        finisher = worker._finisher
        assert finisher is not None
        self.assertTrue(self.begun.wait(PATIENCE))
        wait_until(lambda: self.client.tube(count.tube)["tasks"]["total"] == 0, "all tasks are done")
        # An extension at the same moment as outcomes uses another connection.
        wait_until(lambda: not finisher.held, "the outcomes are answered")
        extend_leases(worker, lambda: [self.lease_until()])
        self.may_end.set()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 0, "the task is done")
        self.assertTrue(worker.stop())
        self.assertEqual(self.proxy.accepted - before, 3)

    def test_a_dead_connection_costs_no_lease(self) -> None:
        """The thread that extends leases waited 60 s for the answer on a connection that a firewall had dropped."""
        self.slow.put()
        self.start(self.far, concurrency=1, lease=12.0)
        self.assertTrue(self.begun.wait(PATIENCE))
        self.wait_for_extension()
        self.assertGreaterEqual(self.proxy.freeze(), 2)
        self.wait_for_extension()
        self.wait_for_extension()
        self.may_end.set()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 0, "the task is done")
        self.assertEqual(self.ran, [1])

    def test_connections_that_died_together_are_given_up_together(self) -> None:
        client = taskyard.Client(self.proxy.url, timeout=1.0, repeat_for=0)
        self.addCleanup(client.close)
        self.client.create_tube(self.tube)
        taking = threading.Thread(target=client.take, args=(self.tube,), kwargs={"wait": PATIENCE})
        taking.start()
        wait_until(lambda: self.client.consumers(self.tube) != [], "a take waits")
        client.put(self.tube, 1)
        taking.join()
        self.assertEqual((self.proxy.accepted, self.proxy.freeze()), (2, 2))
        with self.assertRaises(errors.OutcomeUnknownError):
            client.tubes()
        client.tubes()
        self.assertEqual(self.proxy.accepted, 3)

    def test_an_ack_on_a_dead_connection_is_sent_over_another(self) -> None:
        self.far.task("other")(lambda: None).put()
        self.slow.put()
        self.start(self.far, concurrency=2, lease=12.0)
        self.assertTrue(self.begun.wait(PATIENCE))
        wait_until(lambda: self.client.tube("other")["calls"]["ack"] >= 1, "the connection for outcomes is open")
        self.proxy.freeze()
        self.may_end.set()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["total"] == 0, "the task is done")
        self.assertEqual(self.ran, [1])

    def test_a_lease_that_ends_while_the_server_is_away_cancels_its_function(self) -> None:
        cancelled = threading.Event()
        stuck = self.far.task(f"{self.tube}.stuck")(lambda: self.run_until_cancelled(cancelled))
        stuck.put()
        worker = self.start(self.far, concurrency=1, lease=3600.0)
        self.assertTrue(self.begun.wait(PATIENCE))
        self.proxy.cut()
        keeper = worker._keeper
        assert keeper is not None
        keeper._check(time.monotonic() + 3500.0)
        self.assertFalse(cancelled.is_set())
        with self.assertLogs("taskyard.worker", "WARNING") as logs:
            keeper._check(time.monotonic() + 3700.0)
            self.assertTrue(cancelled.wait(PATIENCE))
        self.assertTrue(any("its lease ended while the server was unreachable" in line for line in logs.output), logs.output)
        # Nothing is sent about a task that another worker may have.
        wait_until(lambda: not worker._pools[False].held, "the function ended")
        self.proxy.mend()
        self.assertTrue(worker.stop())
        self.assertEqual(self.client.task(stuck.tube, 0).state, "taken")

    def run_until_cancelled(self, cancelled: threading.Event) -> None:
        self.begun.set()
        try:
            while True:
                time.sleep(0.001)
        except taskyard.Cancelled:
            cancelled.set()
            raise

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
