"""Every verb of both clients against a server."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import math
import os
import threading
from typing import Any, Callable, List

import taskyard
from taskyard import errors
from taskyard.client import Client
from tests.fixture import Server, ServerTest, wait_until


#: Servers refuse tokens that can be guessed.
TOKEN = "0123456789abcdef" * 2


class BlockingLoop:
    """The asyncio client with blocking methods, so that both clients run the same tests."""

    def __init__(self, client: taskyard.AsyncClient, loop: asyncio.AbstractEventLoop) -> None:
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            made = method(*args, **options)
            if inspect.isasyncgen(made):
                return self._loop.run_until_complete(collected(made))
            return self._loop.run_until_complete(made)

        return call


async def collected(items: Any) -> List[Any]:
    return [item async for item in items]


class Verbs(ServerTest):
    def test_a_task_is_put_taken_and_acked(self) -> None:
        placed = self.client.put(self.tube, {"to": "ann"})
        self.assertEqual((placed.id, placed.state, placed.existing), (0, "ready", False))
        task = self.client.take(self.tube, worker="tester")
        self.assertEqual((task.id, task.data, task.state, task.attempts), (0, {"to": "ann"}, "taken", 0))
        self.client.ack(task)
        self.assertIsNone(self.client.take(self.tube))
        with self.assertRaises(errors.StaleDeliveryError):
            self.client.ack(task)

    def test_payloads_come_back_as_they_were(self) -> None:
        values = [None, True, 0, -1, 2**64 - 1, -(2**63), 1.5, "ü\n", [1, [2]], {"a": {"b": None}}, b"\x00\xff"]
        values += [{"bytes": b"x" * 300}, ["x"] * 70000, "z" * 70000, {str(n): n for n in range(300)}]
        self.client.put_many(self.tube, values)
        tasks = self.client.take_many(self.tube, 100)
        self.assertEqual([task.data for task in tasks], values)
        self.client.put(self.tube, [math.nan, math.inf])
        nan, infinity = self.client.take(self.tube).data
        self.assertTrue(math.isnan(nan) and infinity == math.inf)

    def test_values_that_no_task_can_have_are_refused(self) -> None:
        for value in (object(), {1, 2}, datetime.datetime.now()):
            with self.assertRaises(TypeError):
                self.client.put(self.tube, value)
        with self.assertRaises(errors.RefusedError):
            self.client.put(self.tube, 2**64)
        with self.assertRaises(errors.TooLargeError):
            self.client.put(self.tube, "z" * 2_000_000)

    def test_options_of_a_put(self) -> None:
        later = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
        self.client.put(self.tube, 0, delay=datetime.timedelta(minutes=1), pri=5, ttl=3600, ttr=60, meta={"a": 1})
        self.client.put(self.tube, 1, at=later, attempts_max=3, key="one", unique_for=60)
        first, second = self.client.peek(self.tube, [0, 1])
        self.assertEqual((first.state, first.fields["pri"], first.meta), ("delayed", 5, {"a": 1}))
        self.assertAlmostEqual(second.fields["due"], later.timestamp(), delta=1)
        self.assertEqual((second.fields["attempts_max"], second.fields["key"]), (3, "one"))
        again = self.client.put(self.tube, 2, key="one")
        self.assertEqual(again, taskyard.Placed(1, "delayed", True))
        replaced = self.client.put(self.tube, 3, key="one", on_conflict="replace")
        self.assertEqual(replaced, taskyard.Placed(1, "ready", True))
        tasks = [taskyard.NewTask(4, {"delay": 60}), 5]
        self.assertEqual([placed.state for placed in self.client.put_many(self.tube, tasks)], ["delayed", "ready"])

    def test_a_full_tube_refuses_tasks(self) -> None:
        self.assertTrue(self.client.create_tube(self.tube, capacity=1))
        self.assertFalse(self.client.create_tube(self.tube, capacity=1, if_not_exists=True))
        with self.assertRaises(errors.TubeExistsError):
            self.client.create_tube(self.tube)
        self.client.put(self.tube, 1)
        with self.assertRaises(errors.TubeFullError) as raised:
            self.client.put(self.tube, 2, timeout=0.01)
        self.assertEqual((raised.exception.code, raised.exception.status), ("tube_full", 429))

    def test_deliveries_end_in_every_way(self) -> None:
        self.client.put_many(self.tube, range(6))
        tasks = self.client.take_many(self.tube, 6, lease=30)
        self.client.touch(tasks[0], 60)
        self.client.release(tasks[0], delay=60)
        self.client.release(tasks[1], counted=False)
        self.client.bury(tasks[2], "no such user")
        self.client.fail(tasks[3], "no route", delay=60)
        parts = [{"verb": "ack", "id": 4, "lease": tasks[4].lease}, {"verb": "bury", "id": 99}]
        self.assertEqual(self.client.finish(self.tube, parts), ["done", "missing"])
        states = [(task.id, task.state, task.attempts) for task in self.client.peek(self.tube, range(6))]
        expected = [(0, "delayed", 1), (1, "ready", 0), (2, "buried", 0), (3, "delayed", 1), (5, "taken", 0)]
        self.assertEqual(states, expected)
        self.assertEqual(self.client.task(self.tube, 3).failures[0]["error"], "no route")
        self.assertEqual(self.client.kick(self.tube, 10), 1)
        self.assertEqual(len(self.client.deliveries(self.tube)), 1)
        self.client.release_all(self.tube)
        self.client.ack(taskyard.Delivery(self.tube, self.client.take(self.tube).id))
        self.assertEqual(self.client.delete(self.tube, [0, 99]), ["done", "missing"])
        with self.assertRaises(errors.TaskNotFoundError):
            self.client.task(self.tube, 0)
        self.client.truncate(self.tube)
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 0)

    def test_results_are_kept(self) -> None:
        self.client.create_tube(self.tube, keep_done=60)
        self.client.put_many(self.tube, [1, 2])
        self.client.ack(self.client.take(self.tube), {"pages": 12})
        self.client.ack(self.client.take(self.tube), b"\x00")
        self.assertEqual(self.client.task(self.tube, 0).result, {"pages": 12})
        self.assertEqual(self.client.task(self.tube, 1).result, b"\x00")

    def test_lists_and_actions_on_chosen_tasks(self) -> None:
        self.client.put_many(self.tube, [{"n": n} for n in range(1200)])
        self.assertEqual([task.id for task in self.client.tasks(self.tube)], list(range(1200)))
        page = self.client.tasks_page(self.tube, limit=10, match='"n":7')
        self.assertEqual([task.id for task in page.tasks][:2], [7, 70])
        answer = self.client.change_tasks(self.tube, "bury", ids=[3, 4], error="wrong")
        self.assertEqual(answer["outcomes"], ["done", "done"])
        self.assertEqual([task.id for task in self.client.tasks(self.tube, state="buried")], [3, 4])
        answer = self.client.change_tasks(self.tube, "kick", filter={"error": "wrong"}, dry_run=True)
        self.assertEqual((answer["matched"], answer["changed"]), (2, 0))
        answer = self.client.change_tasks(self.tube, "kick", filter={"error": "wrong"}, reset_attempts=True)
        self.assertEqual(answer["changed"], 2)

    def test_positions_and_estimates(self) -> None:
        no_consumer = taskyard.NoEstimate("no_consumer", "no consumer takes tasks of this tube")
        placed = self.client.put(self.tube, 0, estimate=True)
        self.assertEqual(placed.position, taskyard.Position(0, 0, no_estimate=no_consumer))
        self.assertIsNone(self.client.put(self.tube, 1).position)
        tasks = [taskyard.NewTask(2, {"pri": 9}), taskyard.NewTask(3, {"delay": 60})]
        positions = [placed.position for placed in self.client.put_many(self.tube, tasks, estimate=True)]
        self.assertEqual([(position.id, position.ahead) for position in positions], [(2, 2), (3, 2)])
        self.assertEqual([position.id for position in self.client.positions(self.tube, [3, 99, 2])], [3, 2])
        self.assertGreater(self.client.positions(self.tube, [3])[0].due, 0)
        with self.assertRaises(errors.TooLargeError):
            self.client.put_many(self.tube, range(101), estimate=True)
        self.assertEqual(self.client.tube(self.tube)["tasks"]["total"], 4)
        # A finished task and a taken one: run times and the number of consumers are known.
        self.client.ack(self.client.take_many(self.tube, 2)[0])
        wait_until(lambda: self.client.positions(self.tube, [2])[0].estimate is not None, "there is an estimate")
        (position,) = self.client.positions(self.tube, [1, 2])
        estimate = position.estimate
        self.assertEqual((position.id, position.ahead, position.no_estimate), (2, 0, None))
        self.assertEqual((estimate.ahead, estimate.basis), (1, "run_times"))
        self.assertLessEqual(estimate.p50, estimate.p90)
        self.assertIsInstance(self.client.put(self.tube, 4, estimate=True).position.estimate, taskyard.Estimate)

    def test_lists_with_estimates(self) -> None:
        self.client.put_many(self.tube, range(120))
        self.client.ack(self.client.take_many(self.tube, 2)[0])
        wait_until(lambda: self.client.positions(self.tube, [2])[0].estimate is not None, "there is an estimate")
        peeked = self.client.peek(self.tube, [1, 2], estimate=True)
        self.assertEqual([task.position is not None for task in peeked], [False, True])
        self.assertIsNone(self.client.peek(self.tube, [2])[0].position)
        self.assertEqual(self.client.task(self.tube, 5, estimate=True).position.ahead, 3)
        self.assertIsNone(self.client.task(self.tube, 5).position)
        listed = [task.position for task in self.client.tasks(self.tube, state="ready", estimate=True)]
        self.assertEqual([position.ahead for position in listed], list(range(118)))
        self.assertTrue(all(position.estimate for position in listed))
        page = self.client.tasks_page(self.tube, limit=2, estimate=True)
        self.assertEqual([task.position is not None for task in page.tasks], [False, True])
        self.assertNotIn("drain", self.client.tube(self.tube))
        self.assertEqual(self.client.tube(self.tube, estimate=True)["drain"]["basis"], "run_times")
        tubes = self.client.tubes(estimate=True), self.client.stats(estimate=True)["tubes"]
        for listed in tubes:
            self.assertEqual([tube["name"] for tube in listed if "drain" in tube and tube["name"] == self.tube], [self.tube])
        self.client.take(self.tube)
        checked = lambda: self.client.tube(self.tube, estimate=True).get("estimates", {"checked": 0})  # noqa: E731
        wait_until(lambda: checked()["checked"] == 1, "the estimate is compared with the start")

    def test_tubes(self) -> None:
        self.client.create_tube(self.tube, kind="utubettl", retry={"delay": 1}, rate={"count": 5, "per": 1})
        self.assertEqual(self.client.alter_tube(self.tube, paused=True, rate=None)["paused"], True)
        self.assertNotIn("rate", self.client.tube(self.tube))
        self.client.rename_tube(self.tube, f"{self.tube} 2/ü".replace("/", "."))
        name = f"{self.tube} 2.ü"
        self.assertIn(name, [tube["name"] for tube in self.client.tubes()])
        self.assertEqual(self.client.consumers(name), [])
        self.client.put(name, 1, subqueue="a")
        self.client.drop_tube(name)
        with self.assertRaises(errors.TubeNotFoundError):
            self.client.tube(name)

    def test_semaphores(self) -> None:
        key = self.tube
        self.assertEqual(self.client.set_semaphore(key, active=1)["active"], 1)
        self.assertEqual(self.client.semaphore(key)["key"], key)
        self.assertIn(key, [semaphore["key"] for semaphore in self.client.semaphores()])
        granted, waiting = self.client.enqueue(key, {17: 2.5, 18: 1})
        self.assertEqual((granted["status"], waiting["status"]), ("granted", "waiting"))
        events = self.client.semaphore_events(semaphore=key, wait=10)
        self.assertEqual([event["task"] for event in events], [17])
        self.assertEqual(self.client.ack_semaphore_events([events[0]["id"]]), 1)
        self.assertEqual([member["task"] for member in self.client.semaphore_holders(key)["tasks"]], [17])
        self.assertEqual([member["task"] for member in self.client.semaphore_waiting(key)["tasks"]], [18])
        self.assertEqual(self.client.peek_semaphore(key, [17])[0]["grant"], granted["grant"])
        release = {"task": 17, "grant": granted["grant"], "finish": "release"}
        self.assertEqual(self.client.finish_grants(key, [release]), ["done"])
        self.client.drop_semaphore(key, force=True)

    def test_schedules(self) -> None:
        name, tube = f"{self.tube} ü", self.tube
        self.client.create_tube(tube)
        made = self.client.set_schedule(name, tube, {"n": 1}, cron="0 9 * * 1-5", zone="Europe/Berlin", catch_up="last")
        self.assertEqual((made["created"], made["zone"]), (True, "Europe/Berlin"))
        self.assertIn(name, [schedule["name"] for schedule in self.client.schedules()])
        self.assertEqual(len(self.client.schedule_times(name, 3)), 3)
        self.client.run_schedule(name)
        self.assertEqual(self.client.take(tube, wait=10).data, {"n": 1})
        self.assertTrue(self.client.pause_schedule(name)["paused"])
        self.assertFalse(self.client.resume_schedule(name)["paused"])
        start, hour = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc), datetime.timedelta(hours=1)
        changed = self.client.set_schedule(name, tube, b"x", options={"pri": 3}, every=hour, start=start)
        self.assertEqual((changed["every"], changed["start"]), (3600, start.timestamp()))
        self.client.drop_schedule(name)
        with self.assertRaises(errors.RefusedError) as raised:
            self.client.schedule(name)
        self.assertEqual(raised.exception.code, "schedule_not_found")

    def test_the_server(self) -> None:
        self.client.put(self.tube, 1)
        self.client.take(self.tube, worker=f"web1:4711:{self.tube}")
        self.assertEqual(self.client.health()["status"], "ok")
        self.assertIn(self.tube, [tube["name"] for tube in self.client.stats()["tubes"]])
        self.assertGreaterEqual(len(self.client.stats(internal=True)["tubes"]), len(self.client.stats()["tubes"]))
        self.assertIn("/v1/tubes", self.client.openapi()["paths"])
        self.assertTrue(self.client.pause_tube(self.tube)["paused"])
        self.assertIsNone(self.client.take(self.tube))
        self.assertFalse(self.client.resume_tube(self.tube)["paused"])
        self.assertIn("puts", self.client.series(self.tube, start=-60))
        self.assertEqual(self.client.series(all_servers=True)["servers"], 1)
        workers = {worker["name"]: worker for worker in self.client.workers(all_servers=True)}
        self.assertEqual(workers[f"web1:4711:{self.tube}"]["version"], taskyard.__version__)
        self.assertIn("taskyard_", self.client.metrics())
        actions = [(entry["action"], entry.get("target")) for entry in self.client.audit(limit=100)]
        self.assertIn(("resume_tube", self.tube), actions)
        self.assertIsInstance(self.client.services(), list)
        self.assertIn("workers", self.client.manager())

    def test_a_take_waits_for_a_task(self) -> None:
        with taskyard.Client(self.server.url) as other:
            other.create_tube(self.tube)

            def put() -> None:
                wait_until(lambda: other.consumers(self.tube) != [], "the take waits")
                other.put(self.tube, "late")

            putting = threading.Thread(target=put)
            putting.start()
            task = self.client.take(self.tube, wait=60)
            putting.join()
        self.assertEqual(task.data, "late")


class AsyncVerbs(Verbs):
    """The same with the asyncio client."""

    def setUp(self) -> None:
        super().setUp()
        self.tube = f"async_{self.tube}"
        loop = asyncio.new_event_loop()
        self.addCleanup(loop.close)
        client = taskyard.AsyncClient(self.server.url)
        self.addCleanup(lambda: loop.run_until_complete(client.close()))
        self.client = BlockingLoop(client, loop)  # type: ignore[assignment]

    def test_tasks_of_a_loop_share_a_client(self) -> None:
        async def run() -> List[int]:
            async with taskyard.AsyncClient(self.server.url) as client:
                placed = await asyncio.gather(*(client.put(self.tube, n) for n in range(50)))
            return sorted(task.id for task in placed)

        self.assertEqual(asyncio.run(run()), list(range(50)))


class Addresses(ServerTest):
    def test_the_token_is_sent(self) -> None:
        server = Server(token=TOKEN)
        self.addCleanup(server.stop)
        for token in ("wrong", ""):
            with self.assertRaises(errors.UnauthorizedError):
                Client(server.url, token=token).tubes()
        self.assertEqual(Client(server.url, token=TOKEN + "\n").tubes(), [])
        os.environ.update(TASKYARD_URL=server.url, TASKYARD_TOKEN=TOKEN)
        try:
            self.assertEqual(Client().tubes(), [])
        finally:
            del os.environ["TASKYARD_URL"], os.environ["TASKYARD_TOKEN"]

    def test_wrong_addresses_are_refused(self) -> None:
        for url in ("", "localhost:7070", "iproto://a", "http://"):
            with self.assertRaises(ValueError):
                Client(url)
        with self.assertRaises(ValueError):
            Client("http://a", token="two words")
        with self.assertRaises(errors.UnreachableError):
            Client("http://127.0.0.1:1", repeat_for=0).tubes()
        with self.assertRaises(errors.RefusedError):
            Client(f"{self.server.url}/no/such/path").tubes()
