"""Sends what became of tasks: the outcomes of a moment travel in one request, which is repeated until it is answered."""

from __future__ import annotations

import heapq
import json
import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import Callable, Deque, Dict, List, NamedTuple, Optional, Tuple

from . import calls
from .client import Client
from .errors import OutcomeUnknownError, PayloadError, RefusedError, TaskyardError, TubeNotFoundError, UnavailableError
from .execution import Outcome, ack, fields_of
from .running_task import CancelReason, RunningTask

#: The largest number of outcomes in one request.
BATCH_MAX = 5000
#: The pauses between repeated requests, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.1, 5.0
#: For how long the rules of a tube are remembered, in seconds.
KIND_SECONDS = 60.0
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

log = logging.getLogger("taskyard.worker")

#: A task and what becomes of it.
Finished = Tuple[RunningTask, Outcome]

#: The codes of refusals that are about the tasks of a request or their results: the same request would be refused again.
#: Others, such as a token that is replaced at the moment, are not.
ABOUT_TASKS = frozenset(("invalid", "too_large", "missing_feature", "unsupported", "tube_not_found", "task_not_found"))


class _TubeRules(NamedTuple):
    """What is known about a tube. Nothing is buried while it is unknown."""

    #: Whether the server can delay its tasks.
    has_delays: bool = True
    #: Whether the server buries tasks after a number of attempts.
    has_limit: bool = True


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
        #: The rules of the tubes, and when they were read.
        self._known: Dict[str, Tuple[_TubeRules, float]] = {}
        #: Outcomes whose delay passes here, because the server has none for their tubes: the earliest first.
        self._waiting: List[Tuple[float, int, Finished]] = []
        #: The tasks of these, whose leases have to be extended.
        self.held: Dict[RunningTask, None] = {}
        self._ended = False
        self._unsent = 0
        #: When to give up what is left, once the worker stops.
        self._until = 0.0
        self._thread = threading.Thread(target=self._run, name="taskyard-finish", daemon=True)
        self._thread.start()

    def add(self, task: RunningTask, outcome: Outcome) -> None:
        """Adds an outcome."""
        self._queue.put((task, outcome))

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

    def hurry(self, seconds: float) -> None:
        """Gives a stop at most this time from now on."""
        self._until = min(self._until, self._clock() + seconds)

    def _run(self) -> None:
        while not self._ended or self._tubes:
            for item in self._next():
                self._tubes.setdefault(item[0].tube, _Unsent()).added.append(item)
            for tube, unsent in list(self._tubes.items()):
                self._send_due(tube, unsent)
                if not unsent.batches and not unsent.added:
                    del self._tubes[tube]

    def _next(self) -> List[Finished]:
        """Waits for outcomes, and returns those to send now."""
        received: List[Optional[Finished]] = []
        moments = [unsent.not_before for unsent in self._tubes.values()]
        if self._waiting:
            moments.append(self._waiting[0][0])
        try:
            received.append(self._queue.get(timeout=max(min(moments) - self._clock(), 0.0) if moments else None))
            while len(received) < BATCH_MAX:
                received.append(self._queue.get_nowait())
        except Empty:
            pass
        items = [item for item in received if item is not None]
        self._ended = self._ended or len(items) < len(received)
        return [*self._due(), *filter(None, map(self._delayed, items))]

    def _due(self) -> List[Finished]:
        """The outcomes whose delay has passed, or all of them at the end; tasks that were lost meanwhile have none."""
        now, due = self._clock(), []
        while self._waiting and (self._ended or self._waiting[0][0] <= now):
            item = heapq.heappop(self._waiting)[2]
            self.held.pop(item[0], None)
            if item[0].cancel_reason is not CancelReason.LOST:
                due.append(item)
        return due

    def _delayed(self, item: Finished) -> Optional[Finished]:
        """Sets the delay before the next attempt; none if the outcome waits here for it."""
        task, outcome = item
        if isinstance(outcome, str) or outcome["verb"] not in ("fail", "release"):
            return item
        if outcome["verb"] == "fail" and isinstance(task.error, PayloadError) and self._is_last(task):
            return task, {"verb": "bury", "id": task.id, "lease": task.lease, "error": outcome["error"]}
        if outcome.get("delay") == 0:
            return item
        delay = outcome.get("delay")
        if delay is None:
            # The retry policy of the tube is used instead if it has one.
            delay = growing_delay(task.attempt)
            item = task, {**outcome, "default_delay": delay}
        if self._rules(task.tube).has_delays or self._ended or len(self._waiting) >= WAITING_MAX:
            return item
        self.held[task] = None
        heapq.heappush(self._waiting, (self._clock() + delay, id(task), item))
        return None

    def _is_last(self, task: RunningTask) -> bool:
        """Whether a task whose payload cannot be decoded had all its attempts, and nothing else limits them."""
        if task.function.retries is not None or task.attempt < UNDECODABLE_MAX:
            return False
        if self._rules(task.tube).has_limit:
            return False
        try:
            # A delivery does not show the limit of its task.
            return all(shown.fields.get("attempts_max") is None for shown in self._client.peek(task.tube, [task.id]))
        except TaskyardError as error:
            log.warning("the task cannot be read: %s", error, extra=fields_of(task))
            # One that may not see its tasks knows no limit of them. Otherwise the next attempt decides.
            return _is_refused(error)

    def _rules(self, tube: str) -> _TubeRules:
        """The rules of a tube; as known last if the server does not answer."""
        known, read = self._known.get(tube, (_TubeRules(), -KIND_SECONDS))
        if self._clock() - read >= KIND_SECONDS:
            try:
                shown, read = self._client.tube(tube), self._clock()
                known = _TubeRules(str(shown.get("kind")).endswith("ttl"), shown.get("attempts_max") is not None)
            except TaskyardError as error:
                log.warning("the kind of tube %s cannot be read: %s", tube, error)
                read = self._clock() - KIND_SECONDS + PAUSE_MAX
            self._known[tube] = (known, read)
        return known

    def _send_due(self, tube: str, unsent: _Unsent) -> None:
        """Sends the outcomes of a tube until none is left or a request has to be repeated later."""
        while (unsent.batches or unsent.added) and unsent.not_before <= self._clock():
            if not unsent.batches:
                unsent.batches.append(_Batch(unsent.added[:BATCH_MAX]))
                del unsent.added[:BATCH_MAX]
            batch = unsent.batches.popleft()
            try:
                outcomes = self._client._send(_call(tube, batch.items))
                _check(batch, outcomes, self._clock())
                unsent.pause = 0.0
            except TaskyardError as error:
                if isinstance(error, RefusedError) and error.code in ABOUT_TASKS:
                    unsent.batches.extendleft(_without_refused(tube, batch, error))
                else:
                    return self._repeat(tube, unsent, batch, error)
            except Exception:  # The thread must go on: without it no task ends.
                self._unsent += len(batch.items)
                log.exception("%d outcomes of tube %s were not sent", len(batch.items), tube)

    def _repeat(self, tube: str, unsent: _Unsent, batch: _Batch, error: TaskyardError) -> None:
        """Keeps the outcomes that may still be delivered, for another request."""
        now = self._clock()
        batch.is_unknown = batch.is_unknown or isinstance(error, OutcomeUnknownError)
        kept = [] if self._ended and now >= self._until else batch.items
        # A server that is away may have kept a lease for longer than is known here; nothing is awaited at a stop.
        if self._ended or _is_refused(error):
            kept = [item for item in kept if item[0].deadline > now]
        dropped = len(batch.items) - len(kept)
        if dropped:
            self._unsent += dropped
            log.error("%d outcomes of tube %s were not sent: %s", dropped, tube, error)
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
    alone, and an ack without its result."""
    items = batch.items
    if isinstance(error, TubeNotFoundError):
        log.warning("%d tasks ended before their outcomes were sent: %s", len(items), error)
        return []
    if len(items) > 1:
        half = len(items) // 2
        return [_Batch(items[half:], batch.is_unknown), _Batch(items[:half], batch.is_unknown)]
    task, outcome = items[0]
    log.error("the outcome of the task was refused: %s", error, extra=fields_of(task))
    if isinstance(outcome, str) and outcome != ack(task):
        return [_Batch([(task, ack(task))], batch.is_unknown)]
    return []


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
