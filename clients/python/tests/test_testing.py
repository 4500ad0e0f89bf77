"""The queue in memory for the tests of applications."""

from __future__ import annotations

import asyncio
import unittest
from typing import List

import taskyard
from taskyard import App


class Testing(unittest.TestCase):
    def setUp(self) -> None:
        self.app = App("http://127.0.0.1:1", repeat_for=0)
        self.sent: List[str] = []

        @self.app.task("mail", retries=2)
        def send(to: str) -> str:
            if to == "wrong":
                raise ValueError("no such user")
            self.sent.append(to)
            if to == "chain":
                send.put("linked")
            return f"sent to {to}"

        @self.app.task("async")
        async def later(to: str) -> None:
            await asyncio.sleep(0)
            await send.put_async(to)

        self.send, self.later = send, later

    def test_tasks_wait_until_they_are_run(self) -> None:
        with self.app.testing() as queue:
            self.send.put("ann")
            self.later.put("ben")
            self.send.put("chain")
            self.assertEqual(self.sent, [])
            self.assertEqual([task.data for task in queue.tasks("mail")], [{"to": "ann"}, {"to": "chain"}])
            self.assertEqual(queue.run(), 5)
            self.assertEqual(sorted(self.sent), ["ann", "ben", "chain", "linked"])
            self.assertEqual([task.result for task in queue.tasks("mail", "done")][0], "sent to ann")

    def test_delays_pass_by_hand(self) -> None:
        with self.app.testing() as queue:
            self.send.put("ann", delay=60)
            self.assertEqual((queue.run(), queue.advance(59), queue.advance(1)), (0, 0, 1))

    def test_inline_tasks_run_at_once(self) -> None:
        with self.app.testing(inline=True):
            self.later.put("ann")
            self.assertEqual(self.sent, ["ann"])
            with self.assertRaises(ValueError):
                self.send.put("wrong")

    def test_failures_are_retried_and_buried(self) -> None:
        with self.app.testing() as queue:
            self.send.put("wrong")
            with self.assertRaises(ValueError):
                queue.run()
            queue.raises = False
            self.assertEqual((queue.run(), queue.advance(1), queue.advance(2)), (0, 1, 1))
            task = queue.tasks("mail", "buried")[0]
            self.assertTrue(task.fields["error"].startswith("ValueError: no such user"))
            self.assertEqual(self.app.client.kick("mail"), 1)

    def test_keys_and_the_client(self) -> None:
        with self.app.testing() as queue:
            self.assertFalse(self.send.put("ann", key="ann-1").existing)
            self.assertTrue(self.send.put("ben", key="ann-1").existing)
            replaced = self.send.options(key="ann-1", on_conflict="replace").put("cy")
            self.assertEqual(replaced.id, 0)
            queue.run()
            self.assertEqual(self.sent, ["cy"])
            client = self.app.client
            client.create_tube("other", if_not_exists=True)
            client.put("other", b"\x00")
            task = client.take("other")
            self.assertEqual(task.data, b"\x00")
            client.release(task, delay=5)
            self.assertEqual([task.state for task in client.tasks("other")], ["delayed"])
            with self.assertRaises(taskyard.RefusedError):
                client.semaphores()

    def test_options_of_tasks_and_tubes(self) -> None:
        """`ttl` and `attempts_max` had no effect, and lists ignored `match`."""
        client = self.app.client
        with self.app.testing() as queue:
            queue.raises = False
            self.send.options(ttl=10, delay=5).put("ann")
            self.send.put("ben")
            self.assertEqual([task.data for task in client.tasks("mail", match="be")], [{"to": "ben"}])
            client.pause_tube("mail")
            self.assertEqual((queue.advance(14), len(queue.tasks("mail"))), (0, 2))
            self.assertEqual((queue.advance(1), len(queue.tasks("mail"))), (0, 1))
            client.resume_tube("mail")
            self.assertEqual((queue.run(), self.sent), (1, ["ben"]))
            client.create_tube("limited", attempts_max=2)
            fails = self.app.task("limited", raw=True)(lambda number: 1 // 0)
            fails.put(0)
            fails.options(attempts_max=1).put(1)
            self.assertEqual((queue.run(), len(queue.tasks("limited", "buried"))), (2, 1))
            self.assertEqual((queue.advance(1), len(queue.tasks("limited", "buried"))), (1, 2))

    def test_tasks_have_positions_and_no_estimates(self) -> None:
        client = self.app.client
        with self.app.testing() as queue:
            self.send.put("ann")
            placed = client.put("mail", {"to": "ben"}, pri=1, estimate=True)
            assert placed.position is not None and placed.position.no_estimate is not None
            self.assertEqual((placed.position.ahead, placed.position.no_estimate.name), (1, "no_consumer"))
            self.assertEqual([position.ahead for position in client.positions("mail", [1, 0, 9])], [1, 0])
            self.assertEqual(client.task("mail", 1, estimate=True).position, placed.position)
            self.assertEqual(client.peek("mail", [1], estimate=True)[0].position, placed.position)
            self.assertEqual([task.position is None for task in client.tasks("mail")], [True, True])
            self.assertEqual([task.position is None for task in client.tasks("mail", estimate=True)], [False, False])
            client.pause_tube("mail")
            paused = client.positions("mail", [1])[0].no_estimate
            self.assertEqual(paused, taskyard.NoEstimate("tube_paused", "the tube is paused"))
            client.resume_tube("mail")
            queue.run()
            self.assertEqual(client.positions("mail", [0, 1]), [])

    def test_a_worker_does_not_run_inside_of_a_test(self) -> None:
        """Its threads took tasks from the real server."""
        with self.app.testing():
            with self.assertRaises(RuntimeError):
                self.app.worker().start()

    def test_the_server_is_used_again_afterwards(self) -> None:
        with self.app.testing():
            with self.assertRaises(RuntimeError), self.app.testing():
                pass
        with self.assertRaises(taskyard.UnreachableError):
            self.send.put("ann")
