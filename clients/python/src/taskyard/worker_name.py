"""The name of this process when it takes tasks."""

from __future__ import annotations

import os
import socket
import sys
from typing import Optional


def worker_name(program: Optional[str] = None) -> str:
    """The name of this process as a worker: host, process id and program."""
    name = program or os.path.basename(sys.argv[0] if sys.argv else "") or "python"
    text = f"{socket.gethostname() or 'localhost'}:{os.getpid()}:{name}"
    clean = "".join(char if char.isprintable() else "_" for char in text)
    return clean.encode("utf-8", "replace")[:128].decode("utf-8", "ignore")
