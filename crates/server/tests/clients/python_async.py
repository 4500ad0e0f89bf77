"""Plays the scenario with PyPI's `asynctnt` and `asynctnt-queue`: python_async.py SCENARIO HOST PORT.

What the tubes of `asynctnt-queue` have a method for goes through it, everything else by `call`.
"""

import asyncio
import json
import sys

import asynctnt
import asynctnt_queue
from asynctnt.exceptions import TarantoolDatabaseError
from asynctnt_queue.exceptions import TaskEmptyError

SCENARIO, HOST, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])

# Methods of a tube that take a task's id and nothing else.
BY_ID = ("ack", "peek", "bury", "delete")
# The options that `Tube.put` knows.
PUT_OPTIONS = {"pri", "ttl", "ttr", "delay"}


class Player:
    def __init__(self, case):
        # A string must be text in some encoding; in this one all bytes are.
        self.encoding = "latin-1" if case["bytes"] else None
        self.connections = {}
        self.started = {}
        self.kept = {}

    async def act(self, step):
        match step["do"]:
            case "connect":
                await self.connect(step["on"], step["user"], step["password"])
            case "close":
                await self.connections.pop(step["on"]).disconnect()
            case "call":
                connection = await self.connection(step["on"])
                return await call(connection, step["function"], self.filled(step["args"]))
            case "eval":
                connection = await self.connection(step["on"])
                answer = await connection.eval(step["expression"], self.filled(step["args"]))
                return plain(answer.body)
            case "select":
                connection = await self.connection(step["on"])
                return [len((await connection.select(step["space"])).body)]
            case "start":
                connection = await self.connection(step["on"])
                calling = call(connection, step["function"], self.filled(step["args"]))
                self.started[step["label"]] = asyncio.create_task(calling)
                # The new task runs up to its wait before this one goes on, and the server takes
                # the requests of a connection in order.
                await asyncio.sleep(0)
                await connection.call("queue.state")
            case "await":
                return await asyncio.wait_for(self.started.pop(step["label"]), 30)

    async def connection(self, name):
        if name not in self.connections:
            await self.connect(name)
        return self.connections[name]

    async def connect(self, name, username=None, password=None):
        connection = asynctnt.Connection(
            host=HOST,
            port=PORT,
            username=username,
            password=password,
            encoding=self.encoding,
            reconnect_timeout=0,
            connect_timeout=10,
        )
        await connection.connect()
        self.connections[name] = connection

    def filled(self, value):
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, dict):
            return self.kept[value["kept"]] if "kept" in value else value
        return value

    async def end(self):
        for connection in self.connections.values():
            await connection.disconnect()
        # What waited on a connection that was closed has failed, as it should.
        await asyncio.gather(*self.started.values(), return_exceptions=True)


async def call(connection, function, args):
    queue = asynctnt_queue.Queue(connection)
    if function == "queue.statistics":
        return [await queue.statistics(*args)]
    if function.startswith("queue.tube."):
        name, _, verb = function.removeprefix("queue.tube.").rpartition(":")
        calling = by_tube(queue.tube(name), verb, args)
        if calling is not None:
            return await shown(calling)
    return plain((await connection.call(function, args)).body)


def by_tube(tube, verb, args):
    """The call through the tube, or nothing if its methods cannot say this."""
    match verb, args:
        case "put", [data] | [data, []]:
            return tube.put(data)
        case "put", [data, {**options}] if set(options) <= PUT_OPTIONS:
            return tube.put(data, **options)
        case "take", [] | [None]:
            return tube.take()
        case "take", [timeout]:
            return tube.take(timeout)
        case "release", [task_id] | [task_id, []]:
            return tube.release(task_id)
        case "release", [task_id, {"delay": delay, **others}] if not others:
            return tube.release(task_id, delay=delay)
        case "touch", [task_id, seconds] if seconds > 0:
            return tube.touch(task_id, seconds)
        case "kick", [count]:
            return tube.kick(count)
        case verb, [task_id] if verb in BY_ID:
            return getattr(tube, verb)(task_id)
    return None


async def shown(calling):
    """What a tube's method gives, as the answer that it was made from."""
    try:
        answer = await calling
    except TaskEmptyError:
        return [None]
    if answer is None:
        return []
    if isinstance(answer, asynctnt_queue.Task):
        return [[answer.task_id, answer.status.value, answer.data]]
    return [answer]


def plain(value):
    """Lists and maps instead of the client's own types."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        return value
    return [plain(item) for item in value]


async def wrong(player, step):
    """Does the step; what is wrong with its answer, or nothing."""
    try:
        answer = await player.act(step)
    except TarantoolDatabaseError as error:
        refusal = (int(error.code), error.message)
        if step["fails"] is None:
            return f"fails with {refusal}"
        code, part = step["fails"]
        return None if refusal[0] == code and part in refusal[1] else f"fails with {refusal}"
    if step["fails"] is not None:
        return f"gives {answer!r}"
    if step["keeps"] is not None:
        player.kept[step["keeps"]] = answer[0]
    if step["gives"] is not None and answer != player.filled(step["gives"]):
        return f"gives {answer!r}"
    return None


async def main():
    with open(SCENARIO, encoding="utf-8") as file:
        cases = json.load(file)
    for case in cases:
        player = Player(case)
        for step in case["steps"]:
            complaint = await wrong(player, step)
            if complaint:
                sys.exit(f"{case['name']}: {json.dumps(step, indent=1)}\n{complaint}")
        await player.end()
        print("ok:", case["name"])
    print(f"played {len(cases)} cases")


asyncio.run(main())
