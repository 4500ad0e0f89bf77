"""The pools of a worker without a server."""

from __future__ import annotations

import threading
import time
import unittest
from typing import Any, Dict, List

from taskyard import App, Cancelled, RunningTask
from taskyard.execution import Outcome
from taskyard.pools import PREFETCH_MAX, ThreadPool
from taskyard.running_task import CancelReason, raise_in_thread
from tests.fixture import PATIENCE, wait_until


class ThreadPools(unittest.TestCase):
    def setUp(self) -> None:
        self.app = App("http://127.0.0.1:1")
        self.settled: Dict[int, Outcome] = {}
        self.change = threading.Condition()

    def settle(self, task: RunningTask, outcome: Outcome) -> None:
        with self.change:
            self.settled[task.id] = outcome
            self.change.notify_all()

    def wait_for(self, count: int) -> None:
        with self.change:
            done = self.change.wait_for(lambda: len(self.settled) >= count, PATIENCE)
        self.assertTrue(done, f"{len(self.settled)} of {count} tasks ended")

    def pool(self, concurrency: int) -> ThreadPool:
        pool = ThreadPool(concurrency, self.settle)
        self.addCleanup(pool.stop)
        return pool

    def tasks(self, function: Any, count: int, first: int = 0) -> List[RunningTask]:
        made = self.app.functions.get("work") or self.app.task("work", raw=True)(function)
        fields = [{"id": id, "lease": id, "attempts": 0, "state": "taken", "data": id} for id in range(first, first + count)]
        return [RunningTask(made, task, time.monotonic() + 60) for task in fields]

    def test_a_task_that_comes_while_the_last_thread_goes_to_sleep_runs(self) -> None:
        """The thread was counted as awake, so it was not woken; and it slept although a task was there."""
        pool = self.pool(1)
        first, second = self.tasks(lambda id: None, 2)

        class Awake(Dict[int, None]):
            def pop(self, *args: Any) -> Any:  # type: ignore[override]
                if not second.began and first.began and second not in pool.held:
                    pool.submit([second])
                return super().pop(*args)

        pool._awake = Awake(pool._awake)
        pool.submit([first])
        self.wait_for(2)

    def test_slow_tasks_after_short_ones_run_together(self) -> None:
        pool = self.pool(8)
        barrier = threading.Barrier(8)
        pool.submit(self.tasks(lambda id: None if id < 500 else barrier.wait(PATIENCE) and None, 500))
        self.wait_for(500)
        # Few threads are woken for short tasks; these end only if all threads run.
        pool.submit(self.tasks(None, 8, 500))
        self.wait_for(508)
        self.assertTrue(all("ack" in str(outcome) for outcome in self.settled.values()), self.settled)

    def test_more_is_taken_ahead_if_functions_are_short(self) -> None:
        pool = self.pool(4)
        self.assertEqual(pool.space(), 4)
        pool.submit(self.tasks(lambda id: None, 500))
        self.wait_for(500)
        wait_until(lambda: not pool.held, "the pool is empty")
        self.assertGreater(pool.space(), 100)
        self.assertLessEqual(pool.space(), 4 + PREFETCH_MAX)
        pool.give_back_waiting(self.tasks(None, 1, 500))
        self.assertEqual(pool.space(), 4)

    def test_a_cancellation_that_comes_late_gives_the_next_task_back(self) -> None:
        pool = self.pool(1)
        begun = threading.Event()

        def run(id: int) -> None:
            begun.set()
            while id == 1:
                time.sleep(0.001)

        first, second, third = self.tasks(run, 3)
        pool.submit([first])
        self.wait_for(1)
        begun.clear()
        pool.submit([second])
        self.assertTrue(begun.wait(PATIENCE))
        # It was meant for the first task, whose function had ended by then.
        assert second.thread is not None
        raise_in_thread(second.thread)
        self.wait_for(2)
        pool.submit([third])
        self.wait_for(3)
        self.assertIn("ack", str(self.settled[0]))
        self.assertEqual(self.settled[1]["counted"], False)  # type: ignore[index]
        self.assertIn("ack", str(self.settled[2]))

    def test_a_cancelled_function_gives_its_task_back(self) -> None:
        pool = self.pool(1)
        begun = threading.Event()

        def run(id: int) -> None:
            begun.set()
            while id == 0:
                time.sleep(0.001)

        first, second = self.tasks(run, 2)
        pool.submit([first])
        self.assertTrue(begun.wait(PATIENCE))
        first.cancel(CancelReason.STOPPING)
        self.wait_for(1)
        pool.submit([second])
        self.wait_for(2)
        self.assertEqual(self.settled[0]["counted"], False)  # type: ignore[index]
        self.assertIn("ack", str(self.settled[1]))

    def test_tasks_whose_lease_has_ended_or_that_were_cancelled_do_not_begin(self) -> None:
        """A task that had waited for longer than its lease ran although another worker ran it already."""
        ran: List[int] = []
        pool = self.pool(1)
        late, cancelled, good = self.tasks(ran.append, 3)
        late.deadline = time.monotonic()
        cancelled.cancel(CancelReason.STOPPING)
        pool.submit([late, cancelled, good])
        wait_until(lambda: not pool.held, "the pool is empty")
        self.assertEqual(ran, [2])
        self.assertEqual(sorted(self.settled), [1, 2])
        self.assertEqual(self.settled[1]["counted"], False)  # type: ignore[index]

    def test_an_exception_of_the_worker_itself_costs_no_thread(self) -> None:
        """An IndexError was taken for the end of the queue, and a KeyError ended the thread."""
        pool = self.pool(1)
        tasks = self.tasks(lambda id: None, 4)
        errors: List[Exception] = [IndexError("one"), KeyError("two"), RuntimeError("three")]

        def run(task: RunningTask, thread: int) -> None:
            if errors:
                raise errors.pop(0)
            ThreadPool._run(pool, task, thread)

        pool._run = run  # type: ignore[method-assign]
        pool.submit(tasks)
        self.wait_for(4)
        self.assertEqual([self.settled[id]["verb"] for id in range(3)], ["fail"] * 3)  # type: ignore[index]
        self.assertIn("ack", str(self.settled[3]))
        self.assertFalse(pool.held)

    def test_threads_are_woken_until_all_are_awake(self) -> None:
        """While a task waited, every 4 ms twice as many threads were woken as before, without end."""
        pool = self.pool(3)
        woken: List[int] = []
        pool._wake = woken.append  # type: ignore[method-assign]
        pool._run_seconds = 1e-6
        tasks = self.tasks(lambda id: None, 4)
        first, second = tasks[:2], tasks[2:]
        for some in (first, second):
            before = len(woken)
            pool.submit(some)
            wait_until(lambda: len(woken) == before + 4, "threads were woken")
        self.assertEqual(woken, [1, 1, 2, 3] * 2)
        pool.give_back(tasks)
        self.assertEqual((len(pool._order), len(pool.held)), (0, 0))

    def test_a_function_cannot_swallow_the_cancellation_by_accident(self) -> None:
        self.assertFalse(issubclass(Cancelled, Exception))
