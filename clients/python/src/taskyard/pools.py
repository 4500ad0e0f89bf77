"""Runs task functions: in threads, or on an event loop if they are asynchronous."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import Any, Callable, Deque, Dict, Iterable, List, Optional

from . import execution
from .errors import Cancelled
from .execution import Outcome
from .running_task import RunningTask

#: Tasks are taken ahead that the pool is expected to begin within this time, in seconds.
PREFETCH_SECONDS = 0.05
#: At most so many are taken ahead.
PREFETCH_MAX = 1000

#: Receives what becomes of a task.
Settle = Callable[[RunningTask, Outcome], None]


class Pool:
    """The tasks that wait for a function or run, and how many of them there may be."""

    def __init__(self, concurrency: int, settle: Settle) -> None:
        self.concurrency = concurrency
        self._settle = settle
        #: All tasks in the pool. Only the methods of built-in types change these, which are atomic.
        self.held: Dict[Any, RunningTask] = {}
        #: Those that have not begun. The one that removes a task from here runs it or gives it back.
        self.queued: Dict[Any, RunningTask] = {}
        #: The mean run time of functions, in seconds; unknown at first.
        self._run_seconds: Optional[float] = None
        self._space = threading.Event()
        self._taker_waits = False

    def submit(self, tasks: List[RunningTask]) -> None:
        """Adds tasks."""
        for task in tasks:
            self.held[task.key] = task
            self.queued[task.key] = task
        self._start(tasks)

    def _start(self, tasks: List[RunningTask]) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the pool; functions that still run are abandoned."""
        raise NotImplementedError

    def space(self) -> int:
        """How many tasks to take now; 0 while too few would fit."""
        seconds = self._run_seconds
        ahead = 0
        if seconds is not None:
            ahead = min(int(self.concurrency * PREFETCH_SECONDS / max(seconds, 1e-6)), PREFETCH_MAX)
        free = self.concurrency + ahead - len(self.held)
        return free if free > ahead // 2 else 0

    def wait_for_space(self, seconds: float) -> int:
        """Waits until tasks can be taken, at most so long, and returns how many."""
        self._space.clear()
        self._taker_waits = True
        try:
            space = self.space()
            if not space:
                self._space.wait(seconds)
                space = self.space()
            return space
        finally:
            self._taker_waits = False

    def wake(self) -> None:
        """Wakes a waiting taker."""
        self._space.set()

    def give_back(self, tasks: Iterable[RunningTask]) -> None:
        """Returns those of these tasks that have not begun."""
        for task in tasks:
            if self.queued.pop(task.key, None) is not None:
                self._end(task, execution.give_back(task))

    def _end(self, task: RunningTask, outcome: Outcome) -> None:
        self.held.pop(task.key, None)
        if task.claim():
            self._settle(task, outcome)
        if self._taker_waits and self.space():
            self._space.set()

    def _measure(self, task: RunningTask) -> None:
        ran = time.monotonic() - task.began
        before = self._run_seconds
        self._run_seconds = ran if before is None else before + (ran - before) * 0.05


class ThreadPool(Pool):
    """Runs functions in threads."""

    def __init__(self, concurrency: int, settle: Settle) -> None:
        super().__init__(concurrency, settle)
        self._queue: SimpleQueue[Optional[RunningTask]] = SimpleQueue()
        for number in range(concurrency):
            threading.Thread(target=self._work, name=f"taskyard-task-{number}", daemon=True).start()

    def _start(self, tasks: List[RunningTask]) -> None:
        for task in tasks:
            self._queue.put(task)

    def stop(self) -> None:
        for _ in range(self.concurrency):
            self._queue.put(None)

    def _work(self) -> None:
        thread = threading.get_ident()
        while True:
            task = None
            try:
                task = self._queue.get()
                if task is None:
                    return
                if self.queued.pop(task.key, None) is None:
                    continue  # Given back.
                task.began = time.monotonic()
                task.thread = thread
                outcome = execution.run(task)
                task.thread = None
                self._measure(task)
                self._end(task, outcome)
            except Cancelled:
                # It may come late, when the next task runs: that one is given back.
                if task is not None:
                    self._cancelled(task)

    def _cancelled(self, task: RunningTask) -> None:
        task.thread = None
        if self.queued.pop(task.key, None) is not None or task.key in self.held:
            self._end(task, execution.cancelled(task))


class LoopPool(Pool):
    """Runs asynchronous functions on an event loop in a thread of its own."""

    def __init__(self, concurrency: int, settle: Settle) -> None:
        super().__init__(concurrency, settle)
        self._loop = asyncio.new_event_loop()
        self._waiting: Deque[RunningTask] = deque()
        self._running = 0
        self._thread = threading.Thread(target=self._loop.run_forever, name="taskyard-loop", daemon=True)
        self._thread.start()

    def _start(self, tasks: List[RunningTask]) -> None:
        self._loop.call_soon_threadsafe(self._add, tasks)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(1.0)
        if not self._thread.is_alive():
            self._loop.close()

    def _add(self, tasks: List[RunningTask]) -> None:
        self._waiting.extend(tasks)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._running < self.concurrency:
            task = self._waiting.popleft()
            if self.queued.pop(task.key, None) is None:
                continue  # Given back.
            self._running += 1
            task.began = time.monotonic()
            task.future = self._loop.create_task(execution.run_async(task))
            task.future.add_done_callback(partial(self._done, task))

    def _done(self, task: RunningTask, future: asyncio.Task[Outcome]) -> None:
        self._running -= 1
        task.future = None
        self._measure(task)
        self._end(task, execution.cancelled(task) if future.cancelled() else future.result())
        self._fill()
