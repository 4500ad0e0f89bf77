"""Taskyard's own Python package: its task functions, and a worker with as many threads as there are clients."""

import json
import sys
import threading
import time

SETTINGS = json.loads(sys.argv[1])
sys.path.insert(0, SETTINGS["package"])

import taskyard  # noqa: E402

SECONDS, CLIENTS = SETTINGS["seconds"], SETTINGS["clients"]
PAYLOAD = "z" * 89  # 100 bytes as JSON

app = taskyard.App(SETTINGS["url"])
handled = 0
started = None
begun = threading.Event()
lock = threading.Lock()


@app.task("work", retries=0)
def work(data):
    global handled
    with lock:
        handled += 1


@app.task("start", retries=0)
def start(data):
    started.append(time.perf_counter())
    begun.set()


def put_one_by_one():
    counts = []

    def loop():
        puts = 0
        while time.perf_counter() < end:
            work.put(PAYLOAD)
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


def fill(puts):
    """Tasks for some seconds of work: more than were put one by one."""
    backlog = max(SETTINGS["backlog"] - puts, 0)
    for begin in range(0, backlog, 1000):
        work.put_many([{"data": PAYLOAD}] * min(1000, backlog - begin))
    return puts + backlog


def drain(wanted):
    begin = time.perf_counter()
    worker = app.worker(concurrency=CLIENTS, tubes=["work"])
    worker.start()
    while handled < wanted and time.perf_counter() - begin < 120:
        time.sleep(0.005)
    rate = handled / (time.perf_counter() - begin)
    assert worker.stop()
    assert handled == wanted, f"{handled} instead of {wanted}"
    assert app.client.tube("work")["tasks"]["total"] == 0
    return rate


def latency():
    global started
    worker = app.worker(concurrency=CLIENTS, tubes=["start"])
    worker.start()
    time.sleep(1)
    times = []
    for _ in range(SETTINGS["starts"]):
        started = []
        begun.clear()
        begin = time.perf_counter()
        start.put(PAYLOAD)
        assert begun.wait(30), "a task was not started"
        times.append((started[0] - begin) * 1000)
        time.sleep(0.005)
    worker.stop()
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


puts, rate = put_one_by_one()
worked = drain(fill(puts))
figures = {
    "version": taskyard.__version__,
    "put": rate,
    "put_batches": None,
    "drain": worked,
    "start": latency(),
    "settings": f"{CLIENTS} threads put, a worker with {CLIENTS} threads",
}
print(json.dumps(figures))
