"""Formats log records as lines of text or of JSON, with the tube, the task and the attempt that they are about."""

from __future__ import annotations

import json
import logging
import time

_FIELDS = ("tube", "task", "attempt")


class TextFormatter(logging.Formatter):
    """One line of text, then the traceback if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with the fields of the record at its end."""
        fields = [f"{name}={getattr(record, name)}" for name in _FIELDS if hasattr(record, name)]
        return " ".join([super().formatMessage(record), *fields])


class JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """The object as a line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({name: getattr(record, name) for name in _FIELDS if hasattr(record, name)})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
