"""A queue in memory that answers the requests of clients in tests. Its clock stands still unless it is advanced."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, unquote

from .transport import Answer

#: When the clock begins, in seconds since the epoch.
START = 1_800_000_000.0
#: The options of a put that are not fields of the task.
_NOT_SHOWN = ("delay", "at", "ttl", "attempts_max", "unique_for", "on_conflict")


class RefusedRequest(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class MemoryTube:
    """A tube of the queue: its options and its tasks."""

    def __init__(self, name: str, options: Dict[str, Any]) -> None:
        self.name, self.options = name, options
        self.tasks: Dict[int, Dict[str, Any]] = {}
        self.next_id = 0

    def info(self) -> Dict[str, Any]:
        """The tube as a server shows it."""
        states = [task["state"] for task in self.tasks.values()]
        counts = {state: states.count(state) for state in ("ready", "taken", "delayed", "buried", "done")}
        total = len(states) - counts["done"]
        return {"kind": "fifottl", "paused": False, **self.options, "name": self.name, "tasks": {**counts, "total": total}}


class MemoryQueue:
    """Knows put, take, finish, kick, delete, peek, positions, lists of tasks, and tubes; other requests are refused."""

    def __init__(self) -> None:
        self.now = START
        self.tubes: Dict[str, MemoryTube] = {}
        #: Called with the name of the tube after each put.
        self.after_put: Callable[[str], object] = lambda tube: None
        self._leases = 0

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        """Executes a request."""
        path, _, query = target.partition("?")
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        try:
            answer = self._execute(method, path, json.loads(body) if body else fields)
        except RefusedRequest as refused:
            error = {"code": refused.code, "message": str(refused)}
            return refused.status, json.dumps({"error": error}).encode()
        if path.endswith("/put"):
            self.after_put(_tube_name(path))
        return 200, json.dumps(answer).encode()

    def close(self) -> None:
        """Has no connections."""

    def _execute(self, method: str, path: str, body: Dict[str, Any]) -> Any:
        for verb, pattern, execute in _ROUTES:
            found = re.fullmatch(pattern, path)
            if verb == method and found:
                return execute(self, *(unquote(part) for part in found.groups()), body)
        raise RefusedRequest(404, "route_not_found", f"the queue in memory does not have {method} {path}")

    def tube(self, name: str) -> MemoryTube:
        """A tube, with due tasks ready."""
        if name not in self.tubes:
            raise RefusedRequest(404, "tube_not_found", f"there is no tube '{name}'")
        tube = self.tubes[name]
        for task in list(tube.tasks.values()):
            if task["state"] == "delayed" and task["due"] <= self.now:
                task["state"] = "ready"
            elif task["state"] == "taken" and task["lease_until"] <= self.now:
                self._fail(tube, task, "lease expired", 0.0)
            # The ttl does not end a delivery, and a delay does not count.
            if task["state"] in ("ready", "buried") and task["expires"] <= self.now:
                del tube.tasks[task["id"]]
        return tube

    def put(self, name: str, body: Dict[str, Any]) -> Any:
        tube = self.tubes.setdefault(name, MemoryTube(name, {}))
        placed = [self._put(self.tube(name), item) for item in body.get("tasks", [body])]
        return {"tasks": [{**task, **self._position(tube, task["id"], body)} for task in placed], "tube": tube.name}

    def _put(self, tube: MemoryTube, item: Dict[str, Any]) -> Dict[str, Any]:
        due = item.get("at", self.now + item.get("delay", 0.0))
        given = {name: value for name, value in item.items() if name not in _NOT_SHOWN}
        ttl = item.get("ttl", tube.options.get("ttl"))
        hidden = {"expires": math.inf if ttl is None else due + ttl, "attempts_max": item.get("attempts_max")}
        state = "delayed" if due > self.now else "ready"
        held = self._holder(tube, item.get("key"))
        if held is not None:
            if item.get("on_conflict") == "replace" and held["state"] in ("ready", "delayed"):
                held.update(given, **hidden, state=state, due=due)
            return {"id": held["id"], "state": held["state"], "existing": True}
        task = {"pri": 0, "attempts": 0, "failures": [], **given, "id": tube.next_id, "state": state}
        task.update(hidden, created=self.now, due=due, unique_for=item.get("unique_for", 0.0))
        tube.tasks[tube.next_id] = task
        tube.next_id += 1
        return {"id": task["id"], "state": state}

    def _holder(self, tube: MemoryTube, key: Optional[str]) -> Optional[Dict[str, Any]]:
        if key is None:
            return None
        for task in tube.tasks.values():
            ended = task["state"] == "done" and task["finished"] + task["unique_for"] <= self.now
            if task.get("key") == key and not ended:
                return task
        return None

    def take(self, name: str, body: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        ready = [] if tube.options.get("paused") else [t for t in tube.tasks.values() if t["state"] == "ready"]
        ready.sort(key=lambda task: (task["pri"], task["id"]))
        taken = ready[: body.get("count", 1)]
        for task in taken:
            self._leases += 1
            task.update(state="taken", lease=self._leases, lease_until=self.now + (body.get("lease") or 60.0))
            task["worker"] = body.get("worker")
        return {"tasks": [shown(task) for task in taken]}

    def finish(self, name: str, body: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        outcomes = [self._finish(tube, part) for part in body["tasks"]]
        return {"done": outcomes.count("done"), "outcomes": outcomes}

    def _finish(self, tube: MemoryTube, part: Dict[str, Any]) -> str:
        task = tube.tasks.get(part["id"])
        if task is None or task["state"] == "done":
            return "missing"
        verb = part["verb"]
        is_current = task["state"] == "taken" and part.get("lease") in (None, task["lease"])
        if not is_current and not (verb == "bury" and part.get("lease") is None):
            return "stale"
        if verb == "ack":
            results = {key: value for key, value in part.items() if key.startswith("result")}
            task.update(results, state="done", finished=self.now)
        elif verb == "release":
            task["attempts"] += 1 if part.get("counted", True) else 0
            self._release(tube, task, part.get("delay") or 0.0)
        elif verb == "fail":
            self._fail(tube, task, part["error"], part.get("delay") or 0.0)
        elif verb == "bury":
            task.update(state="buried", error=part.get("error"))
        else:
            task["lease_until"] += part["seconds"]
        return "done"

    def _fail(self, tube: MemoryTube, task: Dict[str, Any], error: str, delay: float) -> None:
        task["attempts"] += 1
        task["failures"].append({"at": self.now, "attempt": task["attempts"], "error": error})
        task["error"] = error
        self._release(tube, task, delay)

    def _release(self, tube: MemoryTube, task: Dict[str, Any], delay: float) -> None:
        """Makes a task ready again, or buries it if it has used up its attempts."""
        attempts_max = task["attempts_max"] or tube.options.get("attempts_max")
        if attempts_max is not None and task["attempts"] >= attempts_max:
            task.update(state="buried")
        else:
            task.update(state="delayed" if delay > 0 else "ready", due=self.now + delay)

    def kick(self, name: str, body: Dict[str, Any]) -> Any:
        buried = [task for task in self.tube(name).tasks.values() if task["state"] == "buried"]
        kicked = buried[: body.get("count", 1)]
        for task in kicked:
            task["state"] = "ready"
        return {"kicked": len(kicked)}

    def delete(self, name: str, body: Dict[str, Any]) -> Any:
        tasks = self.tube(name).tasks
        return {"outcomes": ["done" if tasks.pop(id, None) else "missing" for id in body["ids"]]}

    def peek(self, name: str, body: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        found = [tube.tasks[id] for id in body["ids"] if id in tube.tasks]
        return {"tasks": [self._shown(tube, task, body) for task in found]}

    def positions(self, name: str, body: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        found = [(id, self._position(tube, id, {"estimate": True})) for id in body["ids"] if id in tube.tasks]
        return {"tasks": [{"id": id, "pri": tube.tasks[id]["pri"], **position} for id, position in found if position]}

    def _position(self, tube: MemoryTube, id: int, asked: Dict[str, Any]) -> Dict[str, Any]:
        """The position of a task that waits, if the request asks for it. Nothing consumes, so there is no estimate."""
        task = tube.tasks[id]
        if not asked.get("estimate") or task["state"] not in ("ready", "delayed"):
            return {}
        ready = [other for other in tube.tasks.values() if other["state"] == "ready"]
        ahead = sum((other["pri"], other["id"]) < (task["pri"], id) for other in ready)
        reason = {"name": "no_consumer", "text": "no consumer takes tasks of this tube"}
        if tube.options.get("paused"):
            reason = {"name": "tube_paused", "text": "the tube is paused"}
        return {"ahead": ahead, "no_estimate": reason}

    def _shown(self, tube: MemoryTube, task: Dict[str, Any], asked: Dict[str, Any]) -> Dict[str, Any]:
        return {**shown(task), **self._position(tube, task["id"], asked)}

    def task(self, name: str, id: str, query: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        task = tube.tasks.get(int(id))
        if task is None:
            raise RefusedRequest(404, "task_not_found", f"there is no task {id} in tube '{name}'")
        return self._shown(tube, task, query)

    def list(self, name: str, query: Dict[str, Any]) -> Any:
        states = query.get("state", "ready,taken,delayed,buried").split(",")
        tube = self.tube(name)
        tasks = [task for task in tube.tasks.values() if task["state"] in states]
        tasks = [task for task in tasks if query.get("key") in (None, task.get("key"))]
        tasks = [task for task in tasks if query.get("match", "") in json.dumps(task.get("data"), ensure_ascii=False)]
        return {"tasks": [self._shown(tube, task, query) for task in tasks], "scanned": len(tasks)}

    def truncate(self, name: str, _body: Dict[str, Any]) -> Any:
        self.tube(name).tasks.clear()
        return {}

    def release_all(self, name: str, _body: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        for task in tube.tasks.values():
            if task["state"] == "taken":
                task["attempts"] += 1
                self._release(tube, task, 0.0)
        return {}

    def show_tube(self, name: str, _body: Dict[str, Any]) -> Any:
        return self.tube(name).info()

    def show_tubes(self, _body: Dict[str, Any]) -> Any:
        return {"tubes": [self.tube(name).info() for name in self.tubes]}

    def create(self, name: str, options: Dict[str, Any]) -> Any:
        if name in self.tubes and not options.get("if_not_exists"):
            raise RefusedRequest(409, "tube_exists", f"tube '{name}' exists already")
        created = name not in self.tubes
        given = {key: value for key, value in options.items() if key != "if_not_exists"}
        self.tubes.setdefault(name, MemoryTube(name, given))
        return {"created": created}

    def alter(self, name: str, change: Dict[str, Any]) -> Any:
        tube = self.tube(name)
        tube.options.update(change)
        return tube.info()

    def drop(self, name: str, _body: Dict[str, Any]) -> Any:
        del self.tubes[self.tube(name).name]
        return {}


def shown(task: Dict[str, Any]) -> Dict[str, Any]:
    """A task as a server shows it: without what is unknown."""
    shows_lease = task["state"] == "taken"
    hidden = ("expires",) if shows_lease else ("expires", "lease", "lease_until")
    return {name: value for name, value in task.items() if value is not None and name not in hidden}


def _tube_name(path: str) -> str:
    return unquote(path.split("/")[3])


_TUBE = "/v1/tubes/([^/]+)"
_ROUTES: List[Tuple[str, str, Callable[..., Any]]] = [
    ("POST", f"{_TUBE}/put", MemoryQueue.put),
    ("POST", f"{_TUBE}/take", MemoryQueue.take),
    ("POST", f"{_TUBE}/finish", MemoryQueue.finish),
    ("POST", f"{_TUBE}/kick", MemoryQueue.kick),
    ("POST", f"{_TUBE}/delete", MemoryQueue.delete),
    ("POST", f"{_TUBE}/peek", MemoryQueue.peek),
    ("POST", f"{_TUBE}/positions", MemoryQueue.positions),
    ("POST", f"{_TUBE}/truncate", MemoryQueue.truncate),
    ("POST", f"{_TUBE}/release-all", MemoryQueue.release_all),
    ("GET", f"{_TUBE}/tasks/([0-9]+)", MemoryQueue.task),
    ("GET", f"{_TUBE}/tasks", MemoryQueue.list),
    ("GET", "/v1/tubes", MemoryQueue.show_tubes),
    ("GET", _TUBE, MemoryQueue.show_tube),
    ("PUT", _TUBE, MemoryQueue.create),
    ("PATCH", _TUBE, MemoryQueue.alter),
    ("DELETE", _TUBE, MemoryQueue.drop),
]
