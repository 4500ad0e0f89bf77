"""pgmq: its own functions, called by pgbench as an application would call them, and NOTIFY for the start.

The SQL of the extension is not part of this repository: `cargo xtask bench` gets it from the crate of that name.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

import psycopg

SETTINGS = json.loads(sys.argv[1])
SECONDS, CLIENTS, BATCH = SETTINGS["seconds"], SETTINGS["clients"], SETTINGS["batch"]
SQL = pathlib.Path(os.environ["TASKYARD_PEER_PGMQ"])
CONNINFO = f"host={SETTINGS['socket']} user=postgres dbname=postgres"
MESSAGE = '{"to": "alice@example.com", "subject": "Your invoice of March", "number": 1234567, "urgent": false}'
TABLE = "pgmq.q_bench"


def text(value):
    return "'" + value.replace("'", "''") + "'"


# Each statement contains its messages, as a client sends them.
ARRAY = "{" + ",".join('"' + MESSAGE.replace('"', '\\"') + '"' for _ in range(BATCH)) + "}"
PUT = f"SELECT pgmq.send('bench', {text(MESSAGE)}::jsonb);"
PUT_BATCH = f"SELECT count(*) FROM pgmq.send_batch('bench', {text(ARRAY)}::jsonb[]);"
# The messages are made in the database, so nothing is sent or parsed.
PUT_MADE_THERE = (
    f"SELECT count(*) FROM pgmq.send_batch('bench', array_fill({text(MESSAGE)}::jsonb, ARRAY[{BATCH}]));"
)


def drain(count):
    return (
        f"SELECT array_agg(msg_id) AS ids FROM pgmq.read('bench', 60, {count}) \\gset\n"
        "SELECT count(*) FROM pgmq.delete('bench', :ids::bigint[]);"
    )


def connect():
    return psycopg.connect(CONNINFO, autocommit=True)


def left():
    with connect() as connection:
        return connection.execute(f"SELECT count(*) FROM {TABLE}").fetchone()[0]


def empty():
    with connect() as connection:
        connection.execute("SELECT pgmq.purge_queue('bench')")


def clean():
    """Fresh tables, so that the time of the last autovacuum does not matter."""
    with connect() as connection:
        connection.execute(f"VACUUM (ANALYZE) {TABLE}")


def pgbench(script, clients, protocol):
    """Runs a script for a while; answers how many tasks each second were added, or removed if that is negative."""
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        before, begin = left(), time.perf_counter()
        command = ["pgbench", "-n", "-h", SETTINGS["socket"], "-U", "postgres", "-M", protocol]
        command += ["-c", str(clients), "-j", "1", "-T", str(max(1, round(SECONDS))), "-f", file.name, "postgres"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        moved, took = left() - before, time.perf_counter() - begin
    calls = float(re.search(r"transactions actually processed: (\d+)", output).group(1))
    rate = float(re.search(r"tps = ([0-9.]+)", output).group(1))
    assert 0 < calls <= rate * took * 1.1, output
    return moved / calls * rate


def put_to_start():
    """One worker that listens, and reads when it is notified."""
    with connect() as connection:
        connection.execute("SELECT pgmq.enable_notify_insert('bench', 0)")
    started, ready = threading.Semaphore(0), threading.Event()
    at = [0.0]

    def work():
        with connect() as listening, connect() as connection:
            listening.execute('LISTEN "pgmq.q_bench.INSERT"')
            ready.set()
            handled = 0
            for _ in listening.notifies():
                for (task,) in connection.execute("SELECT msg_id FROM pgmq.read('bench', 60, 1)").fetchall():
                    at[0] = time.perf_counter()
                    connection.execute("SELECT pgmq.delete('bench', %s::bigint)", [task])
                    handled += 1
                    started.release()
                if handled == SETTINGS["starts"]:
                    return

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    ready.wait()
    times = []
    with connect() as connection:
        for _ in range(SETTINGS["starts"]):
            begin = time.perf_counter()
            connection.execute(PUT)
            assert started.acquire(timeout=10), "a worker was not notified"
            times.append((at[0] - begin) * 1000)
            time.sleep(0.005)
    worker.join()
    times.sort()
    return {"p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)]}


def main():
    with connect() as connection:
        connection.execute(SQL.read_text())
        connection.execute("SELECT pgmq.create('bench')")
    put = pgbench(PUT, CLIENTS, "prepared")
    clean()
    single = -pgbench(drain(1), CLIENTS, "prepared")
    empty()
    made_there = pgbench(PUT_MADE_THERE, 4, "prepared")
    empty()
    batches = pgbench(PUT_BATCH, 4, "simple")
    clean()
    small = -pgbench(drain(100), 4, "prepared")
    clean()
    large = -pgbench(drain(BATCH), 4, "prepared")
    empty()
    clean()
    settings = (
        f"pgbench; {made_there:.0f}/s put in batches of messages that are made in the database; drain in batches of 100 "
        f"{small:.0f}/s, of {BATCH} {large:.0f}/s, the faster one counts"
    )
    figures = {
        "version": version(),
        "put": put,
        "put_batches": batches,
        "drain_batches": max(small, large),
        "drain": single,
        "start": put_to_start(),
        "settings": settings,
    }
    print(json.dumps(figures))


def version():
    """The version of the SQL: the last one that an upgrade beside it leads to."""
    control = (SQL.parent.parent / "pgmq.control").read_text()
    return re.search(r"default_version = '([^']+)'", control).group(1)


main()
