"""Sends what became of tasks: the outcomes of a moment travel in one request."""

from __future__ import annotations

import json
import logging
import threading
import time
from queue import Empty, SimpleQueue
from typing import Dict, List, Optional, Tuple

from . import calls
from .client import Client
from .errors import OutcomeUnknownError, RefusedError, TaskyardError, UnavailableError, UnreachableError
from .execution import Outcome, fields_of
from .running_task import RunningTask

#: The largest number of outcomes in one request.
BATCH_MAX = 5000
#: The pauses between repeated requests, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.1, 5.0
#: For how long the retry policy of a tube is remembered, in seconds.
POLICY_SECONDS = 5.0
#: The longest delay before another attempt in tubes without a retry policy, in seconds.
DELAY_MAX = 3600.0

log = logging.getLogger("taskyard.worker")

#: A task and what becomes of it.
Finished = Tuple[RunningTask, Outcome]


class Finisher:
    """A thread that sends outcomes and repeats requests until the leases of their tasks end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue: SimpleQueue[Optional[Finished]] = SimpleQueue()
        #: Whether each tube has a retry policy, and when that was read.
        self._policies: Dict[str, Tuple[bool, float]] = {}
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
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended = False
        while not ended:
            first = self._queue.get()
            ended = first is None
            batches: Dict[str, List[Finished]] = {}
            if first is not None:
                batches[first[0].tube] = [first]
            try:
                for _ in range(BATCH_MAX - 1):
                    item = self._queue.get_nowait()
                    if item is None:
                        ended = True
                    else:
                        batches.setdefault(item[0].tube, []).append(item)
            except Empty:
                pass
            for tube, batch in batches.items():
                self._send(tube, batch)

    def _send(self, tube: str, batch: List[Finished]) -> None:
        pause = PAUSE_MIN
        while True:
            try:
                outcomes = self._client._send(self._call(tube, batch))
                for (task, _), outcome in zip(batch, outcomes):
                    if outcome != "done":
                        log.warning("the task ended before its outcome was sent", extra=fields_of(task))
                return
            except (UnreachableError, UnavailableError, OutcomeUnknownError) as error:
                # A repeated request that was executed before is answered with `stale` or `missing`, which does no harm.
                now = time.monotonic()
                batch = [item for item in batch if item[0].deadline > now]
                if not batch or self._hurry.is_set():
                    log.error("outcomes of tube %s were not sent before the leases ended: %s", tube, error)
                    return
                log.warning("outcomes of tube %s are sent again: %s", tube, error)
                self._hurry.wait(pause)
                pause = min(2 * pause, PAUSE_MAX)
            except RefusedError as error:
                self._refused(tube, batch, error)
                return
            except TaskyardError as error:
                log.error("outcomes of tube %s were not sent: %s", tube, error)
                return

    def _refused(self, tube: str, batch: List[Finished], error: RefusedError) -> None:
        """Finds the outcome that the server refuses; an ack is sent without its result."""
        if len(batch) > 1:
            for item in batch:
                self._send(tube, [item])
            return
        task, outcome = batch[0]
        log.error("the outcome of the task was refused: %s", error, extra=fields_of(task))
        if not isinstance(outcome, str) and ("result" in outcome or "result_base64" in outcome):
            self._send(tube, [(task, {"verb": "ack", "id": task.id, "lease": task.lease})])

    def _call(self, tube: str, batch: List[Finished]) -> calls.Call[List[str]]:
        parts = ",".join(
            outcome if isinstance(outcome, str) else self._encoded(task, outcome) for task, outcome in batch
        )
        body = f'{{"tasks":[{parts}]}}'.encode()
        return calls.Call("POST", calls.tube_target(tube, "finish"), body, lambda answer: list(answer["outcomes"]))

    def _encoded(self, task: RunningTask, outcome: Outcome) -> str:
        if not isinstance(outcome, str) and outcome["verb"] == "fail" and "delay" not in outcome:
            if not self._has_policy(task.tube):
                outcome = {**outcome, "delay": growing_delay(task.attempt)}
        return json.dumps(outcome, allow_nan=False)

    def _has_policy(self, tube: str) -> bool:
        """Whether the tube has a retry policy; one that cannot be read is ignored."""
        known = self._policies.get(tube)
        if known is None or time.monotonic() - known[1] > POLICY_SECONDS:
            try:
                known = ("retry" in self._client.tube(tube), time.monotonic())
            except TaskyardError:
                return False
            self._policies[tube] = known
        return known[0]


def growing_delay(attempt: int) -> float:
    """The delay after a failed attempt in tubes without a retry policy: 1, 2, 4 seconds and so on up to an hour."""
    return min(2.0 ** min(attempt - 1, 20), DELAY_MAX)
