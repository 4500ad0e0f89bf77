"""Workers as processes: the command line, kills and stops."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import unittest
from typing import Set

from taskyard.cli import main
from tests.fixture import PATIENCE, wait_until
from tests.worker_process import ProcessTest


class Processes(ProcessTest):
    def test_several_processes_run_tasks_and_stop(self) -> None:
        self.client.put_many("count", [{"number": number} for number in range(500)])
        worker = self.worker("--processes", "2", "--concurrency", "4")
        wait_until(lambda: self.is_empty("count"), "all tasks are done")
        self.assertEqual(sorted(map(int, self.ran())), list(range(500)))
        names = [item["name"] for item in self.client.workers() if "count" in item["tubes"]]
        self.assertTrue(all(name.endswith(":tests.tasks_for_processes") for name in names), names)
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0)

    def test_a_stop_while_processes_start_is_no_failure(self) -> None:
        """A process that was stopped before it could handle signals made the exit code of the supervisor 1."""
        worker = self.worker("--processes", "2", app="tests.slow_import")
        wait_until(lambda: len(self.ran()) == 2, "both processes import the application")
        worker.send_signal(signal.SIGTERM)
        self.assertEqual(worker.wait(PATIENCE), 0)

    def test_processes_end_with_a_supervisor_that_was_killed(self) -> None:
        worker = self.worker("--processes", "2", "--tube", "gated", "--concurrency", "1")
        for _ in range(2):
            self.client.put("gated", {})
        wait_until(lambda: len(self.begun_pids()) == 2, "both processes run a task")
        worker.kill()
        open(self.runs + ".gate", "w").close()
        wait_until(lambda: self.client.consumers("gated") == [] and self.is_empty("gated"), "both finish and end")
        wait_until(lambda: not any(is_alive(pid) for pid in self.begun_pids()), "the processes ended")

    def begun_pids(self) -> Set[int]:
        """The processes that have begun a task."""
        return {int(line.split()[1]) for line in self.ran() if line.startswith("begun")}

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
        self.worker("--processes", "2", "--lease", "2")
        wait_until(lambda: self.client.task("poison", 0).state == "buried", "it is buried")
        self.assertEqual(self.ran(), ["poison", "poison"])


    def test_the_log_of_a_process_is_json(self) -> None:
        self.client.put("count", {"number": 1})
        self.client.put("count", {"number": "x", "wrong": 1})
        worker = self.worker("--log-format", "json", "--log-level", "debug", "--name", "web1:7:mail", stderr=subprocess.PIPE)
        wait_until(lambda: self.client.tube("count")["tasks"]["delayed"] == 1 and self.ran() == ["1"], "both tasks ran")
        worker.send_signal(signal.SIGTERM)
        _, output = worker.communicate(timeout=PATIENCE)
        lines = [json.loads(line) for line in output.decode().splitlines()]
        self.assertEqual({line["worker"] for line in lines}, {"web1:7:mail"})
        done = next(line for line in lines if line["message"] == "task done")
        self.assertEqual((done["level"], done["tube"], done["task"], done["attempt"]), ("debug", "count", 0, 1))
        failed = next(line for line in lines if line["message"].startswith("task failed"))
        self.assertEqual((failed["level"], failed["task"]), ("warning", 1))
        self.assertIn("Traceback", failed["traceback"])
        self.assertEqual(lines[-1]["message"], "worker web1:7:mail stopped")


class CommandLine(unittest.TestCase):
    def test_an_application_that_cannot_be_loaded(self) -> None:
        for name in ("no_such_module", "tests.fixture:Server", "tests.tasks_for_processes:nothing"):
            command = [sys.executable, "-m", "taskyard", "worker", name]
            ended = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(ended.returncode, 2, ended.stderr)
            self.assertIn(f"cannot load {name}", ended.stderr)

    def test_several_processes_that_cannot_load_the_application(self) -> None:
        """Processes that ended with exit code 2 were started again for ever."""
        command = [sys.executable, "-m", "taskyard", "worker", "no_such_module", "--processes", "2"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(ended.returncode, 2, ended.stderr)

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
