"""Plays the scenario with PyPI's `tarantool`: python_sync.py SCENARIO HOST PORT.

The client does one request at a time, so what waits runs in a thread with its connection.
"""

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import tarantool
from tarantool.error import DatabaseError, NetworkError

SCENARIO, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])


class Player:
    def __init__(self, case):
        # By default the client reads every string as UTF-8, and names of sessions are none.
        self.encoding = None if case["bytes"] else "utf-8"
        self.connections = {}
        self.started = {}
        self.kept = {}
        self.threads = ThreadPoolExecutor()

    def act(self, step):
        match step["do"]:
            case "connect":
                self.connect(step["on"], step["user"], step["password"])
            case "close":
                self.close(step["on"])
            case "call":
                connection = self.connection(step["on"])
                return connection.call(step["function"], self.filled(step["args"])).data
            case "eval":
                connection = self.connection(step["on"])
                return connection.eval(step["expression"], self.filled(step["args"])).data
            case "select":
                return [len(self.connection(step["on"]).select(step["space"]))]
            case "start":
                self.start(step)
            case "await":
                return self.started.pop(step["label"]).result(timeout=30).data

    def start(self, step):
        """Starts the call; if it is a take, returns when it waits on the server."""
        call, before = self.connection(step["on"]).call, self.consumers()
        started = self.threads.submit(call, step["function"], self.filled(step["args"]))
        self.started[step["label"]] = started
        is_take = ":take" in step["function"]
        while is_take and not started.done() and self.consumers() == before:
            time.sleep(0.001)

    def consumers(self):
        return len(self.connection("observer").select("_queue_consumers"))

    def connection(self, name):
        if name not in self.connections:
            self.connect(name)
        return self.connections[name]

    def connect(self, name, user=None, password=None):
        self.connections[name] = tarantool.Connection(
            HOST,
            PORT,
            user=user,
            password=password,
            encoding=self.encoding,
            reconnect_max_attempts=0,
            connection_timeout=10,
        )

    def close(self, name):
        connection = self.connections.pop(name)
        # Closing alone would not end a read in another thread.
        connection._socket.shutdown(socket.SHUT_RDWR)
        connection.close()

    def filled(self, value):
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, dict):
            return self.kept[value["kept"]] if "kept" in value else value
        return value

    def end(self):
        for name in list(self.connections):
            self.close(name)
        self.threads.shutdown()


def text(value):
    """Bytes that are UTF-8 as a text: without an encoding the client gives bytes only."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, list):
        return [text(item) for item in value]
    if isinstance(value, dict):
        return {text(key): text(item) for key, item in value.items()}
    return value


def wrong(player, step):
    """Does the step; what is wrong with its answer, or nothing."""
    try:
        answer = text(player.act(step))
    except DatabaseError as error:
        # Why a connection was refused stands behind the failure to connect.
        cause = error.__cause__ if isinstance(error, NetworkError) else error
        refusal = (getattr(cause, "code", 0), text(getattr(cause, "message", str(cause))))
        if step["fails"] is None:
            return f"fails with {refusal}"
        code, part = step["fails"]
        return None if refusal[0] == code and part in refusal[1] else f"fails with {refusal}"
    if step["fails"] is not None:
        return f"gives {answer!r}"
    if step["keeps"] is not None:
        player.kept[step["keeps"]] = answer[0]
    if step["gives"] is not None and answer != text(player.filled(step["gives"])):
        return f"gives {answer!r}"
    return None


def main():
    with open(SCENARIO, encoding="utf-8") as file:
        cases = json.load(file)
    for case in cases:
        player = Player(case)
        for step in case["steps"]:
            complaint = wrong(player, step)
            if complaint:
                sys.exit(f"{case['name']}: {json.dumps(step, indent=1)}\n{complaint}")
        player.end()
        print("ok:", case["name"])
    print(f"played {len(cases)} cases")


main()
