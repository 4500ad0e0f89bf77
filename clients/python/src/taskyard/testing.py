"""Runs the tasks of an application in a test, without a server."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from types import TracebackType
from typing import Any, List, Optional, Type

from . import execution
from .app import App, TaskFunction
from .finisher import growing_delay
from .memory_queue import MemoryQueue
from .running_task import RunningTask
from .shapes import FinishPart, Seconds, Task, seconds
from .transport import Answer


class TestQueue:
    """A queue in memory that replaces the server of an application inside a `with` block.

    An exception of a task function is raised in `run`, or in the put if tasks run inline, after the task was failed;
    `raises = False` keeps it in the task only.
    """

    #: Not a test, although its name begins like one.
    __test__ = False

    def __init__(self, app: App, *, inline: bool = False) -> None:
        self._app, self._inline = app, inline
        self._queue = MemoryQueue()
        #: Whether exceptions of task functions are raised.
        self.raises = True

    def __enter__(self) -> TestQueue:
        if self._app._testing is not None:
            raise RuntimeError("the application is being tested already")
        client, async_client = self._app.client, self._app.async_client
        self._transports = (client._transport, async_client._transport)
        client._transport, async_client._transport = self._queue, _AsyncQueue(self._queue)
        self._app._testing = self
        if self._inline:
            self._queue.after_put = self._run_tube
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self._app.client._transport, self._app.async_client._transport = self._transports
        self._app._testing = None

    def tasks(self, tube: str, state: Optional[str] = None) -> List[Task]:
        """The tasks of a tube: those that wait, run or are buried, or those in a state, such as `done`."""
        if tube not in self._queue.tubes:
            return []
        query = {} if state is None else {"state": state}
        return [Task(tube, fields) for fields in self._queue.list(tube, query)["tasks"]]

    def run(self) -> int:
        """Runs all tasks that are due, also those that they put, and returns how many ran."""
        ran = 0
        while True:
            before = ran
            for tube in list(self._app.functions):
                ran += self._run_tube(tube)
            if ran == before:
                return ran

    def advance(self, time: Seconds) -> int:
        """Lets time pass, and runs all tasks that are due then."""
        self._queue.now += seconds(time)
        return self.run()

    def _run_tube(self, tube: str) -> int:
        function, ran = self._app.functions.get(tube), 0
        while function is not None and tube in self._queue.tubes:
            taken = self._queue.take(tube, {"count": 1})["tasks"]
            if not taken:
                break
            ran += 1
            self._run_task(function, taken[0])
        return ran

    def _run_task(self, function: TaskFunction[Any, Any], fields: Any) -> None:
        # As bytes, so that a task function cannot change what is stored.
        task = RunningTask(function, json.loads(json.dumps(fields)), time.monotonic() + 60)
        outcome = _run_async(task) if function.is_async else execution.run(task)
        part: FinishPart = json.loads(outcome) if isinstance(outcome, str) else outcome
        if part["verb"] == "fail" and "delay" not in part:
            part["delay"] = growing_delay(task.attempt)
        self._queue.finish(function.tube, {"tasks": [json.loads(json.dumps(part))]})
        if task.error is not None and self.raises:
            raise task.error


class _AsyncQueue:
    """The queue as the transport of the asyncio client."""

    def __init__(self, queue: MemoryQueue) -> None:
        self._queue = queue

    async def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        return self._queue.exchange(method, target, body, wait)

    async def close(self) -> None:
        """Has no connections."""


def _run_async(task: RunningTask) -> execution.Outcome:
    """Runs an asynchronous function on a loop of its own: the test may run in one already."""
    outcomes: List[execution.Outcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(asyncio.run(execution.run_async(task))))
    thread.start()
    thread.join()
    return outcomes[0]
