"""A program that uses the installed package. It is not run: a type checker reads it, with its strictest settings.

A line with `type: ignore` is wrong on purpose: it is an error if the checker accepts it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import List, Optional

import taskyard
from taskyard import App, AsyncClient, Client, Placed, Position, RunningTask, Task, Worker, current_task

app = App("http://127.0.0.1:7070", token="t", timeout=5.0)


@app.task("mail", retries=5, retry_delay=timedelta(seconds=3), time_limit=60.0, pri=1)
def send(to: str, text: str = "hi") -> int:
    task: RunningTask = current_task()
    if task.is_cancelled:
        raise taskyard.Retry("busy", delay=60)
    return len(to) + len(text) + task.attempt


@app.task()
async def fetch(url: str) -> None:
    raise taskyard.Release(delay=timedelta(minutes=1), counted=True)


size: int = send("ann", text="hi")
placed: Placed = send.put(to="ann", text="hi", delay=60, key="ann-1")
typed: Placed = send.options(delay=60, key="ann-1", unique_for=timedelta(hours=1)).put("ann", text="hi")
many: List[Placed] = send.put_many([{"to": "ann"}], delay=1)
number: int = placed.id
worker: Worker = app.worker(concurrency=4, grace=5.0)
finished: bool = worker.stop()

send(7)  # type: ignore[arg-type]
send.options(delay=60).put(to=7)  # type: ignore[arg-type]
send.options(delay=60).put(too="ann")  # type: ignore[call-arg]
send.options(dealy=60)  # type: ignore[call-arg]
wrong: str = send("ann")  # type: ignore[assignment]
app.task("other", retries="many")  # type: ignore[arg-type]


def use(client: Client) -> None:
    task: Optional[Task] = client.take("mail", wait=5, lease=60)
    if task is not None:
        client.ack(task, result={"sent": True})
    client.put("mail", {"to": "ann"}, key="k", on_conflict="replace")
    client.put("mail", {}, keey="k")  # type: ignore[call-arg]
    position: Optional[Position] = client.put("mail", {}, estimate=True, pri=1).position
    if position is not None and position.estimate is not None:
        within: float = position.estimate.p90
        print(position.ahead, within, position.no_estimate)
    positions: List[Position] = client.positions("mail", [17, 18])
    print(positions, [task.position for task in client.tasks("mail", state="ready", estimate=True)])
    client.positions("mail", "17")  # type: ignore[arg-type]
    try:
        client.tubes()
    except taskyard.RefusedError as error:
        code: str = error.code
        print(code)


async def use_async(client: AsyncClient) -> None:
    put: Placed = await fetch.options(delay=1).put_async(url="http://example.com")
    task: Optional[Task] = await client.take("mail")
    print(put.existing, task)


with app.testing(inline=True) as queue:
    ran: int = queue.run()

asyncio.run(use_async(app.async_client))
use(app.client)
