"""RQ: its own jobs, and as many worker processes as there are clients, which do not fork for each job."""

import importlib.metadata
import json
import os
import subprocess
import sys
import threading
import time

import redis
from rq import Queue

SETTINGS = json.loads(os.environ.get("RQ_BENCH") or sys.argv[1])
SECONDS, CLIENTS = SETTINGS["seconds"], SETTINGS["clients"]
PAYLOAD = "z" * 89  # 100 bytes as JSON

server = redis.Redis(port=SETTINGS["port"])


def work(data):
    pass


def start(data):
    # The monotonic clock is the same in all processes.
    server.rpush("started", time.perf_counter())


def enqueue(queue, function):
    queue.enqueue(f"rq-worker.{function.__name__}", PAYLOAD, result_ttl=0)


def put_one_by_one():
    counts = []

    def loop():
        queue, puts = Queue("work", connection=server), 0
        while time.perf_counter() < end:
            enqueue(queue, work)
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


def start_workers():
    """Workers that have registered themselves, so that the time of their start is not measured."""
    folder = os.path.dirname(os.path.abspath(__file__))
    program = [sys.executable, "-c", "import sys; from rq.cli import main; sys.exit(main())"]
    options = ["--url", f"redis://127.0.0.1:{SETTINGS['port']}", "--worker-class", "rq.worker.SimpleWorker"]
    environment = {**os.environ, "RQ_BENCH": json.dumps(SETTINGS), "PYTHONPATH": folder}
    command = [*program, "worker-pool", *options, "--num-workers", str(CLIENTS), "--quiet", "start", "work"]
    pool = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begin = time.perf_counter()
    while server.scard("rq:workers:start") < CLIENTS:
        assert time.perf_counter() - begin < 120, "the workers do not start"
        time.sleep(0.05)
    return pool


def drain(puts):
    begin = time.perf_counter()
    while server.llen("rq:queue:work") + server.zcard("rq:wip:work") > 0 and time.perf_counter() - begin < 300:
        time.sleep(0.005)
    return puts / (time.perf_counter() - begin)


def latency():
    queue, times = Queue("start", connection=server), []
    for _ in range(SETTINGS["starts"]):
        begin = time.perf_counter()
        enqueue(queue, start)
        started = float(server.blpop("started", 30)[1])
        times.append((started - begin) * 1000)
        time.sleep(0.005)
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


if __name__ == "__main__":
    puts, rate = put_one_by_one()
    # The jobs wait in a list of their own until the workers have started.
    server.rename("rq:queue:work", "waiting")
    pool = start_workers()
    server.rename("waiting", "rq:queue:work")
    # A worker waits in the list of its queues; a job wakes the first.
    enqueue(Queue("work", connection=server), work)
    worked = drain(puts + 1)
    figures = {
        "version": importlib.metadata.version("rq"),
        "put": rate,
        "put_batches": None,
        "drain": worked,
        "start": latency(),
        "settings": f"{CLIENTS} threads put, {CLIENTS} worker processes that do not fork",
    }
    pool.terminate()
    pool.wait()
    print(json.dumps(figures))
