"""What is installed: its version, its marker of types, and the examples of the README."""

from __future__ import annotations

import ast
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
        self.assertEqual(metadata["License-Expression"], "MIT OR Apache-2.0")
        self.assertEqual(metadata.get_all("License-File"), ["LICENSE-APACHE", "LICENSE-MIT"])
        self.assertEqual(metadata["Author"], "The Taskyard contributors")
        self.assertIn("task queue", metadata["Keywords"])
        classifiers = metadata.get_all("Classifier") or []
        self.assertIn("Programming Language :: Python :: 3.9", classifiers)
        self.assertIn("Typing :: Typed", classifiers)
        # Indexes refuse a package with both.
        self.assertFalse([name for name in classifiers if name.startswith("License ::")])

    def test_files(self) -> None:
        files = {str(file): file for file in importlib.metadata.files("taskyard") or []}
        self.assertIn("taskyard/py.typed", files)
        for name, text in (("LICENSE-MIT", "Permission is hereby granted"), ("LICENSE-APACHE", "Apache License")):
            found = [file for path, file in files.items() if path.endswith(f".dist-info/licenses/{name}")]
            self.assertEqual(len(found), 1, files.keys())
            self.assertIn(text, found[0].read_text())
        self.assertFalse([path for path in files if path.startswith(("tests", "examples"))])

    def test_the_readme_is_the_description(self) -> None:
        metadata = importlib.metadata.metadata("taskyard")
        self.assertEqual(metadata["Description-Content-Type"], "text/markdown")
        description = metadata["Description"] or metadata.get_payload()  # type: ignore[attr-defined]
        self.assertTrue(description.startswith("# Taskyard for Python\n"), description[:100])
        for title in ("## Ten lines", "## Deployment", "## Testing your tasks", "## Coming from other queues"):
            self.assertIn(f"\n{title}\n", description)
        # Links into the repository lead nowhere on the page of the package.
        self.assertIsNone(re.search(r"\]\((?!https?:|#)", description))
        methods = [name for name in vars(taskyard.Client) if not name.startswith("_")]
        self.assertEqual([name for name in methods if f"`{name}`" not in description], [])


class OldestPython(unittest.TestCase):
    """Python 3.9 may not be installed where the tests run."""

    def test_sources_have_the_syntax_of_python_3_9(self) -> None:
        sources = sorted(pathlib.Path(taskyard.__file__).parent.rglob("*.py"))
        self.assertGreater(len(sources), 20)
        for source in sources:
            ast.parse(source.read_text(), str(source), feature_version=(3, 9))
        with self.assertRaises(SyntaxError):
            ast.parse("match 1:\n    case 1:\n        pass\n", feature_version=(3, 9))

    def test_the_package_works_without_param_spec(self) -> None:
        program = """
import sys, types, typing
# Functions of the real module still use what is hidden.
hiding = types.ModuleType("typing")
hidden = ("ParamSpec", "Concatenate", "Unpack", "Self", "TypeAlias", "TypeGuard")
hiding.__dict__.update({name: value for name, value in vars(typing).items() if name not in hidden})
sys.modules["typing"] = hiding
import taskyard
assert isinstance(taskyard.app.P, typing.TypeVar)
app = taskyard.App("http://127.0.0.1:1")
@app.task("sum", pri=5)
def add(a: int, b: int = 2) -> int:
    ran.append(a + b)
    return a + b
ran = []
with app.testing() as queue:
    add.put(1)
    add.options(delay=60).put(a=3, b=4)
    assert queue.run() == 1 and queue.advance(60) == 1
assert ran == [3, 7] and add(2) == 4, ran
"""
        run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)


class Command(unittest.TestCase):

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
