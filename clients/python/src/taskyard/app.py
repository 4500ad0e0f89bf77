"""The application: the task functions and how their tasks are put."""

from __future__ import annotations

import inspect
import math
import typing
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Mapping,
    Optional,
    TypeVar,
    Union,
    cast,
)

from .async_client import AsyncClient
from .client import LEASE_DEFAULT, Client
from .errors import PayloadError
from .running_task import RunningTask
from .shapes import PUT_OPTIONS, FinishPart, NewTask, Placed, PutOptions, Seconds, TubeOptions, seconds
from .transport import TIMEOUT_DEFAULT

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Unpack

    from .testing import TestQueue
    from .worker import Worker
else:
    # Python 3.9 has no ParamSpec; at run time another variable serves as well.
    ParamSpec = getattr(typing, "ParamSpec", TypeVar)

P = ParamSpec("P")
R = TypeVar("R")


class App:
    """An application: the server, and the functions that run tasks.

    What is not given comes from `TASKYARD_URL`, `TASKYARD_TOKEN`, `TASKYARD_CA`, `TASKYARD_CLIENT_CERT` and
    `TASKYARD_CLIENT_KEY`. Nothing is sent before the first put.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        *,
        token: Optional[str] = None,
        ca: Optional[str] = None,
        client_cert: Optional[str] = None,
        client_key: Optional[str] = None,
        idempotent: bool = True,
        repeat_for: float = 10.0,
        timeout: float = TIMEOUT_DEFAULT,
    ) -> None:
        options: Dict[str, Any] = {"token": token, "ca": ca, "client_cert": client_cert, "client_key": client_key}
        options["idempotent"] = idempotent
        options.update(repeat_for=repeat_for, timeout=timeout)
        #: The blocking client.
        self.client = Client(url, **options)
        #: The asyncio client.
        self.async_client = AsyncClient(url, **options)
        #: The functions by their tubes.
        self.functions: Dict[str, TaskFunction[Any, Any]] = {}
        #: The queue in memory that takes the tasks while a test runs.
        self._testing: Optional[TestQueue] = None

    def task(
        self,
        tube: Optional[str] = None,
        *,
        retries: Optional[int] = None,
        retry_delay: Union[Seconds, Callable[[int], Seconds], None] = None,
        time_limit: Optional[float] = None,
        raw: bool = False,
        tube_options: Optional[TubeOptions] = None,
        **defaults: Unpack[PutOptions],
    ) -> Callable[[Callable[P, R]], TaskFunction[P, R]]:
        """Makes a function run the tasks of a tube, by default the tube with the name of the function.

        The payload of a task is an object with the parameters of the function; with `raw` it is the only argument.
        `retries`: after so many retries a task is buried; by default the options of the tube decide. `retry_delay`: the time
        before the next attempt, or a function of the number of the failed attempt; by default the retry policy of the tube,
        or 1, 2, 4 seconds and so on up to an hour. `time_limit`: seconds after which the function is cancelled.
        `tube_options`: with these a worker creates the tube if it does not exist. `defaults` are options of each put.
        """

        def register(function: Callable[P, R]) -> TaskFunction[P, R]:
            made = TaskFunction(self, tube or function.__name__, function)
            made.retries, made.retry_delay, made.time_limit = retries, retry_delay, time_limit
            made.raw, made.defaults = raw, defaults
            made.check_parameters()
            if retry_delay is not None and not callable(retry_delay) and not 0 <= seconds(retry_delay) < math.inf:
                raise ValueError(f"retry_delay is {retry_delay}; give seconds that are not negative, or a function")
            made.tube_options = cast(TubeOptions, dict(tube_options or {}))
            if made.tube in self.functions:
                raise ValueError(f"tube '{made.tube}' already has the function {self.functions[made.tube].__name__}")
            self.functions[made.tube] = made
            return made

        return register

    def worker(
        self,
        *,
        concurrency: int = 10,
        tubes: Optional[Iterable[str]] = None,
        lease: float = LEASE_DEFAULT,
        grace: float = 30.0,
        name: Optional[str] = None,
    ) -> Worker:
        """A worker in this process for the tasks of the functions, or of those of some tubes."""
        from .worker import Worker

        return Worker(self, concurrency=concurrency, tubes=tubes, lease=lease, grace=grace, name=name)

    def testing(self, *, inline: bool = False) -> TestQueue:
        """A queue in memory, as a context manager, that replaces the server in a test.

        With `inline` a put runs the function at once; else `run()` runs all tasks that are due.
        """
        from .testing import TestQueue

        return TestQueue(self, inline=inline)


class TaskFunction(Generic[P, R]):
    """A function that runs the tasks of a tube. A call of it just calls the function; `put` adds a task."""

    def __init__(self, app: App, tube: str, function: Callable[P, R]) -> None:
        self.app = app
        self.tube = tube
        self.function = function
        self.retries: Optional[int] = None
        self.retry_delay: Union[Seconds, Callable[[int], Seconds], None] = None
        self.time_limit: Optional[float] = None
        self.raw = False
        self.tube_options: TubeOptions = {}
        self.defaults: PutOptions = {}
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = inspect.signature(function)
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def check_parameters(self) -> None:
        """Refuses a function that a payload cannot call."""
        kinds = {parameter.kind for parameter in self.signature.parameters.values()}
        if not self.raw and kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
            raise TypeError(f"{self.__name__} has parameters without a name, which a payload cannot have")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<TaskFunction {self.__name__} of tube {self.tube}>"

    def put(self, *args: Any, **kwargs: Any) -> Placed:
        """Adds a task: arguments of the function, and options of a put such as `delay=60` or `key="ann-1"`.

        Type checkers do not check the arguments: a type for the parameters of a function together with further keywords does
        not exist. Those of `options(...).put(...)` are checked. If the function has a parameter with the name of an option, the argument is for the function; use `options`.
        """
        return self._separated(args, kwargs).send()

    def put_async(self, *args: Any, **kwargs: Any) -> Awaitable[Placed]:
        """The same with the asyncio client."""
        return self._separated(args, kwargs).send_async()

    def put_many(self, arguments: Iterable[Union[Mapping[str, Any], Any]], **options: Unpack[PutOptions]) -> List[Placed]:
        """Adds a task for each mapping of arguments, all or none."""
        given: PutOptions = {**self.defaults, **options}
        tasks = [NewTask(self._checked(item), given) for item in arguments]
        return self.app.client.put_many(self.tube, tasks)

    def options(self, **options: Unpack[PutOptions]) -> TaskPut[P]:
        """A put with these options: `send.options(delay=60).put(to="ann")`, checked by type checkers."""
        return TaskPut(self, {**self.defaults, **options})

    def call(self, task: RunningTask) -> Any:
        """Calls the function with the payload of a task; raises `PayloadError` if it is not one for the function."""
        try:
            data = task.data
        except Exception as error:
            raise PayloadError(f"cannot decode the payload: {error}") from error
        if self.raw:
            return self.function(data)  # type: ignore[call-arg]
        if not isinstance(data, dict):
            raise PayloadError(f"cannot decode the payload: {self.__name__} needs an object with its parameters")
        try:
            return self.function(**data)  # type: ignore[call-arg]
        except TypeError as error:
            try:
                self.signature.bind(**data)
            except TypeError:
                raise PayloadError(f"cannot decode the payload: {error}") from error
            # The error of the function itself.
            raise

    def used_up(self, task: RunningTask) -> Optional[FinishPart]:
        """Buries a task whose deliveries were lost so often that no retry is left; it may have ended its worker."""
        if self.retries is None or task.attempts <= self.retries:
            return None
        error = f"{task.attempts} deliveries failed or were lost; kick it with reset_attempts to run it again"
        return {"verb": "bury", "id": task.id, "lease": task.lease, "error": error}

    def delay_after(self, attempt: int) -> Optional[Seconds]:
        """The delay after a failed attempt, if the function has one of its own."""
        return self.retry_delay(attempt) if callable(self.retry_delay) else self.retry_delay

    def _separated(self, args: Any, kwargs: Dict[str, Any]) -> _Prepared:
        names = self.signature.parameters
        options = {name: value for name, value in kwargs.items() if name in PUT_OPTIONS and name not in names}
        rest = {name: value for name, value in kwargs.items() if name not in options}
        return _Prepared(self, self._payload(args, rest), cast(PutOptions, {**self.defaults, **options}))

    def _payload(self, args: Any, kwargs: Dict[str, Any]) -> Any:
        bound = self.signature.bind(*args, **kwargs)
        if self.raw:
            return next(iter(bound.arguments.values()))
        payload = dict(bound.arguments)
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                payload.update(payload.pop(name, {}))
        return payload

    def _checked(self, item: Any) -> Any:
        return item if self.raw else self._payload((), dict(item))


class TaskPut(Generic[P]):
    """A put of a task function with options."""

    def __init__(self, function: TaskFunction[P, Any], options: PutOptions) -> None:
        self._function = function
        self._options = options

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Placed:
        """Adds a task with these arguments."""
        return _Prepared(self._function, self._function._payload(args, kwargs), self._options).send()

    def put_async(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[Placed]:
        """The same with the asyncio client."""
        return _Prepared(self._function, self._function._payload(args, kwargs), self._options).send_async()


class _Prepared:
    """A task that is about to be put."""

    def __init__(self, function: TaskFunction[Any, Any], payload: Any, options: PutOptions) -> None:
        self._function, self._payload, self._options = function, payload, options

    def send(self) -> Placed:
        function = self._function
        return function.app.client.put(function.tube, self._payload, **self._options)

    def send_async(self) -> Awaitable[Placed]:
        function = self._function
        return function.app.async_client.put(function.tube, self._payload, **self._options)
