"""Celery: its own tasks, and a worker process with as many threads as there are clients."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time

import redis
from celery import Celery

SETTINGS = json.loads(os.environ.get("CELERY_BENCH") or sys.argv[1])
SECONDS, CLIENTS = SETTINGS["seconds"], SETTINGS["clients"]
PAYLOAD = "z" * 89  # 100 bytes as JSON

app = Celery("bench", broker=f"redis://127.0.0.1:{SETTINGS['port']}/0")
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False, broker_connection_retry_on_startup=True)
server = redis.Redis(port=SETTINGS["port"])


@app.task(name="work")
def work(data):
    pass


@app.task(name="start")
def start(data):
    # The monotonic clock is the same in both processes.
    server.rpush("started", time.perf_counter())


def put_one_by_one():
    counts = []

    def loop():
        puts = 0
        while time.perf_counter() < end:
            work.delay(PAYLOAD)
            puts += 1
        counts.append(puts)

    begin = time.perf_counter()
    end = begin + SECONDS
    threads = [threading.Thread(target=loop) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), sum(counts) / (time.perf_counter() - begin)


def start_worker():
    """A worker that has run a task, so that the time of its start is not measured."""
    program = [sys.executable, "-m", "celery", "--quiet", "--workdir", os.path.dirname(os.path.abspath(__file__))]
    options = ["--pool", "threads", "--concurrency", str(CLIENTS), "--loglevel", "CRITICAL"]
    options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    environment = {**os.environ, "CELERY_BENCH": json.dumps(SETTINGS)}
    worker = subprocess.Popen([*program, "-A", "celery-worker", "worker", *options], env=environment, stdout=2)
    start.delay(PAYLOAD)
    assert server.blpop("started", 60), "the worker does not start"
    return worker


def drain(puts):
    begin = time.perf_counter()
    while server.llen("celery") + server.hlen("unacked") > 0 and time.perf_counter() - begin < 120:
        time.sleep(0.005)
    return puts / (time.perf_counter() - begin)


def latency():
    times = []
    for _ in range(SETTINGS["starts"]):
        begin = time.perf_counter()
        start.delay(PAYLOAD)
        started = float(server.blpop("started", 30)[1])
        times.append((started - begin) * 1000)
        time.sleep(0.005)
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


if __name__ == "__main__":
    puts, rate = put_one_by_one()
    # The tasks wait in a list of their own until the worker has started.
    server.rename("celery", "waiting")
    worker = start_worker()
    server.rename("waiting", "celery")
    worked = drain(puts)
    figures = {
        "version": importlib.metadata.version("celery"),
        "put": rate,
        "put_batches": None,
        "drain": worked,
        "start": latency(),
        "settings": f"{CLIENTS} threads put, a worker with {CLIENTS} threads, no results",
    }
    worker.terminate()
    worker.wait()
    print(json.dumps(figures))
