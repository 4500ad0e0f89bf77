"""Runs task functions: in threads, or on an event loop if they are asynchronous."""

from __future__ import annotations

import asyncio
import logging
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

log = logging.getLogger("taskyard.worker")

#: What a dictionary without the task answers.
_ABSENT = object()

#: Receives what becomes of a task.
Finish = Callable[[RunningTask, Outcome], None]


class Pool:
    """The tasks that wait for a function or run, and how many of them there may be."""

    def __init__(self, concurrency: int, finish: Finish) -> None:
        self.concurrency = concurrency
        self._finish = finish
        #: All tasks in the pool. Only the methods of built-in types change these, which are atomic.
        self.held: Dict[RunningTask, None] = {}
        #: Those that have not begun. The one that removes a task from here runs it or gives it back.
        self.queued: Dict[RunningTask, None] = {}
        #: The order in which these begin.
        self._order: Deque[RunningTask] = deque()
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
                self._forget(task)
                self._end(task, execution.give_back(task))

    def _forget(self, task: RunningTask) -> None:
        try:
            self._order.remove(task)
        except (ValueError, IndexError):
            pass  # A thread has it already or comes to it, and leaves it.

    def give_back_waiting(self, tasks: List[RunningTask]) -> None:
        """The same for tasks that were taken ahead and wait for too long: from now on fewer are taken ahead."""
        if tasks:
            self._run_seconds = max(self._run_seconds or 0.0, 1.0)
            self.give_back(tasks)

    def _may_begin(self, task: RunningTask) -> bool:
        """Whether a task that was taken from the queue may run: not if it was cancelled or its lease has ended."""
        if task.deadline <= time.monotonic():
            if task.claim():
                log.warning("the lease of the task ended before the task began", extra=execution.fields_of(task))
        elif task.cancel_reason is None:
            return True
        self._end(task, execution.cancelled(task))
        return False

    def _end(self, task: RunningTask, outcome: Outcome) -> None:
        task.thread = None
        self.held.pop(task, None)
        if task.claim():
            self._finish(task, outcome)
        if self._taker_waits and self.space():
            self._space.set()

    def _ran(self, task: RunningTask, outcome: Outcome) -> None:
        """Notes how long the function of a task ran."""
        ran = time.monotonic() - task.began
        # An outcome that is encoded already is an ack.
        if isinstance(outcome, str) and log.isEnabledFor(logging.DEBUG):
            log.debug("task done", extra={**execution.fields_of(task), "seconds": round(ran, 6)})
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

    def __init__(self, concurrency: int, finish: Finish) -> None:
        super().__init__(concurrency, finish)
        #: The task that each thread has.
        self._current: Dict[int, RunningTask] = {}
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
        self._order.extend(tasks)
        needed = len(tasks)
        seconds = self._run_seconds
        if seconds is not None:
            needed = min(needed, int(len(self._order) * seconds / BURST_SECONDS) + 1)
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
            while self.queued and not self._stopped:
                time.sleep(2 * BURST_SECONDS)
                self._wake(threads)
                if threads == self.concurrency:
                    break  # All are awake, and none sleeps while a task waits.
                threads = min(2 * threads, self.concurrency)

    def stop(self) -> None:
        self._stopped = True
        self._has_tasks.set()
        for _ in range(self.concurrency):
            self._wakes.put(False)

    def _work(self) -> None:
        thread = threading.get_ident()
        while not self._stopped:
            try:
                self._give_up(thread)
                while self._work_one(thread):
                    pass
                return
            except Cancelled:
                continue  # It may come late, when the next task runs: that one is given back.
            except Exception as error:  # The thread must go on: without it the pool is smaller.
                log.exception("a task could not be run")
                self._broken(thread, error)

    def _work_one(self, thread: int) -> bool:
        """Runs the next task, or waits until there is one; returns whether to go on."""
        try:
            task = self._order.popleft()
        except IndexError:
            self._awake.pop(thread, None)
            # Tasks that came before that woke no thread if all were awake.
            if not self._order and not self._wakes.get():
                return False
            self._awake[thread] = None
            return True
        self._current[thread] = task
        if self.queued.pop(task, _ABSENT) is None:
            self._run(task, thread)
        # Otherwise it was given back.
        del self._current[thread]
        return True

    def _run(self, task: RunningTask, thread: int) -> None:
        task.began = time.monotonic()
        task.thread = thread
        if self._may_begin(task):
            outcome = execution.run(task)
            task.thread = None
            self._ran(task, outcome)
            self._end(task, outcome)

    def _give_up(self, thread: int) -> None:
        """Ends the task that a cancellation interrupted."""
        task = self._current.get(thread)
        if task is not None:
            self.queued.pop(task, None)
            if task in self.held:
                self._end(task, execution.cancelled(task))
            self._current.pop(thread, None)

    def _broken(self, thread: int, error: Exception) -> None:
        task = self._current.pop(thread, None)
        if task is not None:
            self._end(task, execution.failed(task, error))


class LoopPool(Pool):
    """Runs asynchronous functions on an event loop in a thread of its own."""

    def __init__(self, concurrency: int, finish: Finish) -> None:
        super().__init__(concurrency, finish)
        self._loop = asyncio.new_event_loop()
        self._running = 0
        self._thread = threading.Thread(target=self._run_loop, name="taskyard-loop", daemon=True)
        self._thread.start()

    def _run_loop(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            # In this thread, which a function may keep from its end for as long as it blocks.
            self._loop.close()

    def _start(self, tasks: List[RunningTask]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._add, tasks)
        except RuntimeError:
            # The loop is closed: the answer to the last take came after the stop.
            self.give_back(tasks)

    def stop(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._loop.stop)
        except RuntimeError:
            return  # The loop is closed already.
        self._thread.join(1.0)

    def _add(self, tasks: List[RunningTask]) -> None:
        self._order.extend(tasks)
        self._fill()

    def _fill(self) -> None:
        while self._running < self.concurrency:
            try:
                task = self._order.popleft()
            except IndexError:
                return
            # Otherwise it was given back, or must not run any more.
            if self.queued.pop(task, _ABSENT) is None and self._may_begin(task):
                self._begin(task)

    def _begin(self, task: RunningTask) -> None:
        self._running += 1
        task.began = time.monotonic()
        task.future = self._loop.create_task(execution.run_async(task))
        task.future.add_done_callback(partial(self._done, task))

    def _done(self, task: RunningTask, future: asyncio.Task[Outcome]) -> None:
        self._running -= 1
        task.future = None
        outcome = execution.cancelled(task) if future.cancelled() else future.result()
        self._ran(task, outcome)
        self._end(task, outcome)
        self._fill()
