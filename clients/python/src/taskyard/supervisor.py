"""Runs several processes of a worker, starts those again that end, and stops all of them together."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
import time
from types import FrameType
from typing import List, Optional, Sequence

#: The pauses before a process is started again, in seconds.
PAUSE_MIN, PAUSE_MAX = 1.0, 30.0
#: A process that ran for so long begins with the shortest pause again.
STABLE_SECONDS = 60.0
#: How long processes may take to end beyond the time that their tasks have, in seconds.
END_SECONDS = 15.0
#: The exit code of a process that cannot load its application: another one could not either.
CANNOT_LOAD = 2

log = logging.getLogger("taskyard.worker")


class Supervisor:
    """The parent of the processes. They end when it ends, in whatever way, because their input ends then."""

    def __init__(self, arguments: Sequence[str], processes: int, grace: float) -> None:
        self._command = [sys.executable, "-m", "taskyard", *arguments]
        self._children = [_Child() for _ in range(processes)]
        self._grace = grace
        self._stopping = threading.Event()
        self._signals = 0
        self._cannot_load = False

    def run(self) -> int:
        """Runs until a signal, or until a process cannot load the application; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        while not self._stopping.is_set():
            self._start_missing()
            self._stopping.wait(0.1)
        code = self._end()
        return CANNOT_LOAD if self._cannot_load else code

    def _start_missing(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                pause = child.ended(now)
                if child.code == CANNOT_LOAD:
                    self._cannot_load = True
                    self._stopping.set()
                    return
                log.error("a worker process ended with %s; another follows in %.0f s", child.code, pause)
            if child.process is None and now >= child.not_before and not self._stopping.is_set():
                child.start(self._command, now)

    def _end(self) -> int:
        deadline = time.monotonic() + self._grace + END_SECONDS
        codes: List[int] = []
        for child in self._children:
            if child.process is None:
                continue
            child.send(signal.SIGTERM)
            try:
                codes.append(child.process.wait(max(deadline - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                log.error("a worker process did not end and is killed")
                child.process.kill()
                codes.append(child.process.wait() or 1)
        # A process that was still being started had no task, and ends by the signal.
        return 0 if all(code in (0, -signal.SIGTERM) for code in codes) else 1

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> None:
        self._stopping.set()
        self._signals += 1
        if self._signals <= 2:
            # A second signal makes the processes end at once.
            for child in self._children:
                child.send(signal.SIGTERM, again=self._signals > 1)


class _Child:
    """A process, or the pause before it is started again."""

    def __init__(self) -> None:
        self.process: Optional[subprocess.Popen[bytes]] = None
        self.code = 0
        self.not_before = 0.0
        self._pause = PAUSE_MIN
        self._started = 0.0
        self._was_signalled = False

    def start(self, command: Sequence[str], now: float) -> None:
        # In a session of its own: the signals of a terminal reach the parent only.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._started = now
        self._was_signalled = False

    def ended(self, now: float) -> float:
        """Notes the end of the process; returns the pause before the next."""
        assert self.process is not None
        self.code = self.process.returncode
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process = None
        self._pause = PAUSE_MIN if now - self._started > STABLE_SECONDS else self._pause
        pause, self._pause = self._pause, min(2 * self._pause, PAUSE_MAX)
        self.not_before = now + pause
        return pause

    def send(self, number: int, again: bool = False) -> None:
        """Sends a signal, once unless it is sent again."""
        if self.process is not None and (again or not self._was_signalled):
            self._was_signalled = True
            self.process.send_signal(number)
