"""A transport that loses requests and answers, as a test says."""

from __future__ import annotations

import random
from typing import Any, Callable, List, Optional, Sequence

import taskyard
from taskyard import errors
from taskyard.transport import Answer, HttpTransport
from tests.fixture import ServerTest


#: So many losses in a row at most: a client gives up when a call was repeated for too long.
LOST_IN_A_ROW_MAX = 3


def random_losses(chance: random.Random, choices: Sequence[Optional[str]]) -> Callable[[], Optional[str]]:
    """Chooses one of these for each request, and none after several losses in a row."""
    in_a_row = 0

    def choose() -> Optional[str]:
        nonlocal in_a_row
        lost = chance.choice(choices)
        in_a_row = in_a_row + 1 if lost and in_a_row < LOST_IN_A_ROW_MAX else 0
        return lost if in_a_row else None

    return choose


class LossyTransport(HttpTransport):
    """Loses the answers, or the requests, that `loses` chooses."""

    loses: Callable[[], Optional[str]] = staticmethod(lambda: None)

    def exchange(self, method: str, target: str, body: Optional[bytes], wait: float) -> Answer:
        lost = self.loses()
        if lost == "request":
            raise errors.OutcomeUnknownError("the request was lost")
        answer = super().exchange(method, target, body, wait)
        if lost == "answer":
            raise errors.OutcomeUnknownError("the answer was lost")
        return answer


class LossyTest(ServerTest):
    """Tests with clients whose answers get lost."""

    def lossy(self, losses: List[Optional[str]], **options: Any) -> taskyard.Client:
        return self.lossy_by(lambda: losses.pop(0) if losses else None, **options)

    def lossy_by(self, loses: Callable[[], Optional[str]], **options: Any) -> taskyard.Client:
        client = taskyard.Client(self.server.url, **options)
        client._transport = transport = LossyTransport(client._server)
        transport.loses = loses  # type: ignore[method-assign]
        self.addCleanup(client.close)
        return client
