"""A task that a worker holds, as its function sees it."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import enum
import time
from typing import TYPE_CHECKING, Any, List, Optional

from .errors import Cancelled
from .shapes import JsonObject, Task

if TYPE_CHECKING:
    from .app import TaskFunction


class CancelReason(enum.Enum):
    """Why a task function is cancelled."""

    #: The lease ended, or another request ended the delivery: the task does not belong to this worker any more.
    LOST = "lost"
    #: The function ran longer than its time limit.
    TIME_LIMIT = "time_limit"
    #: The worker stops, and the time to finish is over.
    STOPPING = "stopping"


class RunningTask(Task):
    """A delivery of a task to this process. `current_task()` returns it inside the task function."""

    __slots__ = ("function", "deadline", "taken", "began", "cancel_reason", "thread", "future", "error", "_claims")

    def __init__(self, function: TaskFunction[Any, Any], fields: JsonObject, deadline: float) -> None:
        super().__init__(function.tube, fields)
        self.function = function
        #: When the lease ends, by the monotonic clock.
        self.deadline = deadline
        self.taken = time.monotonic()
        #: When the function began, by the monotonic clock; 0 before.
        self.began = 0.0
        self.cancel_reason: Optional[CancelReason] = None
        #: The thread that runs the function.
        self.thread: Optional[int] = None
        #: What runs the function on the event loop.
        self.future: Optional[asyncio.Task[Any]] = None
        #: The exception with which the function ended.
        self.error: Optional[BaseException] = None
        self._claims: List[None] = [None]

    @property
    def attempt(self) -> int:
        """The number of this attempt, beginning with 1."""
        return self.attempts + 1

    @property
    def is_cancelled(self) -> bool:
        """Whether the function should end. A long computation may ask this from time to time."""
        return self.cancel_reason is not None

    def claim(self) -> bool:
        """Whether the caller, and no other one, decides what becomes of the delivery."""
        try:
            # Atomic, and not disturbed by an exception that another thread raises in this one.
            self._claims.pop()
        except IndexError:
            return False
        return True

    def cancel(self, reason: CancelReason) -> None:
        """Cancels the function: raises `Cancelled` in its thread, or cancels its asyncio task."""
        if self.cancel_reason is not None:
            return
        self.cancel_reason = reason
        thread, future = self.thread, self.future
        if future is not None:
            future.get_loop().call_soon_threadsafe(future.cancel)
        elif thread is not None:
            raise_in_thread(thread)


#: The task whose function runs in this context.
CURRENT: contextvars.ContextVar[RunningTask] = contextvars.ContextVar("taskyard_current_task")


def current_task() -> RunningTask:
    """The task whose function runs; raises LookupError outside of a task function."""
    return CURRENT.get()


def raise_in_thread(thread: int) -> None:
    """Raises `Cancelled` in a thread as soon as it executes Python code. The thread may be at the next task by then."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Cancelled))
