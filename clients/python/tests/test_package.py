"""What is installed: its version, its marker of types, and the examples of the README."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import unittest

import taskyard
from tests.fixture import Server

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


class InstalledPackage(unittest.TestCase):
    def test_metadata(self) -> None:
        metadata = importlib.metadata.metadata("taskyard")
        self.assertEqual(metadata["Version"], taskyard.__version__)
        self.assertEqual(metadata["Requires-Python"], ">=3.9")
        self.assertIsNone(metadata.get_all("Requires-Dist"))
        files = {str(file) for file in importlib.metadata.files("taskyard") or []}
        self.assertIn("taskyard/py.typed", files)
        self.assertTrue(any(name.endswith("LICENSE-MIT") for name in files), files)

    def test_the_command_is_installed(self) -> None:
        command = pathlib.Path(sys.executable).parent / "taskyard-worker"
        shown = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
        self.assertIn("--concurrency", shown)

    def test_the_test_of_the_example_passes(self) -> None:
        run = subprocess.run([sys.executable, "-m", "unittest", "test_mail"], cwd=EXAMPLES, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_the_example_puts_its_task_once(self) -> None:
        server = Server()
        self.addCleanup(server.stop)
        source = (EXAMPLES / "mail.py").read_text()
        source = re.sub(r"http://127.0.0.1:7070", server.url, source)
        for _ in range(2):
            subprocess.run([sys.executable, "-c", source], check=True, env={**os.environ})
        with taskyard.Client(server.url) as client:
            tasks = [(task.data, task.state) for task in client.tasks("mail")]
        self.assertEqual(tasks, [({"to": "ann", "text": "hi"}, "delayed")])
