"""Sends what became of tasks: the outcomes of a moment travel in one request."""

from __future__ import annotations

import heapq
import json
import logging
import threading
import time
from queue import Empty, SimpleQueue
from typing import Dict, List, Optional, Tuple

from . import calls
from .client import Client
from .errors import (
    InvalidRequestError,
    OutcomeUnknownError,
    RefusedError,
    TaskyardError,
    TooLargeError,
    UnavailableError,
)
from .execution import Outcome, ack, fields_of
from .running_task import CancelReason, RunningTask

#: The largest number of outcomes in one request.
BATCH_MAX = 5000
#: The pauses between repeated requests, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.1, 5.0
#: For how long it is remembered whether a tube has delays, in seconds.
KIND_SECONDS = 60.0
#: The longest delay before another attempt in tubes without a retry policy, in seconds.
DELAY_MAX = 3600.0
#: So many outcomes wait here at most because their tubes have no delays; others are sent without a delay.
WAITING_MAX = 10_000

log = logging.getLogger("taskyard.worker")

#: A task and what becomes of it.
Finished = Tuple[RunningTask, Outcome]


class Finisher:
    """A thread that sends outcomes, and repeats each request until it is answered or the worker has stopped."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue: SimpleQueue[Optional[Finished]] = SimpleQueue()
        #: Whether the server can delay tasks of a tube, and when that was read.
        self._delays: Dict[str, Tuple[bool, float]] = {}
        #: Outcomes whose delay passes here, because the server has none for their tubes: the earliest first.
        self._waiting: List[Tuple[float, int, Finished]] = []
        #: The tasks of these, whose leases have to be extended.
        self.held: Dict[RunningTask, None] = {}
        self._ended = False
        self._unsent = 0
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskyard-finish", daemon=True)
        self._thread.start()

    def add(self, task: RunningTask, outcome: Outcome) -> None:
        """Adds an outcome."""
        self._queue.put((task, outcome))

    def stop(self, seconds: float) -> bool:
        """Sends what is left, for at most so many seconds, and returns whether all was sent."""
        self._queue.put(None)
        self._thread.join(seconds)
        self._hurry.set()
        return not self._thread.is_alive() and not self._unsent

    def _run(self) -> None:
        while not self._ended:
            batches: Dict[str, List[Finished]] = {}
            for item in self._next():
                batches.setdefault(item[0].tube, []).append(item)
            for tube, batch in batches.items():
                try:
                    self._send(tube, batch)
                except Exception:  # The thread must go on: without it no task ends.
                    self._unsent += len(batch)
                    log.exception("%d outcomes of tube %s were not sent", len(batch), tube)

    def _next(self) -> List[Finished]:
        """Waits for outcomes, and returns those to send now."""
        received: List[Optional[Finished]] = []
        seconds = max(self._waiting[0][0] - time.monotonic(), 0.0) if self._waiting else None
        try:
            received.append(self._queue.get(timeout=seconds))
            while len(received) < BATCH_MAX:
                received.append(self._queue.get_nowait())
        except Empty:
            pass
        items = [item for item in received if item is not None]
        self._ended = len(items) < len(received)
        return [*self._due(), *filter(None, map(self._delayed, items))]

    def _due(self) -> List[Finished]:
        """The outcomes whose delay has passed, or all of them at the end; tasks that were lost meanwhile have none."""
        now, due = time.monotonic(), []
        while self._waiting and (self._ended or self._waiting[0][0] <= now):
            item = heapq.heappop(self._waiting)[2]
            self.held.pop(item[0], None)
            if item[0].cancel_reason is not CancelReason.LOST:
                due.append(item)
        return due

    def _delayed(self, item: Finished) -> Optional[Finished]:
        """Sets the delay before the next attempt; none if the outcome waits here for it."""
        task, outcome = item
        if isinstance(outcome, str) or outcome["verb"] not in ("fail", "release") or outcome.get("delay") == 0:
            return item
        delay = outcome.get("delay")
        if delay is None:
            # The retry policy of the tube is used instead if it has one.
            delay = growing_delay(task.attempt)
            item = task, {**outcome, "default_delay": delay}
        if self._has_delays(task.tube) or self._ended or len(self._waiting) >= WAITING_MAX:
            return item
        self.held[task] = None
        heapq.heappush(self._waiting, (time.monotonic() + delay, id(task), item))
        return None

    def _has_delays(self, tube: str) -> bool:
        """Whether the server can delay tasks of a tube; as known last if it does not answer."""
        known, read = self._delays.get(tube, (True, -KIND_SECONDS))
        if time.monotonic() - read >= KIND_SECONDS:
            try:
                known, read = str(self._client.tube(tube).get("kind")).endswith("ttl"), time.monotonic()
            except TaskyardError as error:
                log.warning("the kind of tube %s cannot be read: %s", tube, error)
                read = time.monotonic() - KIND_SECONDS + PAUSE_MAX
            self._delays[tube] = (known, read)
        return known

    def _send(self, tube: str, batch: List[Finished]) -> None:
        """Sends outcomes until the server answers or the worker has stopped."""
        pause, unknown = PAUSE_MIN, False
        while True:
            try:
                outcomes = self._client._send(_call(tube, batch))
                return _check(batch, outcomes, unknown)
            except TaskyardError as error:
                if isinstance(error, RefusedError) and _is_final(error):
                    return self._refused(tube, batch, error)
                unknown = unknown or isinstance(error, OutcomeUnknownError)
                if self._hurry.is_set():
                    self._unsent += len(batch)
                    log.error("%d outcomes of tube %s were not sent: %s", len(batch), tube, error)
                    return
                log.warning("outcomes of tube %s are sent again: %s", tube, error)
            self._hurry.wait(pause)
            pause = min(2 * pause, PAUSE_MAX)

    def _refused(self, tube: str, batch: List[Finished], error: RefusedError) -> None:
        """Finds the outcome that the server refuses, by halves; an ack is sent without its result."""
        if not isinstance(error, (InvalidRequestError, TooLargeError)):
            log.error("%d outcomes of tube %s were refused: %s", len(batch), tube, error)
            return
        if len(batch) > 1:
            half = len(batch) // 2
            self._send(tube, batch[:half])
            self._send(tube, batch[half:])
            return
        task, outcome = batch[0]
        log.error("the outcome of the task was refused: %s", error, extra=fields_of(task))
        if isinstance(outcome, str) and outcome != ack(task):
            self._send(tube, [(task, ack(task))])


def _call(tube: str, batch: List[Finished]) -> calls.Call[List[str]]:
    body = f'{{"tasks":[{",".join(_encoded(task, outcome) for task, outcome in batch)}]}}'.encode()
    return calls.Call("POST", calls.tube_target(tube, "finish"), body, lambda answer: list(answer["outcomes"]))


def _encoded(task: RunningTask, outcome: Outcome) -> str:
    if isinstance(outcome, str):
        return outcome
    try:
        return json.dumps(outcome, allow_nan=False)
    except (TypeError, ValueError) as error:
        # One outcome must not keep the others of its request from the server.
        log.error("the outcome of the task cannot be sent: %s", error, extra=fields_of(task))
        return json.dumps({"verb": "fail", "id": task.id, "lease": task.lease, "error": str(error)})


def _check(batch: List[Finished], outcomes: List[str], unknown: bool) -> None:
    """Reports deliveries that had ended before."""
    now = time.monotonic()
    for (task, _), outcome in zip(batch, outcomes):
        # After a lost answer a delivery has ended by the first request, unless its lease ran out meanwhile.
        if outcome != "done" and not (unknown and task.deadline > now):
            log.warning("the task ended before its outcome was sent", extra=fields_of(task))


def _is_final(error: RefusedError) -> bool:
    """Whether the same request would be refused again."""
    return not isinstance(error, UnavailableError) and (400 <= error.status < 500 or error.status == 501)


def growing_delay(attempt: int) -> float:
    """The delay after a failed attempt in tubes without a retry policy: 1, 2, 4 seconds and so on up to an hour."""
    return min(2.0 ** min(attempt - 1, 20), DELAY_MAX)
