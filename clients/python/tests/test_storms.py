"""Random runs: failures, kills and lost answers. `TASKYARD_RUNS` multiplies their work, `TASKYARD_SEED` repeats one."""

from __future__ import annotations

import collections
import os
import random
import subprocess
import sys
import threading
from typing import Callable, List

import taskyard
from tests.fixture import PATIENCE, wait_until
from tests.lossy_transport import LossyTest, random_losses
from tests.worker_process import ProcessTest

RUNS = int(os.environ.get("TASKYARD_RUNS") or "1")
SEED = int(os.environ.get("TASKYARD_SEED") or random.randrange(2**32))
print(f"TASKYARD_SEED={SEED}", file=sys.stderr)


class Storms(ProcessTest):
    def test_a_storm_of_failures_and_kills_loses_no_task(self) -> None:
        """Every task runs at least until it succeeded, while workers and the server are killed."""
        chance = random.Random(SEED)
        count = 10_000 * RUNS
        failures = [chance.choice([0, 0, 0, 1, 2]) for _ in range(count)]
        workers = [self.storm_worker() for _ in range(2)]
        putting = threading.Thread(target=self.put_storm, args=(failures, chance.randrange(1, 50)))
        putting.start()
        for turn in range(2 * RUNS):
            goal = chance.randrange(count)
            self.wait_long(lambda: len(self.ran()) >= goal, "tasks run")
            if turn % 2:
                self.server.kill()
                self.server.start()
            else:
                victim = chance.randrange(2)
                workers[victim].kill()
                workers[victim] = self.storm_worker()
        putting.join()
        self.wait_long(lambda: self.is_empty("storm"), "all tasks are done")
        # A delivery that was lost before it ran counts as an attempt, too: there may be fewer runs than attempts.
        runs = (line.split() for line in self.ran())
        succeeded = {int(number) for number, attempt in runs if int(attempt) > failures[int(number)]}
        self.assertEqual(succeeded, set(range(count)))

    def storm_worker(self) -> subprocess.Popen[bytes]:
        # The tasks of killed workers come back when their leases are over; a busy machine has four seconds to extend others.
        return self.worker("--tube", "storm", "--lease", "6")

    def wait_long(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what, progress=lambda: len(self.ran()))

    def put_storm(self, failures: List[int], batch: int) -> None:
        with taskyard.Client(self.server.url, repeat_for=PATIENCE) as client:
            for start in range(0, len(failures), batch):
                numbers = range(start, min(start + batch, len(failures)))
                client.put_many("storm", [{"number": number, "failures": failures[number]} for number in numbers])


class LostAnswers(LossyTest):
    def test_no_task_runs_again_because_answers_to_its_worker_were_lost(self) -> None:
        chance = random.Random(SEED)
        runs: collections.Counter[int] = collections.Counter()
        failures = [chance.choice([0, 0, 1, 2]) for _ in range(200 * RUNS)]
        app = taskyard.App(self.server.url)
        self.addCleanup(app.client.close)

        @app.task(self.tube, raw=True, retry_delay=0)
        def work(number: int) -> None:
            runs[number] += 1
            if runs[number] <= failures[number]:
                raise ValueError("not yet")

        worker = app.worker(concurrency=4)
        losses = random_losses(chance, ["answer", "request", None, None, None, None])
        worker._own_client = lambda timeout: self.lossy_by(losses)  # type: ignore[method-assign]
        worker.start()
        for number in range(len(failures)):
            work.put(number)
        wait_until(lambda: bool(self.client.tube(self.tube)["tasks"]["total"] == 0), "all tasks are done")
        self.assertTrue(worker.stop())
        self.assertEqual([runs[number] - 1 for number in range(len(failures))], failures)

    def test_many_lost_answers_add_no_task_twice(self) -> None:
        chance = random.Random(SEED)
        client = self.lossy_by(random_losses(chance, ["answer", "request", None, None, None]))
        count = 50 * RUNS
        for number in range(count):
            client.put(self.tube, number)
        data = [task.data for task in self.client.take_many(self.tube, 10_000)]
        self.assertEqual(data, list(range(count)))
