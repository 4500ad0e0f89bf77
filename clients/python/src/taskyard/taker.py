"""Takes tasks of one tube ahead of the functions that run them."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import List, Optional, TypeVar

from . import calls
from .app import TaskFunction
from .client import Client
from .errors import TaskyardError, TubeExistsError, TubeNotFoundError, UnreachableError
from .finisher import Finisher
from .pools import Pool
from .running_task import RunningTask
from .shapes import Task
from .transport import Connection

#: How long a take waits for tasks at the server, in seconds.
WAIT = 20.0
#: How much longer the answer may take, in seconds: a connection that died without a sign keeps the worker idle for so long.
ANSWER_MAX = 10.0
#: The pauses after takes that failed, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.1, 10.0

log = logging.getLogger("taskyard.worker")

T = TypeVar("T")


class Taker:
    """A thread with a connection of its own."""

    def __init__(
        self,
        client: Client,
        function: TaskFunction[..., object],
        pool: Pool,
        finisher: Finisher,
        lease: float,
        name: str,
    ) -> None:
        self._server = client._server
        self._function, self._pool, self._finisher = function, pool, finisher
        self._lease, self._name = lease, name
        self._stopping = threading.Event()
        self._connection: Optional[Connection] = None
        self._pause = PAUSE_MIN
        self._thread = threading.Thread(target=self._run, name=f"taskyard-take-{function.tube}", daemon=True)

    def start(self) -> None:
        """Starts to take tasks."""
        self._thread.start()

    def stop(self) -> None:
        """Takes no more tasks. A take that waits at the server ends; tasks that it was given already are given back."""
        self._stopping.set()
        self._pool.wake()
        connection = self._connection
        if connection is not None:
            connection.end_request()

    def join(self, deadline: float) -> None:
        """Waits until the last take has ended, or until a time of the monotonic clock."""
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def abandon(self) -> None:
        """Ends a take whose answer is not awaited any more."""
        connection = self._connection
        if connection is not None:
            connection.abort()

    def _run(self) -> None:
        try:
            self._take_until_stop()
        finally:
            if self._connection is not None:
                self._connection.close()

    def _take_until_stop(self) -> None:
        tube = self._function.tube
        self._create()
        while not self._stopping.is_set():
            count = self._pool.wait_for_space(1.0)
            if not count or self._stopping.is_set():
                continue
            if self._finisher.is_full():
                self._stopping.wait(PAUSE_MIN)
                continue
            try:
                taken = time.monotonic()
                tasks = self._exchange(calls.take(tube, count, WAIT, self._lease, self._name))
            except TaskyardError as error:
                if not self._stopping.is_set():
                    self._failed(error)
                continue
            self._pause = PAUSE_MIN
            if tasks:
                self._submit(tasks, taken)

    def _exchange(self, call: calls.Call[T]) -> T:
        """Sends a request over the connection of this thread; raises `UnreachableError` when the worker stops."""
        connection = self._connection
        if connection is None or not connection.is_usable():
            if connection is not None:
                connection.close()
            self._connection = connection = Connection(self._server, ANSWER_MAX)
        if self._stopping.is_set():
            # The stop may have seen the connection before this one.
            raise UnreachableError("the worker stops")
        try:
            request = self._server.request(call.method, call.target, call.body)
            response = connection.exchange(request, call.wait + ANSWER_MAX)
        except TaskyardError:
            connection.close()
            self._connection = None
            raise
        if not response.keep_alive:
            connection.close()
            self._connection = None
        return call.answer(self._server, response.status, response.body)

    def _submit(self, tasks: List[Task], taken: float) -> None:
        # The lease began after the request was sent; a take that waited is newer than that.
        deadline = max(taken, time.monotonic() - 1.0) + self._lease
        running = [RunningTask(self._function, task.fields, deadline) for task in tasks]
        self._pool.submit(running)
        if self._stopping.is_set():
            self._pool.give_back(running)

    def _failed(self, error: TaskyardError) -> None:
        if isinstance(error, TubeNotFoundError):
            self._create()
        log.warning("tasks of tube %s cannot be taken: %s", self._function.tube, error)
        self._stopping.wait(self._pause * random.uniform(0.5, 1.0))
        self._pause = min(2 * self._pause, PAUSE_MAX)

    def _create(self) -> None:
        """Creates the tube unless it exists."""
        function = self._function
        try:
            self._exchange(calls.create_tube(function.tube, function.tube_options, if_not_exists=True))
        except TubeExistsError as error:
            log.warning("tube %s has other options: %s", function.tube, error)
        except TaskyardError as error:
            if not self._stopping.is_set():
                log.warning("tube %s cannot be created: %s", function.tube, error)
