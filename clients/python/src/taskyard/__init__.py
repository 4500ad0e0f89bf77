"""Client and workers of the task queue Taskyard.

Start with `App`; `Client` and `AsyncClient` have every verb of the queue.
"""

from .app import App, TaskFunction
from .async_client import AsyncClient
from .client import Client
from .errors import (
    Bury,
    Cancelled,
    OutcomeUnknownError,
    PayloadError,
    RefusedError,
    Release,
    Retry,
    TaskyardError,
    UnreachableError,
    UntrustedError,
)
from .running_task import RunningTask, current_task
from .shapes import Delivery, Estimate, NewTask, NoEstimate, Placed, Position, Task
from .version import VERSION as __version__
from .worker import Worker

__all__ = [
    "App",
    "AsyncClient",
    "Bury",
    "Cancelled",
    "Client",
    "Delivery",
    "Estimate",
    "NewTask",
    "NoEstimate",
    "OutcomeUnknownError",
    "PayloadError",
    "Placed",
    "Position",
    "RefusedError",
    "Release",
    "Retry",
    "RunningTask",
    "Task",
    "TaskFunction",
    "TaskyardError",
    "UnreachableError",
    "UntrustedError",
    "Worker",
    "__version__",
    "current_task",
]
