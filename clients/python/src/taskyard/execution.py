"""Runs the function of one task and decides what becomes of the task."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import traceback
from typing import Any, Dict, List, Optional, Union

from . import calls
from .errors import Bury, Cancelled, Release, Retry
from .running_task import CURRENT, CancelReason, RunningTask
from .shapes import FinishPart

#: What becomes of a delivery: a part of a finish, or one that is encoded already.
Outcome = Union[FinishPart, str]

#: Servers cut longer errors, in bytes.
ERROR_BYTES_MAX = 1024
#: Servers refuse longer results, in bytes.
RESULT_BYTES_MAX = 64 * 1024

log = logging.getLogger("taskyard.worker")
#: The frames of this package say nothing about a failure.
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(task: RunningTask) -> Outcome:
    """Runs a function that is not asynchronous. Only `Cancelled` is raised."""
    token = CURRENT.set(task)
    try:
        used_up = task.function.used_up(task)
        return used_up if used_up is not None else done(task, task.function.call(task))
    except Cancelled:
        raise
    except BaseException as error:
        return failed(task, error)
    finally:
        CURRENT.reset(token)


async def run_async(task: RunningTask) -> Outcome:
    """Runs an asynchronous function. Only cancellation is raised."""
    CURRENT.set(task)
    try:
        used_up = task.function.used_up(task)
        return used_up if used_up is not None else done(task, await task.function.call(task))
    except asyncio.CancelledError:
        if task.cancel_reason is not None:
            raise
        return failed(task, RuntimeError("the task function was cancelled"))
    except BaseException as error:
        return failed(task, error)


def done(task: RunningTask, result: object) -> Outcome:
    """The ack of a task whose function returned."""
    if result is None:
        return f'{{"verb":"ack","id":{task.id},"lease":{task.lease}}}'
    part: FinishPart = {"verb": "ack", "id": task.id, "lease": task.lease}
    try:
        with_result = calls.with_result(part, result)
        size = len(json.dumps(with_result))
        if size > RESULT_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, more than {RESULT_BYTES_MAX}")
    except (TypeError, ValueError) as error:
        # The work is done: a retry would do it again.
        log.warning("the result of the task cannot be stored: %s", error, extra=fields_of(task))
        return part
    return with_result


def failed(task: RunningTask, error: BaseException) -> Outcome:
    """What becomes of a task whose function raised an exception."""
    if isinstance(error, Release):
        release = give_back(task)
        release["delay"], release["counted"] = error.delay, error.counted
        return release
    if isinstance(error, Bury):
        log.warning("task buried: %s", error, extra=fields_of(task))
        return {"verb": "bury", "id": task.id, "lease": task.lease, "error": str(error) or "buried"}
    task.error = None if isinstance(error, Retry) else error
    text = str(error) if isinstance(error, Retry) else error_text(error)
    trace = None if isinstance(error, Retry) else (type(error), error, error.__traceback__)
    log.warning("task failed: %s", text.split("\n", 1)[0], extra=fields_of(task), exc_info=trace)
    delay = error.delay if isinstance(error, Retry) and error.delay is not None else None
    return failure(task, text, delay)


def failure(task: RunningTask, text: str, delay: Optional[float] = None) -> FinishPart:
    """A failed attempt: another one follows, unless it was the last."""
    part: FinishPart = {"verb": "fail", "id": task.id, "lease": task.lease, "error": text}
    retries = task.function.retries
    if retries is not None and task.attempts >= retries:
        part["verb"] = "bury"
        return part
    if delay is None:
        delay = task.function.delay_after(task.attempt)
    if delay is not None:
        # Without one the retry policy of the tube applies.
        part["delay"] = delay
    return part


def cancelled(task: RunningTask) -> FinishPart:
    """What becomes of a task whose function was cancelled and has not lost its task."""
    if task.cancel_reason is CancelReason.TIME_LIMIT:
        return failure(task, f"the task function ran longer than its time limit of {task.function.time_limit} s")
    return give_back(task)


def give_back(task: RunningTask) -> FinishPart:
    """Returns a task that was not begun or not finished; this does not count as an attempt."""
    return {"verb": "release", "id": task.id, "lease": task.lease, "delay": 0.0, "counted": False}


def error_text(error: BaseException) -> str:
    """The exception in the first line, then the innermost lines of its traceback, as far as they fit."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip() or type(error).__name__
    text = text.encode("utf-8", "replace")[:ERROR_BYTES_MAX].decode("utf-8", "ignore")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    lines: List[str] = []
    for frame in reversed(frames):
        line = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        line += f"\n    {frame.line}" if frame.line else ""
        if len(text.encode()) + sum(len(line.encode()) + 1 for line in [*lines, line]) > ERROR_BYTES_MAX:
            break
        lines.insert(0, line)
    return "\n".join([text, *lines])


def fields_of(task: RunningTask) -> Dict[str, Any]:
    """The fields of a log record about a task."""
    return {"tube": task.tube, "task": task.id, "attempt": task.attempt}
