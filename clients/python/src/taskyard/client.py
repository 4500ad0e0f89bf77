"""The blocking client: every verb of the queue as a method.

`async_client.py` is made from this file by `make_async_client.py`.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Mapping, Optional, Sequence, Type, Union, cast

from . import calls
from .sender import Sender
from .shapes import (
    Delivery,
    FinishPart,
    GrantFinish,
    JsonObject,
    NewTask,
    Placed,
    Position,
    PutOptions,
    ScheduleOptions,
    Seconds,
    SemaphoreOptions,
    Task,
    TaskFilter,
    TaskPage,
    TubeChange,
    TubeOptions,
    seconds,
)
from .worker_name import worker_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: The lease of a delivery unless a take sets another, in seconds.
LEASE_DEFAULT = 60.0


class Client(Sender):
    """A client of the server at a URL, by default that of `TASKYARD_URL`. Threads may share it.

    `idempotent`: puts without a key get a random one, so that a put whose answer was lost can be repeated without adding a
    second task. `repeat_for`: for how many seconds requests are repeated that did not reach the server, were refused because
    it is starting, stopping or overloaded, or whose answer was lost, if it does no harm to repeat them. `timeout`: how many
    seconds the server may take to answer.
    """

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    # Tasks

    def put(
        self,
        tube: str,
        data: Any,
        *,
        timeout: Seconds = 0.0,
        estimate: bool = False,
        **options: Unpack[PutOptions],
    ) -> Placed:
        """Adds a task. When this returns, the task is as durable as the store of the server.

        `timeout` is how long to wait while the tube is full. With `estimate` the answer has the position of the task.
        """
        task, has_keys = NewTask(data, options), self._idempotent and self._has_keys
        call = calls.put(tube, [task], seconds(timeout), has_keys, self._repeat_for, estimate)
        return self._send(call)[0]

    def put_many(
        self,
        tube: str,
        tasks: Iterable[Union[NewTask, Any]],
        *,
        timeout: Seconds = 0.0,
        estimate: bool = False,
    ) -> List[Placed]:
        """Adds tasks, all or none; each is a payload, or a `NewTask` with options. At most 100 with `estimate`."""
        has_keys = self._idempotent and self._has_keys
        call = calls.put(tube, tasks, seconds(timeout), has_keys, self._repeat_for, estimate)
        return self._send(call)

    def take(
        self,
        tube: str,
        *,
        wait: Seconds = 0.0,
        lease: Optional[Seconds] = LEASE_DEFAULT,
        worker: Optional[str] = None,
    ) -> Optional[Task]:
        """Takes the next task, waiting up to `wait` for one. Without a lease the delivery lasts the task's ttr."""
        tasks = self.take_many(tube, 1, wait=wait, lease=lease, worker=worker)
        return tasks[0] if tasks else None

    def take_many(
        self,
        tube: str,
        count: int,
        *,
        wait: Seconds = 0.0,
        lease: Optional[Seconds] = LEASE_DEFAULT,
        worker: Optional[str] = None,
    ) -> List[Task]:
        """Takes up to `count` tasks, waiting up to `wait` for the first."""
        left, held = seconds(wait), None if lease is None else seconds(lease)
        while True:
            now = min(left, calls.WAIT_MAX)
            left -= now
            tasks = self._send(calls.take(tube, count, now, held, worker or worker_name()))
            if tasks or left <= 0:
                return tasks

    def ack(self, task: Union[Task, Delivery], result: Any = None) -> None:
        """Marks a task as done and removes it; a tube with `keep_done` keeps it with its result."""
        self._send(calls.finish_one(task, calls.with_result({"verb": "ack"}, result)))

    def release(self, task: Union[Task, Delivery], *, delay: Seconds = 0.0, counted: bool = True) -> None:
        """Returns a task to its tube. Uncounted, the delivery does not count as an attempt."""
        self._send(calls.finish_one(task, {"verb": "release", "delay": seconds(delay), "counted": counted}))

    def bury(self, task: Union[Task, Delivery], error: Optional[str] = None) -> None:
        """Sets a task aside until it is kicked."""
        self._send(calls.finish_one(task, {"verb": "bury", "error": error}))

    def fail(self, task: Union[Task, Delivery], error: str, *, delay: Optional[Seconds] = None) -> None:
        """Reports a failed delivery. Without a delay the retry policy of the tube decides about the next one."""
        part: FinishPart = {"verb": "fail", "error": error, "delay": None if delay is None else seconds(delay)}
        self._send(calls.finish_one(task, part))

    def touch(self, task: Union[Task, Delivery], more: Seconds) -> None:
        """Extends the lease of a delivery by so many seconds."""
        self._send(calls.finish_one(task, {"verb": "touch", "seconds": seconds(more)}))

    def finish(self, tube: str, parts: Sequence[FinishPart]) -> List[str]:
        """Ends or extends deliveries in one step; the outcome of each is `done`, `stale` or `missing`."""
        return self._send(calls.finish(tube, parts))

    def kick(self, tube: str, count: int = 1) -> int:
        """Makes up to `count` buried tasks ready again and returns how many there were."""
        call = calls.post(calls.tube_target(tube, "kick"), {"count": count}, lambda answer: cast(int, answer["kicked"]))
        return self._send(call)

    def delete(self, tube: str, ids: Sequence[int]) -> List[str]:
        """Removes tasks in any state; the outcome of each is `done` or `missing`."""
        body = {"ids": list(ids)}
        return self._send(calls.post(calls.tube_target(tube, "delete"), body, lambda answer: list(answer["outcomes"])))

    def peek(self, tube: str, ids: Sequence[int], *, estimate: bool = False) -> List[Task]:
        """Shows tasks, each with the reason why it does not run; unknown tasks are omitted. At most 100 with `estimate`."""
        body = {"ids": list(ids), **calls.asking(estimate)}
        return self._send(calls.post(calls.tube_target(tube, "peek"), body, lambda answer: calls.tasks_of(tube, answer)))

    def positions(self, tube: str, ids: Sequence[int]) -> List[Position]:
        """Where up to 100 tasks are in the queue and when they will start; those that do not wait are omitted."""
        body = {"ids": list(ids)}
        return self._send(calls.post(calls.tube_target(tube, "positions"), body, calls.positions_of))

    def task(self, tube: str, id: int, *, estimate: bool = False) -> Task:
        """One task with its failures; with `estimate` also with its position, if it waits."""
        target = calls.tube_target(tube, f"tasks/{id}")
        return self._send(calls.get(target, lambda answer: Task(tube, answer), **calls.asking(estimate)))

    def tasks_page(
        self,
        tube: str,
        *,
        after: Optional[str] = None,
        limit: int = 100,
        order: Optional[str] = None,
        estimate: bool = False,
        **filter: Unpack[TaskFilter],
    ) -> TaskPage:
        """A page of the tasks of a tube that match the filter; with `estimate` also with their positions, if they wait."""

        def page(answer: Any) -> TaskPage:
            return TaskPage(calls.tasks_of(tube, answer), answer.get("next"), answer["scanned"])

        target = calls.tube_target(tube, "tasks")
        query = {**filter, **calls.asking(estimate)}
        return self._send(calls.get(target, page, after=after, limit=limit, order=order, **query))

    def tasks(
        self, tube: str, *, order: Optional[str] = None, estimate: bool = False, **filter: Unpack[TaskFilter]
    ) -> Iterator[Task]:
        """All tasks of a tube that match the filter, page by page. Payloads over 1 KiB are cut."""
        after, limit = None, 1000
        while True:
            page = self.tasks_page(tube, after=after, limit=limit, order=order, estimate=estimate, **filter)
            for task in page.tasks:
                yield task
            after = page.next
            if after is None:
                return

    def change_tasks(
        self,
        tube: str,
        action: str,
        *,
        ids: Optional[Sequence[int]] = None,
        filter: Optional[TaskFilter] = None,
        after: Optional[str] = None,
        limit: Optional[int] = None,
        dry_run: bool = False,
        reset_attempts: bool = False,
        error: Optional[str] = None,
        delay: Optional[Seconds] = None,
    ) -> JsonObject:
        """Does `kick`, `delete`, `bury` or `release` with chosen tasks.

        With a filter this is one step; `next` of the answer, given as `after`, continues.
        """
        given: JsonObject = {"filter": filter, "after": after, "limit": limit, "error": error}
        given["ids"] = None if ids is None else list(ids)
        given["delay"] = None if delay is None else seconds(delay)
        body = {name: value for name, value in given.items() if value is not None}
        body.update({"dry_run": True} if dry_run else {}, **({"reset_attempts": True} if reset_attempts else {}))
        return self._send(calls.post(calls.tube_target(tube, f"tasks/{action}"), body, calls.same))

    def truncate(self, tube: str) -> None:
        """Removes all tasks of a tube."""
        self._send(calls.post(calls.tube_target(tube, "truncate"), {}, calls.nothing))

    def release_all(self, tube: str) -> None:
        """Releases all taken tasks of a tube."""
        self._send(calls.post(calls.tube_target(tube, "release-all"), {}, calls.nothing))

    def deliveries(self, tube: str, count: int = 1000) -> List[JsonObject]:
        """The taken tasks of a tube."""
        target = calls.tube_target(tube, "deliveries")
        return self._send(calls.get(target, lambda answer: list(answer["deliveries"]), count=count))

    def consumers(self, tube: str, count: int = 1000) -> List[JsonObject]:
        """The takes that wait for a task of a tube on this server."""
        target = calls.tube_target(tube, "consumers")
        return self._send(calls.get(target, lambda answer: list(answer["consumers"]), count=count))

    # Tubes

    def tubes(self, *, internal: bool = False, estimate: bool = False) -> List[JsonObject]:
        """All tubes with their options and counters; with `estimate` also when their ready tasks will have started."""
        query = {"internal": internal, **calls.asking(estimate)}
        return self._send(calls.get("/v1/tubes", lambda answer: list(answer["tubes"]), **query))

    def tube(self, tube: str, *, estimate: bool = False) -> JsonObject:
        """One tube with its options and counters; with `estimate` also when its ready tasks will have started."""
        return self._send(calls.get(calls.tube_target(tube), calls.same, **calls.asking(estimate)))

    def create_tube(self, tube: str, *, if_not_exists: bool = False, **options: Unpack[TubeOptions]) -> bool:
        """Creates a tube and returns whether it is new."""
        return self._send(calls.create_tube(tube, cast(Mapping[str, Any], options), if_not_exists))

    def alter_tube(self, tube: str, **change: Unpack[TubeChange]) -> JsonObject:
        """Changes options of a tube; None removes a limit."""
        body = calls.json_body(cast(Mapping[str, Any], change))
        return self._send(calls.Call("PATCH", calls.tube_target(tube), body, calls.same, repeatable=True))

    def pause_tube(self, tube: str) -> JsonObject:
        """Stops the deliveries of a tube; everything else continues."""
        return self.alter_tube(tube, paused=True)

    def resume_tube(self, tube: str) -> JsonObject:
        """Resumes the deliveries of a tube."""
        return self.alter_tube(tube, paused=False)

    def rename_tube(self, tube: str, name: str, queue_num: Optional[int] = None) -> JsonObject:
        """Gives a tube another name; its tasks stay."""
        body: JsonObject = {"name": name} if queue_num is None else {"name": name, "queue_num": queue_num}
        return self._send(calls.post(calls.tube_target(tube, "name"), body, calls.same))

    def drop_tube(self, tube: str) -> None:
        """Removes a tube with its tasks, unless one is taken or a consumer waits."""
        self._send(calls.Call("DELETE", calls.tube_target(tube), None, calls.nothing))

    # Schedules

    def schedules(self) -> List[JsonObject]:
        """All schedules."""
        schedules: List[JsonObject] = []
        after = None
        while True:
            page: JsonObject = self._send(calls.get("/v1/schedules", calls.same, count=1000, after=after))
            schedules.extend(page["schedules"])
            after = page.get("next")
            if after is None:
                return schedules

    def schedule(self, name: str) -> JsonObject:
        """One schedule."""
        return self._send(calls.get(calls.schedule_target(name), calls.same))

    def set_schedule(
        self,
        name: str,
        tube: str,
        data: Any,
        *,
        options: Optional[PutOptions] = None,
        **timing: Unpack[ScheduleOptions],
    ) -> JsonObject:
        """Creates or replaces a schedule that puts a task with these data and options into a tube that exists."""
        return self._send(calls.set_schedule(name, tube, NewTask(data, options or {}), timing))

    def drop_schedule(self, name: str) -> None:
        """Removes a schedule; its tasks stay."""
        self._send(calls.Call("DELETE", calls.schedule_target(name), None, calls.nothing))

    def schedule_times(self, name: str, count: int = 20) -> List[float]:
        """The next times of a schedule, in seconds since the epoch."""
        target = calls.schedule_target(name, "next")
        return self._send(calls.get(target, lambda answer: list(answer["times"]), count=count))

    def run_schedule(self, name: str) -> JsonObject:
        """Puts the task of a schedule now; its times stay."""
        return self._send(calls.post(calls.schedule_target(name, "run"), {}, calls.same))

    def pause_schedule(self, name: str) -> JsonObject:
        """Pauses a schedule."""
        return self._send(calls.post(calls.schedule_target(name, "pause"), {}, calls.same))

    def resume_schedule(self, name: str) -> JsonObject:
        """Resumes a schedule; times that were missed are caught up as it says."""
        return self._send(calls.post(calls.schedule_target(name, "resume"), {}, calls.same))

    # Semaphores

    def semaphores(self) -> List[JsonObject]:
        """All semaphores."""
        return self._send(calls.get("/v1/semaphores", lambda answer: list(answer["semaphores"])))

    def semaphore(self, key: str) -> JsonObject:
        """One semaphore."""
        return self._send(calls.get(calls.semaphore_target(key), calls.same))

    def set_semaphore(self, key: str, **options: Unpack[SemaphoreOptions]) -> JsonObject:
        """Creates a semaphore or changes its options."""
        body = calls.json_body(cast(Mapping[str, Any], options))
        return self._send(calls.Call("PUT", calls.semaphore_target(key), body, calls.same, repeatable=True))

    def drop_semaphore(self, key: str, *, force: bool = False) -> None:
        """Removes a semaphore; `force` even if tasks hold grants or wait."""
        target = calls.semaphore_target(key) + ("?force=true" if force else "")
        self._send(calls.Call("DELETE", target, None, calls.nothing))

    def semaphore_holders(self, key: str, count: int = 1000, after: Optional[str] = None) -> JsonObject:
        """The tasks that hold a grant, best first: a page with `tasks` and `next`."""
        return self._send(calls.get(calls.semaphore_target(key, "holders"), calls.same, count=count, after=after))

    def semaphore_waiting(self, key: str, count: int = 1000, after: Optional[str] = None) -> JsonObject:
        """The tasks that wait for a grant, best first: a page with `tasks` and `next`."""
        return self._send(calls.get(calls.semaphore_target(key, "waiting"), calls.same, count=count, after=after))

    def enqueue(self, key: str, priorities: Mapping[int, float]) -> List[JsonObject]:
        """Enqueues tasks of a semaphore with their priorities, or changes these."""
        tasks = [{"task": task, "priority": priority} for task, priority in priorities.items()]
        target = calls.semaphore_target(key, "enqueue")
        return self._send(calls.post(target, {"tasks": tasks}, lambda answer: list(answer["tasks"])))

    def finish_grants(self, key: str, items: Sequence[GrantFinish]) -> List[str]:
        """Releases, yields, declines or extends grants; answers the outcome of each."""
        target = calls.semaphore_target(key, "finish")
        return self._send(calls.post(target, {"items": list(items)}, lambda answer: list(answer["outcomes"])))

    def peek_semaphore(self, key: str, tasks: Sequence[int]) -> List[JsonObject]:
        """Shows tasks of a semaphore: their status, priorities and grants."""
        target = calls.semaphore_target(key, "peek")
        return self._send(calls.post(target, {"tasks": list(tasks)}, lambda answer: list(answer["tasks"])))

    def semaphore_events(
        self, *, semaphore: Optional[str] = None, count: int = 100, wait: Seconds = 0.0
    ) -> List[JsonObject]:
        """Fetches events of semaphores, waiting up to `wait` for the first."""
        body: JsonObject = {"count": count, "wait": seconds(wait)}
        if semaphore is not None:
            body["semaphore"] = semaphore
        parse = lambda answer: list(answer["events"])  # noqa: E731
        return self._send(calls.post("/v1/semaphore-events", body, parse, seconds(wait)))

    def ack_semaphore_events(self, events: Sequence[int]) -> int:
        """Acknowledges events by their ids and returns how many there were."""
        body = {"events": list(events)}
        parse = lambda answer: cast(int, answer["acknowledged"])  # noqa: E731
        return self._send(calls.post("/v1/semaphore-events/ack", body, parse))

    # The server

    def stats(self, *, internal: bool = False, estimate: bool = False) -> JsonObject:
        """All tubes, their totals, and the server: version, store, uptime."""
        return self._send(calls.get("/v1/stats", calls.same, internal=internal, **calls.asking(estimate)))

    def series(
        self,
        tube: Optional[str] = None,
        *,
        start: Optional[float] = None,
        step: Optional[str] = None,
        all_servers: bool = False,
    ) -> JsonObject:
        """The time series of a tube or of all tubes; a negative `start` is so many seconds ago."""
        return self._send(
            calls.get("/v1/series", calls.same, tube=tube, from_=start, step=step, all=all_servers or None)
        )

    def workers(self, *, internal: bool = False, all_servers: bool = False) -> List[JsonObject]:
        """The workers that took tasks from this server in the last hour or hold tasks."""
        workers: List[JsonObject] = []
        after = None
        while True:
            call = calls.get("/v1/workers", calls.same, internal=internal, after=after, all=all_servers or None)
            page: JsonObject = self._send(call)
            workers.extend(page["workers"])
            after = page.get("next")
            if after is None:
                return workers

    def audit(self, *, limit: Optional[int] = None) -> List[JsonObject]:
        """The latest actions of operators and administrators, the newest first."""
        return self._send(calls.get("/v1/audit", lambda answer: list(answer["entries"]), limit=limit))

    def services(self) -> List[JsonObject]:
        """The services that are hosted beside the queue."""
        return self._send(calls.get("/v1/services", lambda answer: list(answer["services"])))

    def manager(self) -> JsonObject:
        """The manager of typed workers."""
        return self._send(calls.get("/v1/manager", calls.same))

    def health(self) -> JsonObject:
        """The status of the server, while it and its store work."""
        return self._send(calls.get("/healthz", calls.same))

    def openapi(self) -> JsonObject:
        """The OpenAPI document of the server."""
        return self._send(calls.get("/openapi.json", calls.same))

    def metrics(self) -> str:
        """The metrics of the server in the text format of Prometheus."""
        return cast(str, self._send(calls.get("/metrics", calls.text_answer)))
