"""procrastinate: its own tasks and worker, on an asynchronous pool of connections."""

import asyncio
import importlib.metadata
import json
import logging
import sys
import time

import procrastinate
import psycopg

SETTINGS = json.loads(sys.argv[1])
SECONDS, CLIENTS, BATCH = SETTINGS["seconds"], SETTINGS["clients"], SETTINGS["batch"]
PAYLOAD = "z" * 89  # 100 bytes as JSON

logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
CONNINFO = f"host={SETTINGS['socket']} user=postgres dbname=postgres"
connector = procrastinate.PsycopgConnector(conninfo=CONNINFO, min_size=CLIENTS, max_size=CLIENTS + 2)
app = procrastinate.App(connector=connector)
started = None
handled = 0


@app.task(name="work")
async def work(data):
    global handled
    handled += 1
    if started is not None and not started.done():
        started.set_result(time.perf_counter())


async def count(status):
    row = await connector.execute_query_one_async(
        "SELECT count(*) AS count FROM procrastinate_jobs WHERE status = %(status)s", status=status
    )
    return row["count"]


async def clean():
    """Fresh tables, so that the time of the last autovacuum does not matter."""
    async with await psycopg.AsyncConnection.connect(CONNINFO, autocommit=True) as connection:
        await connection.execute("VACUUM (ANALYZE) procrastinate_jobs")


async def put_one_by_one():
    end = time.perf_counter() + SECONDS
    puts = 0

    async def loop():
        nonlocal puts
        while time.perf_counter() < end:
            await work.defer_async(data=PAYLOAD)
            puts += 1

    begin = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(CLIENTS)))
    rate = puts / (time.perf_counter() - begin)
    assert await count("todo") == puts
    return rate


async def put_in_batches():
    end = time.perf_counter() + SECONDS
    before, puts = await count("todo"), 0

    async def loop():
        nonlocal puts
        while time.perf_counter() < end:
            await work.batch_defer_async(*({"data": PAYLOAD} for _ in range(BATCH)))
            puts += BATCH

    begin = time.perf_counter()
    await asyncio.gather(*(loop() for _ in range(4)))
    rate = puts / (time.perf_counter() - begin)
    assert await count("todo") == before + puts
    return rate


async def drain(concurrency):
    """Lets a worker run for a while; there is more than it can do."""
    await clean()
    before, first = await count("todo"), handled
    begin = time.perf_counter()
    worker = asyncio.create_task(
        app.run_worker_async(concurrency=concurrency, install_signal_handlers=False, delete_jobs="always")
    )
    while time.perf_counter() - begin < SECONDS and handled - first < before:
        await asyncio.sleep(0.01)
    rate = (handled - first) / (time.perf_counter() - begin)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    assert before - await count("todo") >= handled - first - concurrency
    return rate


async def put_to_start():
    global started
    await connector.execute_query_async("DELETE FROM procrastinate_jobs")
    await clean()
    worker = asyncio.create_task(
        app.run_worker_async(concurrency=CLIENTS, install_signal_handlers=False, delete_jobs="always")
    )
    await asyncio.sleep(1)
    times = []
    for _ in range(SETTINGS["starts"]):
        started = asyncio.get_running_loop().create_future()
        begin = time.perf_counter()
        await work.defer_async(data=PAYLOAD)
        times.append((await started - begin) * 1000)
        await asyncio.sleep(0.005)
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


async def main():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        put = await put_one_by_one()
        single = await drain(CLIENTS)
        await connector.execute_query_async("DELETE FROM procrastinate_jobs")
        await clean()
        batches = await put_in_batches()
        figures = {
            "version": importlib.metadata.version("procrastinate"),
            "put": put,
            "put_batches": batches,
            "drain_batches": await drain(2 * CLIENTS),
            "drain": single,
            "start": await put_to_start(),
            "settings": "asynchronous pool of 18; drain: 32 jobs at a time, for it fetches no batches",
        }
        print(json.dumps(figures))


asyncio.run(main())
