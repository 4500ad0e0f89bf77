"""The application that the tests run in processes of their own. Functions write lines to the file of `TEST_RUNS`."""

from __future__ import annotations

import os
import signal
import time

import taskyard

app = taskyard.App()


def note(line: str) -> None:
    """Appends a line at once, also if the process is killed right afterwards."""
    descriptor = os.open(os.environ["TEST_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


@app.task("count")
def count(number: int) -> None:
    note(str(number))


@app.task("storm", retry_delay=0)
def storm(number: int, failures: int) -> None:
    attempt = taskyard.current_task().attempt
    note(f"{number} {attempt}")
    if attempt <= failures:
        raise ValueError("not yet")


@app.task("block")
def block(seconds: float) -> None:
    note(f"begun {os.getpid()}")
    time.sleep(seconds)
    note("ended")


@app.task("gated")
def gated() -> None:
    """Runs until the test opens the gate, which is a file."""
    note(f"begun {os.getpid()}")
    while not os.path.exists(os.environ["TEST_RUNS"] + ".gate"):
        time.sleep(0.01)
    note("ended")


@app.task("poison", retries=1)
def poison() -> None:
    note("poison")
    os.kill(os.getpid(), signal.SIGKILL)
