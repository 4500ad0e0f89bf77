"""Builds requests, parses their answers and decides which are sent again; does no input and output itself."""

from __future__ import annotations

import base64
import json
import random
import secrets
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, TypeVar, Union

from . import msgpack
from .errors import (
    MissingFeatureError,
    OutcomeUnknownError,
    StaleDeliveryError,
    TaskyardError,
    UnavailableError,
    UnreachableError,
    error_of,
)
from .server_url import segment
from .shapes import (
    Delivery,
    FinishPart,
    JsonObject,
    NewTask,
    Placed,
    Position,
    PutOptions,
    ScheduleOptions,
    Task,
    moment,
    position_of,
    seconds,
)

T = TypeVar("T")

#: The longest wait that servers accept, in seconds.
WAIT_MAX = 300.0
#: How long the random key of a put is held after the end of its task, in seconds.
UNIQUE_FOR = 600.0
#: The pauses between repeated requests, in seconds.
PAUSE_MIN, PAUSE_MAX = 0.05, 2.0

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request."""

    method: str
    target: str
    body: Optional[bytes]
    #: Turns the answer into what the caller gets.
    parse: Callable[[Any], T]
    #: Seconds that the server may wait before it answers.
    wait: float = 0.0
    #: Whether it does no harm to send it again when its outcome is unknown.
    repeatable: bool = False
    #: The same without random keys, for stores that have no keys.
    without_keys: Optional[Callable[[], Call[T]]] = None

    def answer(self, url: object, status: int, body: bytes) -> T:
        """Parses the answer, or raises the error that it is."""
        try:
            answer = json.loads(body)
        except ValueError as error:
            if status == 200 and self.parse is text_answer:
                return self.parse(body.decode("utf-8", "replace"))
            raise error_of(url, status, None) from error
        if 200 <= status < 300:
            try:
                return self.parse(answer)
            except (KeyError, TypeError, IndexError) as error:
                raise error_of(url, status, None) from error
        raise error_of(url, status, answer)


class Repeats:
    """Decides whether and when a call is sent again, and what its answer means then."""

    def __init__(self, call: Call[Any], repeat_for: float) -> None:
        self._call = call
        self._deadline = time.monotonic() + repeat_for
        self._pause = PAUSE_MIN
        #: Why an earlier request may have been executed.
        self._unknown: Optional[OutcomeUnknownError] = None

    def pause_after(self, error: TaskyardError) -> float:
        """The seconds to wait before the call is sent again; raises the error if it must not be."""
        if isinstance(error, StaleDeliveryError) and self._unknown is not None:
            raise self._unknown from error
        if isinstance(error, OutcomeUnknownError):
            self._unknown = error
        nothing_done = isinstance(error, (UnreachableError, UnavailableError))
        may_repeat = self._call.repeatable and isinstance(error, OutcomeUnknownError)
        pause = self._pause * random.uniform(0.5, 1.0)
        if not (nothing_done or may_repeat) or time.monotonic() + pause > self._deadline:
            raise error
        self._pause = min(2 * self._pause, PAUSE_MAX)
        return pause


def get(target: str, parse: Callable[[Any], T], **query: object) -> Call[T]:
    """A request that reads; fields of the query that are None are omitted."""
    fields = [f"{name.rstrip('_')}={segment(_word(value))}" for name, value in query.items() if value is not None]
    return Call("GET", target + ("?" + "&".join(fields) if fields else ""), None, parse, repeatable=True)


def post(target: str, body: Mapping[str, Any], parse: Callable[[Any], T], wait: float = 0.0) -> Call[T]:
    """A request that changes something."""
    return Call("POST", target, json_body(body), parse, wait)


def json_body(body: Mapping[str, Any]) -> bytes:
    """The bytes of a JSON object."""
    return _encode(body).encode("ascii")


def tube_target(tube: str, verb: str = "") -> str:
    """The target of a verb of a tube; an empty verb is the tube itself."""
    return f"/v1/tubes/{segment(tube)}/{verb}" if verb else f"/v1/tubes/{segment(tube)}"


def semaphore_target(key: str, verb: str = "") -> str:
    """The target of a verb of a semaphore."""
    return f"/v1/semaphores/{segment(key)}/{verb}" if verb else f"/v1/semaphores/{segment(key)}"


def schedule_target(name: str, verb: str = "") -> str:
    """The target of a verb of a schedule."""
    return f"/v1/schedules/{segment(name)}/{verb}" if verb else f"/v1/schedules/{segment(name)}"


def set_schedule(name: str, tube: str, task: NewTask, options: ScheduleOptions) -> Call[JsonObject]:
    """Creates or replaces a schedule."""
    body: Dict[str, Any] = {**options, "tube": tube, "task": _packed(_new_task(task))}
    if "every" in options:
        body["every"] = seconds(options["every"])
    for field in ("start", "until"):
        if field in body:
            body[field] = moment(body[field])
    return Call("PUT", schedule_target(name), json_body(body), same, repeatable=not options.get("only_new"))


def create_tube(tube: str, options: Mapping[str, Any], if_not_exists: bool) -> Call[bool]:
    """Creates a tube; the answer is whether it is new."""
    body = json_body({**options, "if_not_exists": if_not_exists})
    return Call("PUT", tube_target(tube), body, lambda answer: bool(answer["created"]))


def random_key() -> str:
    """A key that no other put has. It begins with the time: stores search keys that follow each other faster."""
    return f"put:{time.time_ns() // 1_000_000:012x}{secrets.token_hex(12)}"


def put(
    tube: str,
    tasks: Iterable[Union[NewTask, Any]],
    timeout: float,
    idempotent: bool,
    repeat_for: float,
    estimate: bool = False,
) -> Call[List[Placed]]:
    """Puts tasks, all or none. Idempotent: each task without a key gets a random one, so that the put can be repeated."""
    new = [task if isinstance(task, NewTask) else NewTask(task, {}) for task in tasks]
    items = [_new_task(task) for task in new]
    generated = [idempotent and "key" not in item for item in items]
    key = random_key()
    keyed = [
        {**item, "key": f"{key}.{place}", "unique_for": UNIQUE_FOR} if is_generated else item
        for place, (item, is_generated) in enumerate(zip(items, generated))
    ]

    def call(items: List[Dict[str, Any]]) -> Call[List[Placed]]:
        body: Dict[str, Any] = {"tasks": items, "timeout": timeout} if timeout else {"tasks": items}
        body.update(asking(estimate))
        return Call("POST", tube_target(tube, "put"), _tasks_body(body), placed, timeout, is_repeatable(items))

    def placed(answer: Any) -> List[Placed]:
        # A repeated put meets its own task.
        return [
            Placed(task["id"], task["state"], task.get("existing", False) and not is_generated, position_of(task))
            for task, is_generated in zip(answer["tasks"], generated)
        ]

    def is_repeatable(items: List[Dict[str, Any]]) -> bool:
        # Each key must be held at the last repetition, which may wait for capacity, even if its task ends at once.
        return all("key" in item and item.get("unique_for", 0.0) > repeat_for + timeout for item in items)

    made = call(keyed)
    if not any(generated):
        return made
    return Call(made.method, made.target, made.body, placed, timeout, made.repeatable, lambda: call(items))


def take(tube: str, count: int, wait: float, lease: Optional[float], worker: Optional[str]) -> Call[List[Task]]:
    """Takes tasks."""
    body: Dict[str, Any] = {"count": count, "wait": wait, "lease": lease}
    if worker is not None:
        body["worker"] = worker
    return post(tube_target(tube, "take"), body, lambda answer: tasks_of(tube, answer), wait)


def finish(tube: str, parts: Iterable[FinishPart]) -> Call[List[str]]:
    """Ends or extends deliveries; the answer is `done`, `stale` or `missing` for each."""
    return post(tube_target(tube, "finish"), {"tasks": list(parts)}, lambda answer: list(answer["outcomes"]))


def finish_one(task: Union[Task, Delivery], part: FinishPart) -> Call[None]:
    """Ends or extends one delivery, which must be the current one."""
    part = {**part, "id": task.id}
    if task.lease is not None:
        part["lease"] = task.lease

    def check(answer: Any) -> None:
        if answer["outcomes"] != ["done"]:
            raise StaleDeliveryError(
                f"the delivery of task {task.id} in tube '{task.tube}' has ended; take the task again or use longer leases"
            )

    # The number of a lease is never issued twice, so that a second request cannot end another delivery.
    repeatable = task.lease is not None and part["verb"] != "touch"
    return Call("POST", tube_target(task.tube, "finish"), json_body({"tasks": [part]}), check, repeatable=repeatable)


def with_result(part: FinishPart, result: object) -> FinishPart:
    """An ack with a result; one that JSON cannot represent is sent as MessagePack."""
    if result is None:
        return part
    try:
        _encode(result)
    except (TypeError, ValueError):
        return {**part, "result_base64": base64.b64encode(msgpack.encode(result)).decode()}
    return {**part, "result": result}


def tasks_of(tube: str, answer: Any) -> List[Task]:
    """The tasks of an answer."""
    return [Task(tube, fields) for fields in answer["tasks"]]


def positions_of(answer: Any) -> List[Position]:
    """The positions of an answer."""
    return [position for position in map(position_of, answer["tasks"]) if position is not None]


def asking(estimate: bool) -> Dict[str, bool]:
    """The field of a request that asks for estimates; absent unless they are wanted, because earlier servers refuse it."""
    return {"estimate": True} if estimate else {}


def nothing(_answer: Any) -> None:
    """The answer says nothing."""


def same(answer: Any) -> Any:
    """The answer as it is."""
    return answer


def text_answer(answer: Any) -> Any:
    """An answer that is no JSON."""
    return answer


def wants_no_keys(call: Call[T], error: TaskyardError) -> Optional[Call[T]]:
    """The call without its random keys, if the error may be that the store has no keys."""
    if isinstance(error, MissingFeatureError) and call.without_keys is not None:
        return call.without_keys()
    return None


def _new_task(task: NewTask) -> Dict[str, Any]:
    options: PutOptions = task.options
    item: Dict[str, Any] = {"data": task.data}
    for name, value in options.items():
        if value is None:
            continue
        if name in ("delay", "ttl", "ttr", "unique_for"):
            value = seconds(value)  # type: ignore[arg-type]
        elif name == "at":
            value = moment(value)  # type: ignore[arg-type]
        item[name] = value
    return item


def _tasks_body(body: Dict[str, Any]) -> bytes:
    """Tasks as JSON; payloads that JSON cannot represent as MessagePack in base64."""
    try:
        return json_body(body)
    except (TypeError, ValueError):
        return json_body({**body, "tasks": [_packed(item) for item in body["tasks"]]})


def _packed(item: Dict[str, Any]) -> Dict[str, Any]:
    try:
        _encode(item["data"])
        return item
    except (TypeError, ValueError):
        rest = {name: value for name, value in item.items() if name != "data"}
        return {**rest, "data_base64": base64.b64encode(msgpack.encode(item["data"])).decode()}


def _word(value: object) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
