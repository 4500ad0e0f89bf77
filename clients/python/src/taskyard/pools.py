"""Runs task functions: in threads, or on an event loop if they are asynchronous."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from functools import partial
from queue import SimpleQueue
from typing import Callable, Deque, Dict, Iterable, List, Optional

from . import execution
from .errors import Cancelled
from .execution import Outcome
from .running_task import RunningTask

#: Tasks are taken ahead that the pool is expected to begin within this time, in seconds.
PREFETCH_SECONDS = 0.05
#: At most so many are taken ahead.
PREFETCH_MAX = 1000
#: The shortest run time that is distinguished, in seconds.
RUN_SECONDS_MIN = 1e-6
#: A thread is expected to run tasks for about so long before another one is woken, in seconds.
BURST_SECONDS = 0.002

#: What a dictionary without the task answers.
_ABSENT = object()

#: Receives what becomes of a task.
Settle = Callable[[RunningTask, Outcome], None]


class Pool:
    """The tasks that wait for a function or run, and how many of them there may be."""

    def __init__(self, concurrency: int, settle: Settle) -> None:
        self.concurrency = concurrency
        self._settle = settle
        #: All tasks in the pool. Only the methods of built-in types change these, which are atomic.
        self.held: Dict[RunningTask, None] = {}
        #: Those that have not begun. The one that removes a task from here runs it or gives it back.
        self.queued: Dict[RunningTask, None] = {}
        #: About the median of the run times of functions, in seconds; unknown at first.
        self._run_seconds: Optional[float] = None
        self._space = threading.Event()
        self._taker_waits = False

    def submit(self, tasks: List[RunningTask]) -> None:
        """Adds tasks."""
        added = dict.fromkeys(tasks)
        self.held.update(added)
        self.queued.update(added)
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
            ahead = min(int(self.concurrency * PREFETCH_SECONDS / seconds), PREFETCH_MAX)
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
            if self.queued.pop(task, _ABSENT) is None:
                self._end(task, execution.give_back(task))

    def give_back_waiting(self, tasks: List[RunningTask]) -> None:
        """The same for tasks that were taken ahead and wait for too long: from now on fewer are taken ahead."""
        if tasks:
            self._run_seconds = max(self._run_seconds or 0.0, 1.0)
            self.give_back(tasks)

    def _end(self, task: RunningTask, outcome: Outcome) -> None:
        self.held.pop(task, None)
        if task.claim():
            self._settle(task, outcome)
        if self._taker_waits and self.space():
            self._space.set()

    def _measure(self, ran: float) -> None:
        # A few long ones, such as those in which other threads had the interpreter, change it little.
        known = self._run_seconds
        if known is None:
            self._run_seconds = max(ran, RUN_SECONDS_MIN)
        else:
            self._run_seconds = known * 1.1 if ran > known else max(known / 1.1, RUN_SECONDS_MIN)


class ThreadPool(Pool):
    """Runs functions in threads.

    Threads that wake compete for the interpreter. So if functions are short, only as many threads are woken as the tasks need,
    and more if the tasks do not begin soon.
    """

    def __init__(self, concurrency: int, settle: Settle) -> None:
        super().__init__(concurrency, settle)
        self._tasks: Deque[RunningTask] = deque()
        #: An entry wakes one thread: True to run tasks, False to end.
        self._wakes: SimpleQueue[bool] = SimpleQueue()
        #: The threads that are awake.
        self._awake: Dict[int, None] = {}
        self._has_tasks = threading.Event()
        self._stopped = False
        threading.Thread(target=self._watch, name="taskyard-watch", daemon=True).start()
        for number in range(concurrency):
            threading.Thread(target=self._work, name=f"taskyard-task-{number}", daemon=True).start()

    def _start(self, tasks: List[RunningTask]) -> None:
        self._tasks.extend(tasks)
        needed = len(tasks)
        seconds = self._run_seconds
        if seconds is not None:
            needed = min(needed, int(len(self._tasks) * seconds / BURST_SECONDS) + 1)
        self._wake(needed)
        if needed < len(tasks):
            self._has_tasks.set()

    def _wake(self, threads: int) -> None:
        asleep = self.concurrency - len(self._awake) - self._wakes.qsize()
        for _ in range(min(threads, asleep)):
            self._wakes.put(True)

    def _watch(self) -> None:
        """Wakes more threads while tasks wait for longer than was expected."""
        while not self._stopped:
            self._has_tasks.wait()
            self._has_tasks.clear()
            threads = 1
            while self._tasks and not self._stopped:
                time.sleep(2 * BURST_SECONDS)
                self._wake(threads)
                threads *= 2

    def stop(self) -> None:
        self._stopped = True
        self._has_tasks.set()
        for _ in range(self.concurrency):
            self._wakes.put(False)

    def _work(self) -> None:
        thread = threading.get_ident()
        task = None
        while True:
            try:
                if task is None:
                    self._awake.pop(thread, None)
                    # Tasks that came before that woke no thread if all were awake.
                    if not self._tasks and not self._wakes.get():
                        return
                    self._awake[thread] = None
                while True:
                    task = self._tasks.popleft()
                    if self.queued.pop(task, _ABSENT) is None:
                        self._run(task, thread)
                    # Otherwise it was given back.
            except IndexError:
                task = None
            except Cancelled:
                # It may come late, when the next task runs: that one is given back.
                if task is not None:
                    self._cancelled(task)

    def _run(self, task: RunningTask, thread: int) -> None:
        began = task.began = time.monotonic()
        task.thread = thread
        outcome = execution.run(task)
        task.thread = None
        self._measure(time.monotonic() - began)
        self._end(task, outcome)

    def _cancelled(self, task: RunningTask) -> None:
        task.thread = None
        self.queued.pop(task, None)
        if task in self.held:
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
            if self.queued.pop(task, _ABSENT) is not None:
                continue  # Given back.
            self._running += 1
            task.began = time.monotonic()
            task.future = self._loop.create_task(execution.run_async(task))
            task.future.add_done_callback(partial(self._done, task))

    def _done(self, task: RunningTask, future: asyncio.Task[Outcome]) -> None:
        self._running -= 1
        task.future = None
        self._measure(time.monotonic() - task.began)
        self._end(task, execution.cancelled(task) if future.cancelled() else future.result())
        self._fill()
