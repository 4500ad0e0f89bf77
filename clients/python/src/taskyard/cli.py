"""The command line: `python -m taskyard worker module:app`."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import threading
from typing import List, Optional, Sequence

from .app import App
from .client import LEASE_DEFAULT
from .logs import JsonFormatter, TextFormatter
from .supervisor import CANNOT_LOAD, Supervisor
from .version import VERSION
from .worker import Worker
from .worker_name import worker_name


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Runs a command and returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    options.name = options.name or worker_name(options.app.partition(":")[0])
    _set_up_logging(options)
    if options.processes > 1:
        # A later option replaces an earlier one.
        return Supervisor([*given, "--processes=1", "--supervised"], options.processes, options.grace).run()
    return _work(options)


def worker_main() -> int:
    """The command `taskyard-worker`."""
    return main(["worker", *sys.argv[1:]])


def load_app(name: str) -> App:
    """Imports the application `module:attribute`; the attribute is `app` unless given."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: object = importlib.import_module(module)
    for part in (attribute or "app").split("."):
        found = getattr(found, part)
    if not isinstance(found, App):
        raise TypeError(f"{name} is not a taskyard.App")
    return found


def _work(options: argparse.Namespace) -> int:
    try:
        app = load_app(options.app)
        tubes: Optional[List[str]] = options.tube
        worker = app.worker(
            concurrency=options.concurrency, tubes=tubes, lease=options.lease, grace=options.grace, name=options.name
        )
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"taskyard: cannot load {options.app}: {error}", file=sys.stderr)
        return CANNOT_LOAD
    if options.supervised:
        threading.Thread(target=_stop_with_parent, args=(worker,), name="taskyard-parent", daemon=True).start()
    finished = worker.run()
    # Functions that did not end must not keep the process alive.
    logging.shutdown()
    sys.stdout.flush()
    os._exit(0 if finished else 1)


def _stop_with_parent(worker: Worker) -> None:
    """The input of a supervised process ends when its parent ends."""
    while os.read(0, 1024):
        pass
    worker.request_stop()


def _set_up_logging(options: argparse.Namespace) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(options.name) if options.log_format == "json" else TextFormatter())
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m taskyard", description="Runs tasks of the task queue Taskyard.")
    parser.add_argument("--version", action="version", version=f"taskyard {VERSION}")
    commands = parser.add_subparsers(dest="command", required=True)
    worker = commands.add_parser(
        "worker",
        help="run the tasks of an application",
        description="Runs the tasks of an application. SIGTERM and SIGINT stop it: it takes no more tasks, waits for those that"
        " run, and gives back the rest; a second signal does not wait.",
        epilog="The server is that of the application, by default TASKYARD_URL with TASKYARD_TOKEN and TASKYARD_CA.",
    )
    add = worker.add_argument
    add("app", metavar="MODULE:APP", help="the application, such as mail.tasks:app")
    add("--concurrency", type=_positive, default=10, metavar="N", help="tasks that a process runs at a time [10]")
    add("--processes", type=_positive, default=1, metavar="N", help="number of processes [1]")
    add("--tube", action="append", metavar="TUBE", help="only tasks of this tube; may be repeated")
    add("--lease", type=float, default=LEASE_DEFAULT, metavar="SECONDS", help="lease of a task, which is extended [60]")
    add("--grace", type=float, default=30.0, metavar="SECONDS", help="how long running tasks may finish at a stop [30]")
    add("--name", metavar="NAME", help="name of the worker in lists [host:process:module]")
    add("--log-level", default="info", choices=["debug", "info", "warning", "error"], help="[info]")
    add("--log-format", default="text", choices=["text", "json"], help="lines of text or of JSON [text]")
    add("--supervised", action="store_true", help=argparse.SUPPRESS)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number
