"""What becomes of outcomes until they are answered: requests that are too large, tasks that cannot be decoded, leases, stops."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, Dict, List, Optional

import taskyard
from taskyard import App, errors, execution
from taskyard.finisher import SHORT_ERROR, Finisher
from taskyard.lease_keeper import LeaseKeeper
from taskyard.running_task import CancelReason
from taskyard.server_url import ServerUrl
from taskyard.transport import Answer, HttpTransport
from tests.fixture import PATIENCE, ServerTest, extend_leases, wait_until
from tests.scripted_transport import FinisherTest, Script, all_done, refusal

Parts = List[Dict[str, Any]]

#: How servers and proxies say that a request is too large.
TOO_LARGE = [(413, "<html>"), (413, {"message": "no"}), refusal(413, "payload_too_large"), refusal(413, "too_large")]


class TooLarge(FinisherTest):
    def limited(self, bytes_max: int, refused: Any, accepted: Parts) -> Script:
        """A proxy that refuses longer requests. Each refusal takes a second, so that repeating them has an end."""

        def answer(parts: Parts) -> Any:
            if len(json.dumps(parts)) > bytes_max:
                self.now += 1.0
                return refused
            accepted.extend(parts)
            return all_done(parts)

        return answer

    def test_a_request_that_is_too_large_is_sent_in_parts(self) -> None:
        """It was sent again unchanged until the leases of its tasks ended, if a proxy had refused it."""
        for refused in TOO_LARGE:
            accepted: Parts = []
            finisher, _ = self.finisher(self.limited(400, refused, accepted))
            for id in range(100):
                task = self.task(id, lease=3600.0)
                finisher.add(task, execution.ack(task))
            self.assertTrue(finisher.stop(1000.0), refused)
            self.assertEqual(sorted(part["id"] for part in accepted), list(range(100)))
            self.assertEqual(finisher.held, {})

    def test_an_outcome_that_is_too_large_is_sent_without_its_result_or_with_a_shorter_error(self) -> None:
        for refused in TOO_LARGE:
            accepted: Parts = []
            finisher, _ = self.finisher(self.limited(500, refused, accepted))
            acked, failed, buried, small = [self.task(id, lease=3600.0) for id in range(4)]
            finisher.add(acked, execution.done(acked, "r" * 1000))
            finisher.add(failed, execution.failed(failed, ValueError("e" * 900)))
            finisher.add(buried, execution.failed(buried, taskyard.Bury("b" * 900)))
            finisher.add(small, execution.done(small, "s"))
            self.assertTrue(finisher.stop(1000.0), refused)
            by_id = {part["id"]: part for part in accepted}
            self.assertEqual(by_id[0], {"verb": "ack", "id": 0, "lease": 0})
            self.assertEqual((by_id[1]["verb"], by_id[1]["error"]), ("fail", ("ValueError: " + "e" * 900)[:SHORT_ERROR]))
            self.assertEqual((by_id[2]["verb"], by_id[2]["error"]), ("bury", "b" * SHORT_ERROR))
            self.assertEqual(by_id[3]["result"], "s")

    def test_an_outcome_that_cannot_be_smaller_is_dropped(self) -> None:
        finisher, transport = self.finisher(self.limited(10, (413, "<html>"), []))
        with self.assertLogs("taskyard.worker", "ERROR") as logs:
            for id, error in ((1, None), (2, "no")):
                task = self.task(id, lease=3600.0)
                finisher.add(task, execution.ack(task) if error is None else execution.failure(task, error))
                wait_until(lambda: len(logs.records) == id, "it is dropped")
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(([len(parts) for parts in transport.sent], finisher.held), ([1, 1], {}))

    def test_leases_are_extended_in_parts(self) -> None:
        touched: Parts = []
        finisher, _ = self.finisher(self.limited(1000, (413, "<html>"), touched))
        keeper = LeaseKeeper(finisher._client, 3600.0, [], finisher)
        self.addCleanup(keeper.stop)
        # More than a third of the lease has passed.
        for id in range(100):
            fields = {"id": id, "lease": id, "attempts": 0, "state": "taken", "data": id}
            finisher.held[taskyard.RunningTask(self.function, fields, time.monotonic() + 1800.0)] = None
        wait_until(lambda: len({part["id"] for part in touched}) == 100, "all leases are extended")
        self.assertEqual({part["verb"] for part in touched}, {"touch"})

    def test_a_proxy_may_refuse_a_request_before_it_has_read_it(self) -> None:
        """The error of sending was reported, and the response was never read: the same request was sent again for ever."""
        refusing = RefusingServer()
        self.addCleanup(refusing.close)
        client = taskyard.Client(refusing.url, repeat_for=0)
        self.addCleanup(client.close)
        with self.assertRaises(errors.TooLargeError):
            client.put("work", "x" * (32 << 20))


class RefusingServer:
    """Answers one request with status 413 when its first bytes have come, and closes the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        near, _ = self._listener.accept()
        near.recv(1000)
        near.sendall(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 6\r\n\r\n<html>")
        near.close()

    def close(self) -> None:
        self._thread.join(PATIENCE)
        self._listener.close()


class Undecodable(FinisherTest):
    def add_undecodable(self, finisher: Finisher, ids: range) -> None:
        for id in ids:
            task = self.task(id, lease=3600.0)
            task.fields["attempts"] = 30
            finisher.add(task, execution.failed(task, taskyard.PayloadError("wrong")))

    def busy(self) -> Any:
        """A finisher whose thread waits for an answer, until the event is set."""
        may_answer = threading.Event()

        def answer(parts: Parts) -> Any:
            may_answer.wait(PATIENCE)
            return all_done(parts)

        finisher, transport = self.finisher(answer)
        self.addCleanup(may_answer.set)
        task = self.task(100_000)
        finisher.add(task, execution.ack(task))
        wait_until(lambda: len(transport.sent) == 1, "the first is sent at once")
        return finisher, transport, may_answer

    def test_the_limits_of_many_tasks_are_read_in_one_request(self) -> None:
        """Each was read in a request of its own: 1,000 of them held up the outcomes of all other tasks."""
        finisher, transport, may_answer = self.busy()
        transport.peek = lambda ids: (200, {"tasks": [{"id": id, "attempts_max": 50 if id % 10 == 0 else None} for id in ids]})
        self.add_undecodable(finisher, range(1000))
        may_answer.set()
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(len(transport.peeked), 1)
        self.assertEqual(transport.peeked[0], list(range(1000)))
        verbs = {part["id"]: part["verb"] for part in transport.sent[1]}
        self.assertEqual(verbs, {id: "fail" if id % 10 == 0 else "bury" for id in range(1000)})

    def test_tasks_whose_payloads_are_too_large_together_are_read_in_parts(self) -> None:
        finisher, transport, may_answer = self.busy()

        def peek(ids: List[int]) -> Any:
            if len(ids) > 3:
                return refusal(413, "too_large")
            return (200, {"tasks": [{"id": id} for id in ids]}) if 7 not in ids else refusal(413, "too_large")

        transport.peek = peek
        self.add_undecodable(finisher, range(8))
        may_answer.set()
        self.assertTrue(finisher.stop(PATIENCE))
        verbs = [part["verb"] for part in sorted(transport.sent[1], key=lambda part: int(part["id"]))]
        self.assertEqual(verbs, ["bury"] * 7 + ["fail"])

    def test_a_task_is_buried_without_its_limit_only_if_its_token_may_never_read_it(self) -> None:
        """One attempt while the token was replaced buried tasks whose own limit was not reached."""

        def verb(answer: Any) -> str:
            finisher, transport = self.finisher(all_done)
            transport.peek = lambda ids: answer
            self.add_undecodable(finisher, range(1))
            self.assertTrue(finisher.stop(PATIENCE))
            return str(transport.sent[0][0]["verb"])

        self.assertEqual(verb(refusal(403, "forbidden")), "bury")
        others = [refusal(401, "unauthorized"), refusal(404, "tube_not_found"), refusal(400, "invalid")]
        others += [refusal(429, "too_many_requests"), refusal(503, "overloaded"), (403, "<html>"), (200, {"tasks": ["odd"]})]
        for other in others:
            self.assertEqual(verb(other), "fail", other)


class Held(FinisherTest):
    def test_a_task_is_held_until_its_outcome_is_answered(self) -> None:
        """Its lease was not extended any more when its delay was over: it ran out while the outcome was repeated."""
        waited, acked = self.task(1), self.task(2)
        held: List[List[bool]] = []
        back = threading.Event()

        def answer(parts: Parts) -> Any:
            held.append([task in finisher.held for task in (waited, acked)])
            if not back.is_set():
                raise errors.UnreachableError("away")
            return all_done(parts)

        finisher, transport = self.finisher(answer, kind="utube")
        self.addCleanup(back.set)
        finisher.add(waited, execution.failure(waited, "no", 10.0))
        wait_until(lambda: len(finisher._waiting) == 1, "the failure waits")
        self.now += 11.0
        # Its thread looks at the time again.
        finisher.add(acked, execution.ack(acked))
        wait_until(lambda: len(transport.sent) >= 3, "both are repeated")
        self.assertEqual(held[:3], [[True, True]] * 3)
        back.set()
        wait_until(lambda: not finisher.held, "both are answered")
        self.assertTrue(finisher.stop(PATIENCE))

    def test_a_task_whose_outcome_is_dropped_is_not_held(self) -> None:
        answers: List[Any] = [refusal(400, "invalid"), refusal(404, "tube_not_found"), KeyError("bug"), refusal(403, "forbidden")]

        def answer(parts: Parts) -> Any:
            next = answers.pop(0)
            if isinstance(next, Exception):
                raise next
            return next

        finisher, _ = self.finisher(answer)
        for id in range(4):
            # The lease of the last one is over.
            task = self.task(id, lease=60.0 if id < 3 else 0.0)
            finisher.add(task, execution.ack(task))
            wait_until(lambda: not finisher.held, "it is dropped")
        self.assertEqual(answers, [])

    def test_a_stop_sends_all_outcomes_that_wait(self) -> None:
        finisher, transport = self.finisher(all_done, kind="utube")
        for id in range(100):
            task = self.task(id)
            finisher.add(task, execution.failure(task, "no", 3600.0))
        wait_until(lambda: len(finisher._waiting) == 100, "all wait")
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual(sorted(part["id"] for part in sum(transport.sent, [])), list(range(100)))
        self.assertEqual((finisher.held, finisher._waiting), ({}, []))

    def test_a_stop_sends_outcomes_that_come_while_it_sends(self) -> None:
        """The thread ended when nothing was left of what came before the stop."""
        late = [self.task(id) for id in (2, 3)]

        def answer(parts: Parts) -> Any:
            # A function ends in this moment.
            if finisher._ended and late:
                task = late.pop()
                finisher.add(task, execution.failure(task, "no", 3600.0))
            return all_done(parts)

        finisher, transport = self.finisher(answer, kind="utube")
        task = self.task(1)
        finisher.add(task, execution.failure(task, "no", 3600.0))
        self.assertTrue(finisher.stop(PATIENCE))
        self.assertEqual([part["id"] for part in sum(transport.sent, [])], [1, 3, 2])
        self.assertEqual(finisher.held, {})

    def test_an_outcome_that_comes_after_the_end_is_reported(self) -> None:
        finisher, transport = self.finisher(all_done)
        self.assertTrue(finisher.stop(PATIENCE))
        with self.assertLogs("taskyard.worker", "ERROR") as logs:
            finisher.add(self.task(1), execution.ack(self.task(1)))
        self.assertEqual((len(logs.records), finisher.held, transport.sent), (1, {}, []))

    def test_a_stop_that_gives_up_holds_nothing(self) -> None:
        def away(parts: Parts) -> Any:
            self.now += 1.0
            raise errors.UnreachableError("away")

        finisher, _ = self.finisher(away, kind="utube")
        tasks = [self.task(id, lease=3600.0, is_other=id % 2 == 1) for id in range(20)]
        for task in tasks:
            finisher.add(task, execution.failure(task, "no", 3600.0))
        tasks[0].cancel(CancelReason.LOST)
        self.assertFalse(finisher.stop(30.0))
        wait_until(lambda: not finisher.held, "all are dropped")
        finisher.join(time.monotonic() + PATIENCE)
        self.assertFalse(finisher._thread.is_alive())


class OutcomesAway(HttpTransport):
    """Does not reach the server with outcomes until the test lets it; leases are extended all the time."""

    def __init__(self, server: ServerUrl) -> None:
        super().__init__(server)
        self.back = threading.Event()
        self.lost = 0

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        if target.endswith("/finish") and b'"touch"' not in (body or b"") and not self.back.is_set():
            self.lost += 1
            raise errors.UnreachableError("away")
        return super().exchange(method, target, body, wait)


class Leases(ServerTest):
    def test_the_lease_of_a_task_is_extended_until_its_outcome_is_answered(self) -> None:
        app = App(self.server.url)
        self.addCleanup(app.client.close)
        ran: List[int] = []

        @app.task(self.tube, raw=True)
        def work(number: int) -> None:
            ran.append(number)
            if number == 1:
                raise ValueError("no")

        self.client.put_many(self.tube, [0, 1])
        away = OutcomesAway(self.client._server)
        worker = app.worker(concurrency=2, lease=3600.0)
        own = taskyard.Client(self.server.url, repeat_for=0, transport=away)
        worker._own_client = lambda timeout: own  # type: ignore[method-assign]
        worker.start()
        self.addCleanup(worker.stop, 0)
        self.addCleanup(away.back.set)
        wait_until(lambda: away.lost >= 2, "the outcomes are repeated")
        for _ in range(4):
            extend_leases(worker, self.leases)
        away.back.set()
        wait_until(lambda: self.client.tube(self.tube)["tasks"]["taken"] == 0, "the outcomes arrive")
        self.assertTrue(worker.stop())
        self.assertEqual((ran.count(0), self.client.peek(self.tube, [0])), (1, []))
        # No lease expired.
        failures = self.client.task(self.tube, 1).failures
        self.assertTrue(all(failure["error"].startswith("ValueError: no") for failure in failures), failures)

    def leases(self) -> List[float]:
        return [float(task.fields.get("lease_until", 0.0)) for task in self.client.peek(self.tube, [0, 1])]
