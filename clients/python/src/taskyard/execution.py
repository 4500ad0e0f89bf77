"""Runs the function of one task and decides what becomes of the task."""

from __future__ import annotations

import asyncio
import contextvars
import json
import logging
import math
import os
import traceback
from typing import Any, Dict, List, Optional, Union

from . import calls, msgpack
from .errors import Bury, Cancelled, Release, Retry
from .running_task import CURRENT, CancelReason, RunningTask
from .shapes import FinishPart, seconds, value_of

#: What becomes of a delivery: a part of a finish, or one that is encoded already.
Outcome = Union[FinishPart, str]

#: Servers cut longer errors, in bytes.
ERROR_BYTES_MAX = 1024
#: Servers refuse longer results, in bytes of MessagePack.
RESULT_BYTES_MAX = 64 * 1024

log = logging.getLogger("taskyard.worker")
#: The frames of this package say nothing about a failure.
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def run(task: RunningTask) -> Outcome:
    """Runs a function that is not asynchronous. Only `Cancelled` is raised."""
    # What the function sets in its context is not seen by the next task of the thread.
    return contextvars.copy_context().run(_run, task)


def _run(task: RunningTask) -> Outcome:
    CURRENT.set(task)
    try:
        used_up = task.function.used_up(task)
        return used_up if used_up is not None else done(task, task.function.call(task))
    except Cancelled:
        raise
    except BaseException as error:
        return failed(task, error)


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
    part: FinishPart = {"verb": "ack", "id": task.id, "lease": task.lease}
    if result is None:
        return ack(task)
    try:
        with_result = calls.with_result(part, result)
        text = json.dumps(with_result, allow_nan=False)
        # Nothing grows to more than three times its JSON, so that most results need no second encoding.
        size = len(text) if 3 * len(text) <= RESULT_BYTES_MAX else stored_size(text)
        if size > RESULT_BYTES_MAX:
            raise ValueError(f"it has {size} bytes, more than {RESULT_BYTES_MAX}")
    except Exception as error:
        # The work is done: a retry would do it again.
        log.warning("the result of the task cannot be stored: %s", error, extra=fields_of(task))
        return ack(task)
    return text


def stored_size(ack: str) -> int:
    """The size of the result of an ack as servers measure it."""
    return len(msgpack.encode(value_of(json.loads(ack), "result")))


def ack(task: RunningTask) -> str:
    """The ack of a task without a result."""
    return f'{{"verb":"ack","id":{task.id},"lease":{task.lease}}}'


def failed(task: RunningTask, error: BaseException) -> Outcome:
    """What becomes of a task whose function raised an exception."""
    try:
        return _failed(task, error)
    except Exception:
        log.exception("an exception of the task cannot be shown", extra=fields_of(task))
        return failure(task, type(error).__name__)


def _failed(task: RunningTask, error: BaseException) -> Outcome:
    if isinstance(error, Release):
        release = give_back(task)
        release["delay"], release["counted"] = checked_delay(task, error.delay) or 0.0, bool(error.counted)
        return release
    if isinstance(error, Bury):
        log.warning("task buried: %s", error, extra=fields_of(task))
        return {"verb": "bury", "id": task.id, "lease": task.lease, "error": printable(str(error)) or "buried"}
    task.error = None if isinstance(error, Retry) else error
    text = printable(str(error)) if isinstance(error, Retry) else error_text(error)
    trace = None if isinstance(error, Retry) else (type(error), error, error.__traceback__)
    log.warning("task failed: %s", text.split("\n", 1)[0], extra=fields_of(task), exc_info=trace)
    return failure(task, text, checked_delay(task, error.delay) if isinstance(error, Retry) else None)


def failure(task: RunningTask, text: str, delay: Optional[float] = None) -> FinishPart:
    """A failed attempt: another one follows, unless it was the last."""
    part: FinishPart = {"verb": "fail", "id": task.id, "lease": task.lease, "error": text}
    retries = task.function.retries
    if retries is not None and task.attempts >= retries:
        part["verb"] = "bury"
        return part
    if delay is None:
        delay = own_delay(task)
    if delay is not None:
        # Without one the retry policy of the tube applies.
        part["delay"] = delay
    return part


def own_delay(task: RunningTask) -> Optional[float]:
    """The delay that the function of a task sets after a failed attempt; none if it sets none or a wrong one."""
    try:
        delay = task.function.delay_after(task.attempt)
    except Exception:
        log.exception("retry_delay failed; the task follows the retry policy of its tube", extra=fields_of(task))
        return None
    return checked_delay(task, delay)


def checked_delay(task: RunningTask, delay: Any) -> Optional[float]:
    """A delay in seconds; none, and a record in the log, if the value is not one."""
    if delay is None:
        return None
    try:
        number = float(seconds(delay))
    except (TypeError, ValueError):
        number = math.nan
    if number >= 0 and math.isfinite(number):
        return number
    log.error("%r is not a delay; the task follows the retry policy of its tube", delay, extra=fields_of(task))
    return None


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
    text = printable(text)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_PACKAGE)]
    lines: List[str] = []
    for frame in reversed(frames):
        line = f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
        line = printable(line + (f"\n    {frame.line}" if frame.line else ""))
        if len(text.encode()) + sum(len(line.encode()) + 1 for line in [*lines, line]) > ERROR_BYTES_MAX:
            break
        lines.insert(0, line)
    return "\n".join([text, *lines])


def printable(text: str) -> str:
    """The text as servers keep it: not too long, and without halves of characters."""
    return text.encode("utf-8", "replace")[:ERROR_BYTES_MAX].decode("utf-8", "ignore")


def fields_of(task: RunningTask) -> Dict[str, Any]:
    """The fields of a log record about a task."""
    return {"tube": task.tube, "task": task.id, "attempt": task.attempt}
