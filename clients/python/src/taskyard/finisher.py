"""Sends what became of tasks: the outcomes of a moment travel in one request, which is repeated until it is answered."""

from __future__ import annotations

import heapq
import itertools
import json
import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import Callable, Deque, Dict, Iterable, List, Optional, Tuple

from . import calls
from .client import Client
from .errors import (
    OutcomeUnknownError,
    PayloadError,
    RefusedError,
    TaskyardError,
    TubeNotFoundError,
    UnavailableError,
    is_too_large,
)
from .execution import Outcome, ack, fields_of
from .running_task import CancelReason, RunningTask
from .tube_rules import RuleReader

#: The largest number of outcomes in one request.
BATCH_MAX = 5000
#: The pauses between repeated requests, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.1, 5.0
#: After how many attempts a task whose payload cannot be decoded is buried, if no `retries` and no `attempts_max` limit them.
UNDECODABLE_MAX = 10
#: The longest delay before another attempt in tubes without a retry policy, in seconds.
DELAY_MAX = 3600.0
#: So many outcomes that were not answered stop further takes.
UNANSWERED_MAX = 10_000
#: How long a stop waits before it looks at the time again, in seconds.
STOP_STEP = 0.1
#: So many outcomes wait here at most because their tubes have no delays; others are sent without a delay.
WAITING_MAX = 10_000
#: So many characters of an error are sent when a failure was too large.
SHORT_ERROR = 200

log = logging.getLogger("taskyard.worker")

#: A task and what becomes of it.
Finished = Tuple[RunningTask, Outcome]

#: The codes of refusals that are about the tasks of a request or their results: the same request would be refused again, as one
#: that is too large for a proxy. Others, such as a token that is replaced at the moment, are not.
ABOUT_TASKS = frozenset(("invalid", "too_large", "missing_feature", "unsupported", "tube_not_found", "task_not_found"))


class _Batch:
    """The outcomes of one request."""

    __slots__ = ("items", "is_unknown")

    def __init__(self, items: List[Finished], is_unknown: bool = False) -> None:
        self.items = items
        #: Whether an earlier request may have been executed.
        self.is_unknown = is_unknown


class _Unsent:
    """The outcomes of a tube that were not answered yet. Tubes do not wait for each other: one may be forbidden."""

    __slots__ = ("batches", "added", "pause", "not_before")

    def __init__(self) -> None:
        #: What was sent and has to be sent again, the first next.
        self.batches: Deque[_Batch] = deque()
        #: What was not sent yet.
        self.added: List[Finished] = []
        #: The next pause, in seconds; 0 before the first.
        self.pause = 0.0
        self.not_before = 0.0

    def size(self) -> int:
        """The number of outcomes."""
        return len(self.added) + sum(len(batch.items) for batch in list(self.batches))


