"""Starts workers as processes, whose functions write what they do to a file."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from typing import List

import taskyard
from tests.fixture import own_server


class ProcessTest(unittest.TestCase):
    """Tests with a server on a folder."""

    def setUp(self) -> None:
        self.server = own_server(self)
        self.client = taskyard.Client(self.server.url)
        self.addCleanup(self.client.close)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.runs = os.path.join(folder.name, "runs")
        open(self.runs, "w").close()

    def worker(
        self, *args: str, app: str = "tests.tasks_for_processes", stderr: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TASKYARD_URL": self.server.url, "TEST_RUNS": self.runs}
        command = [sys.executable, "-m", "taskyard", "worker", app, "--log-level", "error"]
        process = subprocess.Popen([*command, *args], env=environment, stderr=stderr)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def ran(self) -> List[str]:
        with open(self.runs) as file:
            return file.read().split("\n")[:-1]

    def is_empty(self, tube: str) -> bool:
        empty: bool = self.client.tube(tube)["tasks"]["total"] == 0
        return empty
