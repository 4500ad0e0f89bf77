"""The errors of the client, and the exceptions with which a task function decides what becomes of its task."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Type

from .shapes import Seconds


class TaskyardError(Exception):
    """The base of all errors of this package."""


class UnreachableError(TaskyardError):
    """No connection to the server could be made; nothing was done."""


class OutcomeUnknownError(TaskyardError):
    """The answer was lost: the request may have been executed or not."""


class UntrustedError(TaskyardError):
    """The certificate of the server is not trusted, or the server does not trust that of the client; nothing was done."""


class NotTaskyardError(TaskyardError):
    """Another program responds at this address."""


class StaleDeliveryError(TaskyardError):
    """The delivery of the task has ended: its lease expired, or another request finished it."""


class RefusedError(TaskyardError):
    """The server refused the request; nothing was done."""

    def __init__(self, message: str, code: str, status: int, detail: Mapping[str, Any]) -> None:
        super().__init__(message)
        #: The code of the error; the list is in the documentation of the HTTP API.
        self.code = code
        #: The status of the response.
        self.status = status
        #: Further fields, such as `tube` or `limit`.
        self.detail = dict(detail)


class InvalidRequestError(RefusedError):
    """The request itself is wrong."""


class UnauthorizedError(RefusedError):
    """The token is missing or wrong, or the server does not allow this request."""


class TubeNotFoundError(RefusedError):
    """No tube of this name exists."""


class TaskNotFoundError(RefusedError):
    """No task of this id exists in the tube."""


class TubeExistsError(RefusedError):
    """A tube of this name exists already, possibly with other options."""


class TubeFullError(RefusedError):
    """The tube is at its capacity."""


class TooLargeError(RefusedError):
    """Something is larger than its limit."""


class MissingFeatureError(RefusedError):
    """The store of the server does not have the feature."""


class UnavailableError(RefusedError):
    """The server or its store cannot execute requests at the moment; nothing was done."""


_ERRORS: Dict[str, Type[RefusedError]] = {
    "invalid": InvalidRequestError,
    "unauthorized": UnauthorizedError,
    "forbidden": UnauthorizedError,
    "tube_not_found": TubeNotFoundError,
    "task_not_found": TaskNotFoundError,
    "tube_exists": TubeExistsError,
    "tube_full": TubeFullError,
    "too_large": TooLargeError,
    "missing_feature": MissingFeatureError,
    "overloaded": UnavailableError,
    "store_failed": UnavailableError,
    "store_away": UnavailableError,
    "shutting_down": UnavailableError,
}


def error_of(url: object, status: int, answer: object) -> TaskyardError:
    """The error that an answer describes. One that is not of Taskyard may come from a proxy in between."""
    return _error_of_server(status, answer) or _error_of_proxy(url, status)


def _error_of_proxy(url: object, status: int) -> TaskyardError:
    if status in (502, 504):
        return OutcomeUnknownError(f"no answer from {url}: a proxy answered with status {status}")
    if status in (429, 503):
        message = f"{url} is unavailable: a proxy answered with status {status}"
        return UnavailableError(message, "unavailable", status, {})
    if status == 413:
        message = f"the request is too large for {url}: a proxy answered with status {status}"
        return TooLargeError(message, "too_large", status, {})
    return NotTaskyardError(f"{url} is not a taskyard server (status {status}); check the address")


def _error_of_server(status: int, answer: object) -> Optional[TaskyardError]:
    error = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(error, dict):
        return None
    code, message = error.get("code"), error.get("message")
    if not isinstance(code, str) or not isinstance(message, str):
        return None
    if code == "outcome_unknown":
        return OutcomeUnknownError(message)
    detail = {name: value for name, value in error.items() if name not in ("code", "message")}
    return _ERRORS.get(code, RefusedError)(message, code, status, detail)


def is_too_large(error: TaskyardError) -> bool:
    """Whether a part of the request might be accepted."""
    return isinstance(error, RefusedError) and (error.status == 413 or error.code == "too_large")


class TaskOutcome(Exception):
    """The base of the exceptions that a task function raises to decide what becomes of its task."""


class Retry(TaskOutcome):
    """Fails the task as an exception does, with a delay before its next attempt."""

    def __init__(self, reason: str = "retry", delay: Optional[Seconds] = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Release(TaskOutcome):
    """Returns the task to its tube; nothing failed, so it does not count as an attempt unless `counted`."""

    def __init__(self, delay: Seconds = 0.0, counted: bool = False) -> None:
        super().__init__("released")
        self.delay = delay
        self.counted = counted


class Bury(TaskOutcome):
    """Sets the task aside until it is kicked, with this reason as its error."""


class PayloadError(TypeError):
    """The payload of a task cannot be decoded, or is not one that the task function accepts.

    The task is tried again, because a newer worker may accept it, and buried after its attempts: those of the function, of the
    task or of the tube, or ten. A function with `raw` may raise it.
    """


class Cancelled(BaseException):
    """Raised inside a task function whose task was lost or exceeded its time limit, or whose worker stops.

    It is no `Exception`, so that `except Exception` does not catch it.
    """
