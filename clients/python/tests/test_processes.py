"""Workers as processes: the command line, kills, stops, and storms of tasks."""

from __future__ import annotations

import collections
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from typing import List

import taskyard
from taskyard.cli import main
from tests.fixture import PATIENCE, Server, own_server, wait_until

#: Multiplies the work of random tests.
RUNS = int(os.environ.get("TASKYARD_RUNS") or "1")


class Processes(unittest.TestCase):
    def setUp(self) -> None:
        self.server = own_server(self)
        self.client = taskyard.Client(self.server.url)
        self.addCleanup(self.client.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runs = os.path.join(folder.name, "runs")
        open(self.runs, "w").close()

    def worker(self, *args: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TASKYARD_URL": self.server.url, "TEST_RUNS": self.runs}
        command = [sys.executable, "-m", "taskyard", "worker", "tests.tasks_for_processes", "--log-level", "error"]
        process = subprocess.Popen([*command, *args], env=environment, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def ran(self) -> List[str]:
        with open(self.runs) as file:
            return file.read().split("\n")[:-1]

    def is_empty(self, tube: str) -> bool:
        empty: bool = self.client.tube(tube)["tasks"]["total"] == 0
        return empty

    def test_several_processes_run_tasks_and_stop(self) -> None:
        self.client.put_many("count", [{"number": number} for number in range(500)])
        worker = self.worker("--processes", "2", "--concurrency", "4")
        wait_until(lambda: self.is_empty("count"), "all tasks are done")
        self.assertEqual(sorted(map(int, self.ran())), list(range(500)))
        names = [item["name"] for item in self.client.workers() if "count" in item["tubes"]]
        self.assertTrue(all(name.endswith(":tests.tasks_for_processes") for name in names), names)
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0)

    def test_processes_end_with_a_supervisor_that_was_killed(self) -> None:
        worker = self.worker("--processes", "2", "--tube", "block", "--concurrency", "1")
        for _ in range(2):
            self.client.put("block", {"seconds": 0.2})
        wait_until(lambda: len(self.ran()) >= 2, "both processes run a task")
        worker.kill()
        wait_until(lambda: self.client.consumers("block") == [] and self.is_empty("block"), "both finish and end")
        pids = {int(line.split()[1]) for line in self.ran() if line.startswith("begun")}
        wait_until(lambda: not any(is_alive(pid) for pid in pids), "the processes ended")

    def test_a_stop_gives_back_what_does_not_finish_in_time(self) -> None:
        self.client.put("block", {"seconds": 3600})
        worker = self.worker("--grace", "0.1")
        wait_until(lambda: bool(self.ran()), "the task runs")
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 1)
        task = self.client.task("block", 0)
        self.assertEqual((task.state, task.attempts), ("ready", 0))

    def test_a_second_signal_does_not_wait(self) -> None:
        self.client.put("block", {"seconds": 3600})
        worker = self.worker("--grace", "3600")
        wait_until(lambda: bool(self.ran()), "the task runs")
        worker.send_signal(signal.SIGINT)
        wait_until(lambda: self.client.consumers("count") == [], "the worker stops")
        worker.send_signal(signal.SIGINT)
        self.assertEqual(worker.wait(PATIENCE), 1)
        self.assertEqual(self.client.task("block", 0).state, "ready")

    def test_the_task_of_a_killed_worker_runs_again(self) -> None:
        self.client.put("block", {"seconds": 3600})
        worker = self.worker("--lease", "1")
        wait_until(lambda: bool(self.ran()), "the task runs")
        worker.kill()
        worker.wait()
        self.worker("--lease", "1")
        wait_until(lambda: len(self.ran()) == 2, "it runs again")
        failure = self.client.task("block", 0).failures[0]
        self.assertEqual(failure["error"], "lease expired")

    def test_a_task_that_kills_its_worker_is_buried(self) -> None:
        self.client.put("poison", {})
        self.worker("--processes", "2", "--lease", "1")
        wait_until(lambda: self.client.task("poison", 0).state == "buried", "it is buried")
        self.assertEqual(self.ran(), ["poison", "poison"])

    def test_a_storm_of_failures_and_kills_loses_no_task(self) -> None:
        """Every task runs at least until it succeeded, while workers and the server are killed."""
        seed = int(os.environ.get("TASKYARD_SEED") or random.randrange(2**32))
        print(f"seed {seed}", file=sys.stderr)
        chance = random.Random(seed)
        count = 1000 * RUNS
        failures = [chance.choice([0, 0, 0, 1, 2]) for _ in range(count)]
        workers = [self.worker("--tube", "storm", "--lease", "2") for _ in range(2)]
        putting = threading.Thread(target=self.put_storm, args=(failures, chance.randrange(1, 50)))
        putting.start()
        for turn in range(2 * RUNS):
            goal = chance.randrange(count)
            wait_until(lambda: len(self.ran()) >= goal, "tasks run")
            if turn % 2:
                self.server.kill()
                self.server.start()
            else:
                victim = chance.randrange(2)
                workers[victim].kill()
                workers[victim] = self.worker("--tube", "storm", "--lease", "2")
        putting.join()
        wait_until(lambda: self.is_empty("storm"), "all tasks are done")
        runs = collections.Counter(map(int, self.ran()))
        missing = [number for number in range(count) if runs[number] <= failures[number]]
        self.assertEqual(missing, [])

    def put_storm(self, failures: List[int], batch: int) -> None:
        with taskyard.Client(self.server.url, repeat_for=PATIENCE) as client:
            for start in range(0, len(failures), batch):
                numbers = range(start, min(start + batch, len(failures)))
                client.put_many("storm", [{"number": number, "failures": failures[number]} for number in numbers])


class CommandLine(unittest.TestCase):
    def test_an_application_that_cannot_be_loaded(self) -> None:
        for name in ("no_such_module", "tests.fixture:Server", "tests.tasks_for_processes:nothing"):
            command = [sys.executable, "-m", "taskyard", "worker", name]
            ended = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(f"cannot load {name}", ended.stderr)

    def test_wrong_options(self) -> None:
        for options in (["worker"], ["worker", "a:b", "--concurrency", "0"], []):
            with self.assertRaises(SystemExit):
                main(options)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
