"""The values of the API: tasks, options of a put, and the answers about tubes, semaphores and the server."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, TypedDict, Union

from . import msgpack

#: A duration in seconds, or as a timedelta.
Seconds = Union[float, timedelta]
#: A moment in seconds since the epoch, or as a datetime.
Moment = Union[float, datetime]
#: A JSON object of the server.
JsonObject = Dict[str, Any]


class Delivery(NamedTuple):
    """Names a delivery of a task. Without a lease the current delivery is meant, of any holder."""

    tube: str
    id: int
    lease: Optional[int] = None


class Estimate(NamedTuple):
    """When a task will start, in seconds from now."""

    #: Tasks that go first: ready ones and those that run.
    ahead: int
    #: Half of such tasks start within this time.
    p50: float
    #: Nine of ten such tasks start within this time.
    p90: float
    #: What decides it: `idle_consumer`, `run_times`, `subqueue`, `rate_limit`, `semaphore` or `delay`.
    basis: str


class NoEstimate(NamedTuple):
    """Why there is no estimate."""

    #: The reason, for programs: `no_consumer`, `tube_paused` or `no_history`.
    name: str
    #: The reason, for people.
    text: str


class Position(NamedTuple):
    """Where a waiting task is in the queue, and when it will start."""

    id: int
    #: Ready tasks that go first.
    ahead: int
    #: Whether the numbers are estimates themselves, within 5 %.
    approximate: bool = False
    #: When it will start; None if that is not known.
    estimate: Optional[Estimate] = None
    #: Why there is no estimate.
    no_estimate: Optional[NoEstimate] = None
    #: When it will be ready, if it is delayed, in seconds since the epoch.
    due: Optional[float] = None
    #: Delayed tasks that go first and will be ready within 1, 2, 4, … seconds.
    delayed_ahead: Tuple[int, ...] = ()
    #: Ready tasks of its sub-queue that go first.
    subqueue_ahead: Optional[int] = None
    #: Whether a task of its sub-queue runs.
    subqueue_busy: bool = False
    #: Waiting members of the semaphore of the tube that get a grant first.
    semaphore_ahead: Optional[int] = None


class Placed(NamedTuple):
    """Where a put led."""

    id: int
    state: str
    #: Whether a task held the key, so that none was added; `id` and `state` are those of that task.
    existing: bool = False
    #: Where the task is in the queue, if the put asked for it with `estimate=True` and the task waits.
    position: Optional[Position] = None


class Task:
    """A task as the server shows it. `fields` are all fields of the answer."""

    __slots__ = ("tube", "id", "lease", "fields")

    def __init__(self, tube: str, fields: JsonObject) -> None:
        self.tube = tube
        self.fields = fields
        self.id: int = fields["id"]
        #: The number of this delivery; None unless the task is taken.
        self.lease: Optional[int] = fields.get("lease")

    @property
    def data(self) -> Any:
        """The payload."""
        fields = self.fields
        return value_of(fields, "data") if "data_base64" in fields else fields.get("data")

    @property
    def result(self) -> Any:
        """The result that the ack gave, in tubes with `keep_done`."""
        return value_of(self.fields, "result")

    @property
    def meta(self) -> Optional[Dict[str, Any]]:
        """The small object that is stored with the task."""
        meta: Optional[Dict[str, Any]] = value_of(self.fields, "meta")
        return meta

    @property
    def state(self) -> str:
        """`ready`, `taken`, `delayed`, `buried` or `done`."""
        state: str = self.fields["state"]
        return state

    @property
    def attempts(self) -> int:
        """How many deliveries failed or were released."""
        attempts: int = self.fields["attempts"]
        return attempts

    @property
    def position(self) -> Optional[Position]:
        """Where the task is in the queue, if the request asked for it with `estimate=True` and the task waits."""
        return position_of(self.fields)

    @property
    def failures(self) -> List[JsonObject]:
        """The latest failures, in the answer for one task."""
        failures: List[JsonObject] = self.fields.get("failures") or []
        return failures

    def __repr__(self) -> str:
        return f"<Task {self.tube}/{self.id} {self.state}>"


def position_of(fields: JsonObject) -> Optional[Position]:
    """The position among the fields of a task; None if there is none."""
    ahead: Optional[int] = fields.get("ahead")
    if ahead is None:
        return None
    estimate, reason = fields.get("estimate"), fields.get("no_estimate")
    return Position(
        fields["id"],
        ahead,
        fields.get("approximate", False),
        None if estimate is None else Estimate(estimate["ahead"], estimate["p50"], estimate["p90"], estimate["basis"]),
        None if reason is None else NoEstimate(reason["name"], reason["text"]),
        fields.get("due") if fields.get("state", "delayed") == "delayed" else None,
        tuple(fields.get("delayed_ahead", ())),
        fields.get("subqueue_ahead"),
        fields.get("subqueue_busy", False),
        fields.get("semaphore_ahead"),
    )


def value_of(fields: Mapping[str, Any], name: str) -> Any:
    """A value that is JSON, or MessagePack in base64 if JSON cannot represent it."""
    packed = fields.get(f"{name}_base64")
    return fields.get(name) if packed is None else msgpack.decode(base64.b64decode(packed))


class PutOptions(TypedDict, total=False):
    """The options of one task."""

    delay: Optional[Seconds]
    at: Optional[Moment]
    pri: Optional[int]
    ttl: Optional[Seconds]
    ttr: Optional[Seconds]
    key: Optional[str]
    unique_for: Optional[Seconds]
    on_conflict: Optional[str]
    subqueue: Optional[str]
    attempts_max: Optional[int]
    semaphore_priority: Optional[float]
    meta: Optional[Mapping[str, Any]]


#: The names of the options of a task.
PUT_OPTIONS = frozenset(PutOptions.__annotations__)


@dataclass(frozen=True)
class NewTask:
    """A task to put, with options of its own: `NewTask({"to": "ann"}, {"delay": 60})`."""

    data: Any
    options: PutOptions


class Retries(TypedDict, total=False):
    """The retry policy of a tube."""

    delay: float
    factor: float
    delay_max: float
    jitter: float


class Rate(TypedDict, total=False):
    """The rate limit of a tube."""

    count: int
    per: float
    burst: int


class TubeChange(TypedDict, total=False):
    """The options of a tube that can be changed; None removes a limit."""

    attempts_max: Optional[int]
    capacity: Optional[int]
    delay: Optional[float]
    keep_done: Optional[float]
    keep_done_max: Optional[int]
    paused: bool
    pri: Optional[int]
    rate: Optional[Rate]
    retry: Optional[Retries]
    retry_lost: bool
    ttl: Optional[float]
    ttr: Optional[float]


class TubeOptions(TubeChange, total=False):
    """The options with which a tube is created."""

    kind: str
    temporary: bool
    ttl_kills_taken: bool
    semaphore: Optional[str]
    queue_num: Optional[int]
    lenient: bool


class TaskFilter(TypedDict, total=False):
    """Which tasks a list shows or an action changes."""

    state: str
    match: str
    key: str
    subqueue: str
    worker: str
    error: str
    attempts_min: int
    created_from: float
    created_until: float
    finished_from: float
    finished_until: float


class SemaphoreOptions(TypedDict, total=False):
    """The options of a semaphore."""

    active: Optional[int]
    lease: Optional[float]
    ack_timeout: Optional[float]
    cool_down: Optional[float]
    drop_expired: Optional[bool]
    force: Optional[bool]
    margin: Optional[float]
    max_revoking: Optional[int]
    min_hold: Optional[float]
    only_new: bool
    revoke_grace: Optional[float]
    shed: Optional[bool]
    try_release: Optional[int]


class ScheduleOptions(TypedDict, total=False):
    """When a schedule puts its task: `cron` with `zone`, or `every` with `start`; `catch_up` is `none`, `last` or `all`,
    `overlap` is `allow` or `skip`."""

    cron: str
    zone: str
    every: Seconds
    start: Moment
    until: Moment
    catch_up: str
    overlap: str
    paused: bool
    only_new: bool


class FinishPart(TypedDict, total=False):
    """One delivery and how it ends: `verb` is `ack`, `release`, `bury`, `fail` or `touch`."""

    verb: str
    id: int
    lease: Optional[int]
    result: Any
    result_base64: str
    error: Optional[str]
    delay: Optional[float]
    #: The delay of a failure in tubes without a retry policy.
    default_delay: float
    counted: bool
    seconds: float


class GrantFinish(TypedDict, total=False):
    """What to do with a grant of a semaphore: `finish` is `release`, `yield`, `decline` or `extend`."""

    task: int
    grant: Optional[int]
    finish: str
    seconds: Optional[float]


class TaskPage(NamedTuple):
    """A page of a list of tasks; without `next` the list is complete."""

    tasks: List[Task]
    next: Optional[str]
    scanned: int


def seconds(value: Seconds) -> float:
    """A duration in seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def moment(value: Moment) -> float:
    """A moment in seconds since the epoch."""
    return value.timestamp() if isinstance(value, datetime) else value
