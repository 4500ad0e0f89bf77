"""Client and workers of the task queue Taskyard.

Start with `App`; `Client` and `AsyncClient` have every verb of the queue.
"""

from .async_client import AsyncClient
from .client import Client
from .errors import TaskyardError
from .shapes import Delivery, NewTask, Placed, Task
from .version import VERSION as __version__

__all__ = ["AsyncClient", "Client", "Delivery", "NewTask", "Placed", "Task", "TaskyardError", "__version__"]
