"""Clients on both sides of a fork, at the same time."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Callable, List

import taskyard
from tests.fixture import ServerTest
from tests.proxy import Proxy

#: How many tasks each side puts.
PUTS = 100


class Forks(ServerTest):
    def setUp(self) -> None:
        super().setUp()
        # Counts the connections. Its threads are in the parent.
        self.proxy = Proxy(self.server.port)
        self.addCleanup(self.proxy.close)

    def fork(self, child: Callable[[], None], parent: Callable[[], None]) -> None:
        """Runs two functions in two processes at the same time."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                child()
                code = 0
            finally:
                os._exit(code)
        try:
            parent()
        finally:
            status = os.waitpid(pid, 0)[1]
        self.assertEqual(os.waitstatus_to_exitcode(status), 0)

    def check(self, first: List[str]) -> None:
        """All tasks are there, and each process used one connection."""
        data = [task.data for task in self.client.take_many(self.tube, 10_000)]
        puts = [f"{side} {number}" for side in ("child", "parent") for number in range(PUTS)]
        self.assertEqual(sorted(data), sorted([*first, *puts]))
        self.assertEqual(self.proxy.accepted, 2)

    def test_a_forked_process_uses_connections_of_its_own(self) -> None:
        client = taskyard.Client(self.proxy.url, repeat_for=0)
        self.addCleanup(client.close)
        client.put(self.tube, "before")

        def puts(side: str) -> None:
            for number in range(PUTS):
                client.put(self.tube, f"{side} {number}")

        self.fork(lambda: puts("child"), lambda: puts("parent"))
        self.check(["before"])

    def test_a_forked_process_uses_asyncio_connections_of_its_own(self) -> None:
        client = taskyard.AsyncClient(self.proxy.url, repeat_for=0)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        async def puts(side: str) -> None:
            for number in range(PUTS):
                await client.put(self.tube, f"{side} {number}")

        def in_loop(side: str) -> None:
            asyncio.run_coroutine_threadsafe(puts(side), loop).result()

        try:
            asyncio.run_coroutine_threadsafe(client.put(self.tube, "before"), loop).result()
            self.fork(lambda: asyncio.run(puts("child")), lambda: in_loop("parent"))
            asyncio.run_coroutine_threadsafe(client.close(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
        self.check(["before"])
