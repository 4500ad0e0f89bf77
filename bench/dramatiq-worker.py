"""dramatiq: its own actors, and a worker with as many threads as there are clients."""

import importlib.metadata
import json
import logging
import sys
import threading
import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

SETTINGS = json.loads(sys.argv[1])
SECONDS, CLIENTS = SETTINGS["seconds"], SETTINGS["clients"]
PAYLOAD = "z" * 89  # 100 bytes as JSON

logging.getLogger("dramatiq").setLevel(logging.CRITICAL)
broker = RedisBroker(host="127.0.0.1", port=SETTINGS["port"])
dramatiq.set_broker(broker)
lock = threading.Lock()
handled = 0
started = None


@dramatiq.actor(queue_name="work", max_retries=0)
def work(data):
    global handled
    with lock:
        handled += 1


@dramatiq.actor(queue_name="start", max_retries=0)
def start(data):
    started.append(time.perf_counter())
    begun.set()


begun = threading.Event()


def put_one_by_one():
    counts = []

    def loop():
        puts = 0
        while time.perf_counter() < end:
            work.send(PAYLOAD)
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


def drain(wanted):
    begin = time.perf_counter()
    worker = dramatiq.Worker(broker, queues={"work"}, worker_threads=CLIENTS)
    worker.start()
    while handled < wanted and time.perf_counter() - begin < 120:
        time.sleep(0.005)
    rate = handled / (time.perf_counter() - begin)
    worker.stop()
    assert handled == wanted, f"{handled} instead of {wanted}"
    return rate


def latency():
    global started
    worker = dramatiq.Worker(broker, queues={"start"}, worker_threads=CLIENTS)
    worker.start()
    time.sleep(1)
    times = []
    for _ in range(SETTINGS["starts"]):
        started = []
        begun.clear()
        begin = time.perf_counter()
        start.send(PAYLOAD)
        assert begun.wait(30), "a task was not started"
        times.append((started[0] - begin) * 1000)
        time.sleep(0.005)
    worker.stop()
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


puts, rate = put_one_by_one()
worked = drain(puts)
figures = {
    "version": importlib.metadata.version("dramatiq"),
    "put": rate,
    "put_batches": None,
    "drain": worked,
    "start": latency(),
    "settings": f"{CLIENTS} threads put, a worker with {CLIENTS} threads",
}
print(json.dumps(figures))