class Finisher:
    """A thread that sends outcomes, and repeats each request until it is answered or the worker has stopped."""

    #: The pauses between repeated requests, in seconds.
    pause_min, pause_max = PAUSE_MIN, PAUSE_MAX

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._queue: SimpleQueue[Optional[Finished]] = SimpleQueue()
        self._tubes: Dict[str, _Unsent] = {}
        self._rules = RuleReader(client, clock)
        #: Outcomes whose delay passes here, because the server has none for their tubes: the earliest first.
        self._waiting: List[Tuple[float, int, Finished]] = []
        self._numbers = itertools.count()
        #: The tasks whose outcomes were not answered yet: their leases have to be extended.
        self.held: Dict[RunningTask, None] = {}
        #: Whether the worker stops.
        self._ended = False
        #: Whether nothing is sent any more.
        self._is_over = False
        self._unsent = 0
        #: When to give up what is left, once the worker stops.
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name="taskyard-finish", daemon=True)
        self._thread.start()

    def add(self, task: RunningTask, outcome: Outcome) -> None:
        """Adds an outcome."""
        self.held[task] = None
        self._queue.put((task, outcome))
        if self._is_over:
            self._drop_late()

    def is_full(self) -> bool:
        """Whether so many outcomes were not answered that no more tasks should be taken."""
        return self._queue.qsize() + sum(unsent.size() for unsent in list(self._tubes.values())) > UNANSWERED_MAX

    def stop(self, seconds: float) -> bool:
        """Sends what is left while leases last, for at most so many seconds, and returns whether all was sent."""
        self._until = self._clock() + seconds
        self._queue.put(None)
        # In steps, because `hurry` may change the time.
        while self._thread.is_alive() and self._clock() < self._until:
            self._thread.join(min(self._until - self._clock(), STOP_STEP))
        return not self._thread.is_alive() and not self._unsent

    def join(self, deadline: float) -> None:
        """Waits until the thread has ended, or until a time of the monotonic clock."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def hurry(self, seconds: float) -> None:
        """Gives a stop at most this time from now on."""
        self._until = min(self._until, self._clock() + seconds)

    def _run(self) -> None:
        # Functions that end while the last outcomes are sent add theirs.
        while not self._ended or self._tubes or not self._queue.empty():
            for item in self._next():
                self._tubes.setdefault(item[0].tube, _Unsent()).added.append(item)
            for tube, unsent in list(self._tubes.items()):
                self._send_due(tube, unsent)
                if not unsent.batches and not unsent.added:
                    del self._tubes[tube]
        self._is_over = True
        self._drop_late()

    def _drop_late(self) -> None:
        """Drops outcomes that come when nothing is sent any more."""
        try:
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    self._unsent += 1
                    self._forget([item])
                    log.error("the outcome of the task was not sent: the worker has stopped", extra=fields_of(item[0]))
        except Empty:
            pass

    def _forget(self, items: Iterable[Finished]) -> None:
        """Extends no more leases of tasks whose outcomes were answered or dropped."""
        for task, _ in items:
            self.held.pop(task, None)

    def _next(self) -> List[Finished]:
        """Waits for outcomes, and returns those to send now."""
        received: List[Optional[Finished]] = []
        moments = [unsent.not_before for unsent in self._tubes.values()]
        if self._waiting:
            moments.append(self._waiting[0][0])
        if self._ended:
            moments.append(self._until)
        try:
            received.append(self._queue.get(timeout=max(min(moments) - self._clock(), 0.0) if moments else None))
            while len(received) < BATCH_MAX:
                received.append(self._queue.get_nowait())
        except Empty:
            pass
        items = [item for item in received if item is not None]
        self._ended = self._ended or len(items) < len(received)
        ready = list(filter(None, map(self._delayed, self._without_undecodable(items))))
        return [*self._due(), *ready]

    def _due(self) -> List[Finished]:
        """The outcomes whose delay has passed, or all of them at the end; tasks that were lost meanwhile have none."""
        now, due = self._clock(), []
        while self._waiting and (self._ended or self._waiting[0][0] <= now):
            item = heapq.heappop(self._waiting)[2]
            if item[0].cancel_reason is not CancelReason.LOST:
                due.append(item)
            else:
                self._forget([item])
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
        # At the end those that wait are due.
        if not self._ended and (self._rules.of(task.tube).has_delays or len(self._waiting) >= WAITING_MAX):
            return item
        heapq.heappush(self._waiting, (self._clock() + delay, next(self._numbers), item))
        return None

    def _without_undecodable(self, items: List[Finished]) -> List[Finished]:
        """Buries tasks whose payload cannot be decoded, which had all their attempts, and which nothing else limits."""
        asked: Dict[str, List[RunningTask]] = {}
        for task, outcome in items:
            if _is_undecodable(task, outcome) and not self._rules.of(task.tube).has_limit:
                asked.setdefault(task.tube, []).append(task)
        last = {task for tube, tasks in asked.items() for task in self._rules.without_limit(tube, tasks)}
        return [(task, _buried(task, outcome) if task in last else outcome) for task, outcome in items] if last else items

    def _send_due(self, tube: str, unsent: _Unsent) -> None:
        """Sends the outcomes of a tube until none is left or a request has to be repeated later."""
        while (unsent.batches or unsent.added) and (unsent.not_before <= self._clock() or self._is_late()):
            if not unsent.batches:
                unsent.batches.append(_Batch(unsent.added[:BATCH_MAX]))
                del unsent.added[:BATCH_MAX]
            batch = unsent.batches.popleft()
            try:
                outcomes = self._client._send(_call(tube, batch.items))
                _check(batch, outcomes, self._clock())
                self._forget(batch.items)
                unsent.pause = 0.0
            except TaskyardError as error:
                if isinstance(error, RefusedError) and (error.code in ABOUT_TASKS or is_too_large(error)):
                    instead = _without_refused(tube, batch, error)
                    unsent.batches.extendleft(instead)
                    if not instead:
                        self._forget(batch.items)
                else:
                    return self._repeat(tube, unsent, batch, error)
            except Exception:  # The thread must go on: without it no task ends.
                self._unsent += len(batch.items)
                self._forget(batch.items)
                log.exception("%d outcomes of tube %s were not sent", len(batch.items), tube)

    def _is_late(self) -> bool:
        """Whether a stop does not wait any more."""
        return self._ended and self._clock() >= self._until

    def _repeat(self, tube: str, unsent: _Unsent, batch: _Batch, error: TaskyardError) -> None:
        """Keeps the outcomes that may still be delivered, for another request."""
        now = self._clock()
        batch.is_unknown = batch.is_unknown or isinstance(error, OutcomeUnknownError)
        kept: List[Finished] = []
        dropped: List[Finished] = []
        # A server that is away may have kept a lease for longer than is known here; nothing is awaited at a stop.
        is_late, needs_lease = self._is_late(), self._ended or _is_refused(error)
        for item in batch.items:
            (dropped if is_late or (needs_lease and item[0].deadline <= now) else kept).append(item)
        if is_late:
            dropped.extend(item for other in unsent.batches for item in other.items)
            dropped.extend(unsent.added)
            unsent.batches.clear()
            unsent.added.clear()
        if dropped:
            self._unsent += len(dropped)
            self._forget(dropped)
            log.error("%d outcomes of tube %s were not sent: %s", len(dropped), tube, error)
        if kept:
            log.warning("outcomes of tube %s are sent again: %s", tube, error)
            unsent.batches.appendleft(_Batch(kept, batch.is_unknown))
        unsent.pause = min(2 * unsent.pause, self.pause_max) or self.pause_min
        unsent.not_before = now + unsent.pause


def _is_refused(error: TaskyardError) -> bool:
    """Whether the server itself refused a request, such as one with a wrong token."""
    return isinstance(error, RefusedError) and not isinstance(error, UnavailableError) and error.status < 500


def _without_refused(tube: str, batch: _Batch, error: RefusedError) -> List[_Batch]:
    """What to send instead of a refused request, the last first: its halves, until the outcome that the server refuses is
    alone, an ack without its result, and a failure that is too large with a shorter error."""
    items = batch.items
    if isinstance(error, TubeNotFoundError):
        log.warning("%d tasks ended before their outcomes were sent: %s", len(items), error)
        return []
    if len(items) > 1:
        half = len(items) // 2
        return [_Batch(items[half:], batch.is_unknown), _Batch(items[:half], batch.is_unknown)]
    task, outcome = items[0]
    log.error("the outcome of the task was refused: %s", error, extra=fields_of(task))
    smaller = _smaller(task, outcome, error)
    return [] if smaller is None else [_Batch([(task, smaller)], batch.is_unknown)]


def _smaller(task: RunningTask, outcome: Outcome, error: RefusedError) -> Optional[Outcome]:
    """What may be accepted instead of a refused outcome."""
    if isinstance(outcome, str):
        return ack(task) if outcome != ack(task) else None
    text = outcome.get("error")
    if is_too_large(error) and isinstance(text, str) and len(text) > SHORT_ERROR:
        return {**outcome, "error": text[:SHORT_ERROR]}
    return None


def _is_undecodable(task: RunningTask, outcome: Outcome) -> bool:
    """Whether a task whose payload cannot be decoded had all its attempts, unless it or its tube has another limit."""
    is_failure = not isinstance(outcome, str) and outcome["verb"] == "fail" and isinstance(task.error, PayloadError)
    return is_failure and task.function.retries is None and task.attempt >= UNDECODABLE_MAX


def _buried(task: RunningTask, outcome: Outcome) -> Outcome:
    error = None if isinstance(outcome, str) else outcome.get("error")
    return {"verb": "bury", "id": task.id, "lease": task.lease, "error": error}


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


def _check(batch: _Batch, outcomes: List[str], now: float) -> None:
    """Reports deliveries that had ended before."""
    for (task, _), outcome in zip(batch.items, outcomes):
        # After a lost answer a delivery has ended by the first request, unless its lease ran out meanwhile.
        if outcome != "done" and not (batch.is_unknown and task.deadline > now):
            log.warning("the task ended before its outcome was sent", extra=fields_of(task))


def growing_delay(attempt: int) -> float:
    """The delay after a failed attempt in tubes without a retry policy: 1, 2, 4 seconds and so on up to an hour."""
    return min(2.0 ** min(attempt - 1, 20), DELAY_MAX)
