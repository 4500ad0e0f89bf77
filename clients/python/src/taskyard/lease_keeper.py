"""Extends the leases of held tasks, and cancels functions whose task was lost or whose time is over."""

from __future__ import annotations

import logging
import threading
import time
from typing import Dict, List, Sequence, Union

from .client import Client
from .errors import OutcomeUnknownError, TaskyardError, TubeNotFoundError, is_too_large
from .execution import fields_of
from .finisher import Finisher
from .pools import Pool
from .running_task import CancelReason, RunningTask
from .shapes import FinishPart

#: A task that was taken ahead and has not begun for so many seconds is given back, so that another worker can run it.
QUEUED_MAX = 1.0
#: The longest pause between two checks, in seconds.
TICK_MAX = 0.25
#: The pause after an extension that did not reach the server or was refused, in seconds.
RETRY_PAUSE = 1.0
#: The largest number of leases that one request extends.
BATCH_MAX = 5000

log = logging.getLogger("taskyard.worker")


class LeaseKeeper:
    """A thread that works while functions block, unless they hold the interpreter itself."""

    def __init__(self, client: Client, lease: float, pools: Sequence[Pool], finisher: Finisher) -> None:
        self._client, self._lease, self._pools = client, lease, pools
        #: What holds tasks: the pools, and the finisher until the outcomes are answered.
        self._holders: List[Union[Pool, Finisher]] = [*pools, finisher]
        self._stopped = threading.Event()
        self._not_before = 0.0
        self._thread = threading.Thread(target=self._run, name="taskyard-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Extends no more leases. A request in progress ends with the client."""
        self._stopped.set()

    def join(self, deadline: float) -> None:
        """Waits until the thread has ended, or until a time of the monotonic clock."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _run(self) -> None:
        while not self._stopped.wait(min(TICK_MAX, self._lease / 12)):
            try:
                self._check(time.monotonic())
            except Exception:  # The thread must go on: without it all leases end.
                log.exception("leases could not be checked")

    def _check(self, now: float) -> None:
        due: Dict[str, List[RunningTask]] = {}
        for pool in self._pools:
            pool.give_back_waiting([task for task in list(pool.queued) if now - task.taken > QUEUED_MAX])
            for task in list(pool.held):
                limit = task.function.time_limit
                if limit is not None and task.began and now - task.began > limit:
                    task.cancel(CancelReason.TIME_LIMIT)
        for task in [task for holder in self._holders for task in list(holder.held)]:
            if task.deadline <= now:
                self._lost(task, "its lease ended while the server was unreachable")
            elif task.deadline - now < self._lease * 2 / 3 and task.cancel_reason is not CancelReason.LOST:
                due.setdefault(task.tube, []).append(task)
        if now < self._not_before:
            return
        for tube, tasks in due.items():
            for start in range(0, len(tasks), BATCH_MAX):
                self._extend(tube, tasks[start : start + BATCH_MAX])

    def _extend(self, tube: str, tasks: List[RunningTask]) -> None:
        asked = time.monotonic()
        more = [asked + self._lease - task.deadline for task in tasks]
        parts: List[FinishPart] = [
            {"verb": "touch", "id": task.id, "lease": task.lease, "seconds": seconds}
            for task, seconds in zip(tasks, more)
        ]
        try:
            outcomes = self._client.finish(tube, parts)
        except TubeNotFoundError:
            outcomes = ["missing"] * len(tasks)
        except TaskyardError as error:
            if self._stopped.is_set():
                return
            if is_too_large(error) and len(tasks) > 1:
                half = len(tasks) // 2
                self._extend(tube, tasks[:half])
                return self._extend(tube, tasks[half:])
            if not isinstance(error, OutcomeUnknownError):
                self._not_before = time.monotonic() + min(RETRY_PAUSE, self._lease / 12)
            # Otherwise the time to wait for the answer was pause enough.
            log.warning("the leases of %d tasks of tube %s could not be extended: %s", len(tasks), tube, error)
            return
        for task, outcome in zip(tasks, outcomes):
            if outcome == "done":
                task.deadline = asked + self._lease
            elif any(task in holder.held for holder in self._holders):
                # Otherwise the function has ended meanwhile, and its outcome was first.
                self._lost(task, f"its delivery has ended ({outcome})")

    def _lost(self, task: RunningTask, why: str) -> None:
        if task.claim():
            log.warning("the task was lost: %s", why, extra=fields_of(task))
        task.cancel(CancelReason.LOST)
