"""Formats log records as lines of text or of JSON, with the fields that they have in addition to their message."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Dict

#: The fields that all records have; others were given with `extra`.
_USUAL = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"))


def fields_of_record(record: logging.LogRecord) -> Dict[str, Any]:
    """The fields that were given with `extra`."""
    return {name: value for name, value in record.__dict__.items() if name not in _USUAL}


class TextFormatter(logging.Formatter):
    """One line of text, then the traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the fields of the record at its end."""
        fields = [f"{name}={value}" for name, value in fields_of_record(record).items()]
        return " ".join([super().formatMessage(record), *fields])


class JsonFormatter(logging.Formatter):
    """One JSON object for each record, with the name of the worker if there is one."""

    def __init__(self, worker: str = "") -> None:
        super().__init__()
        self._worker = {"worker": worker} if worker else {}

    def format(self, record: logging.LogRecord) -> str:
        """The object as a line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._worker,
            **fields_of_record(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
