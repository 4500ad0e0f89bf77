"""What workers have to know about tubes: whether they have delays, and which of their tasks have no limit of attempts."""

from __future__ import annotations

import logging
from collections import deque
from typing import Callable, Dict, List, NamedTuple, Set, Tuple

from .client import Client
from .errors import RefusedError, TaskyardError, is_too_large
from .running_task import RunningTask

#: For how long the rules of a tube are remembered, in seconds; shorter if they could not be read.
REMEMBERED, REMEMBERED_SHORT = 60.0, 5.0
#: So many tasks are read in one request.
PEEK_MAX = 1000

log = logging.getLogger("taskyard.worker")


class TubeRules(NamedTuple):
    """What is known about a tube. Nothing is buried while it is unknown."""

    #: Whether the server can delay its tasks.
    has_delays: bool = True
    #: Whether the server buries tasks after a number of attempts.
    has_limit: bool = True


class RuleReader:
    """Reads the rules of tubes and remembers them. Never raises an exception of the client."""

    def __init__(self, client: Client, clock: Callable[[], float]) -> None:
        self._client, self._clock = client, clock
        #: The rules of the tubes, and until when they are remembered.
        self._known: Dict[str, Tuple[TubeRules, float]] = {}

    def of(self, tube: str) -> TubeRules:
        """The rules of a tube; as known last if the server does not answer."""
        known, until = self._known.get(tube, (TubeRules(), float("-inf")))
        if self._clock() >= until:
            try:
                shown = self._client.tube(tube)
                known = TubeRules(str(shown.get("kind")).endswith("ttl"), shown.get("attempts_max") is not None)
                until = self._clock() + REMEMBERED
            except Exception as error:  # An answer of another program may have any shape.
                log.warning("the kind of tube %s cannot be read: %s", tube, error)
                until = self._clock() + REMEMBERED_SHORT
            self._known[tube] = (known, until)
        return known

    def without_limit(self, tube: str, tasks: List[RunningTask]) -> Set[RunningTask]:
        """Those of these tasks that have no limit of attempts of their own, which a delivery does not show."""
        found: Set[RunningTask] = set()
        parts = deque(tasks[start : start + PEEK_MAX] for start in range(0, len(tasks), PEEK_MAX))
        while parts:
            part = parts.popleft()
            try:
                shown = self._client.peek(tube, [task.id for task in part])
                limited = {task.id for task in shown if task.fields.get("attempts_max") is not None}
                found.update(task for task in part if task.id not in limited)
            except Exception as error:  # The same.
                if isinstance(error, TaskyardError) and is_too_large(error) and len(part) > 1:
                    # Tasks are shown with their payloads.
                    half = len(part) // 2
                    parts.extendleft((part[half:], part[:half]))
                    continue
                log.warning("tasks of tube %s cannot be read: %s", tube, error)
                if isinstance(error, RefusedError) and error.code == "forbidden":
                    # A worker that may never see its tasks knows no limit of them.
                    return found.union(part, *parts)
                # Otherwise the next attempt decides.
                return found
        return found
