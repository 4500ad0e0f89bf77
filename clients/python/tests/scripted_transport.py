"""A transport that answers as a test says, and finishers that use it."""

from __future__ import annotations

import json
import unittest
from typing import Any, Callable, Dict, List, Optional, Tuple

import taskyard
from taskyard import App
from taskyard.finisher import Finisher
from taskyard.transport import Answer

#: Answers a finish request with its parts, or raises what a transport raises.
Script = Callable[[List[Dict[str, Any]]], Any]


class ScriptedTransport:
    """Answers as the test says, and notes the parts of each finish."""

    def __init__(self, answer: Script, kind: str = "fifottl") -> None:
        self._answer, self.tube = answer, {"kind": kind}
        self.task: Dict[str, Any] = {"id": 1}
        #: Answers a peek with the ids of its tasks.
        self.peek: Callable[[List[int]], Any] = lambda ids: (200, {"tasks": [self.task]})
        #: The ids of each peek.
        self.peeked: List[List[int]] = []
        #: The parts of each finish.
        self.sent: List[List[Dict[str, Any]]] = []

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        if method == "GET":
            return 200, json.dumps(self.tube).encode()
        if target.endswith("/peek"):
            self.peeked.append(json.loads(body or b"")["ids"])
            status, answer = self.peek(self.peeked[-1])
        else:
            self.sent.append(json.loads(body or b"")["tasks"])
            status, answer = self._answer(self.sent[-1])
        return status, answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()

    def close(self) -> None:
        pass


def all_done(parts: List[Dict[str, Any]]) -> Tuple[int, Any]:
    return 200, {"outcomes": ["done"] * len(parts)}


def refusal(status: int, code: str) -> Tuple[int, Any]:
    return status, {"error": {"code": code, "message": code}}


class FinisherTest(unittest.TestCase):
    """Tests of a finisher with a clock that the test moves."""

    def setUp(self) -> None:
        self.app = App("http://127.0.0.1:1", repeat_for=0)
        self.function = self.app.task("work", raw=True)(lambda data: None)
        self.other = self.app.task("other", raw=True)(lambda data: None)
        #: The time of the clock of finishers.
        self.now = 1000.0

    def task(self, id: int, lease: float = 60.0, is_other: bool = False) -> taskyard.RunningTask:
        fields = {"id": id, "lease": id, "attempts": 0, "state": "taken", "data": id}
        return taskyard.RunningTask(self.other if is_other else self.function, fields, self.now + lease)

    def finisher(self, answer: Script, kind: str = "fifottl") -> Tuple[Finisher, ScriptedTransport]:
        transport = ScriptedTransport(answer, kind)
        client = taskyard.Client("http://127.0.0.1:1", repeat_for=0, transport=transport)
        finisher = Finisher(client, lambda: self.now)
        # Tests move the clock, so that requests are repeated at once.
        finisher.pause_min = finisher.pause_max = 0.0
        self.addCleanup(finisher.stop, 0)
        return finisher, transport
