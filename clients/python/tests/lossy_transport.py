"""A transport that loses requests and answers, as a test says."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import taskyard
from taskyard import errors
from taskyard.transport import Answer, HttpTransport
from tests.fixture import ServerTest


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
