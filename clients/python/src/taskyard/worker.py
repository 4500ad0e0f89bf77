"""The worker: takes tasks, runs their functions, sends the outcomes, and stops without losing any."""

from __future__ import annotations

import logging
import signal
import threading
import time
from types import FrameType
from typing import Callable, Dict, Iterable, List, Optional, Union

from .app import App
from .client import LEASE_DEFAULT, Client
from .execution import fields_of, give_back
from .finisher import Finisher
from .lease_keeper import LeaseKeeper
from .pools import LoopPool, Pool, ThreadPool
from .running_task import CancelReason
from .taker import Taker
from .worker_name import worker_name

#: How long the answers to takes may be awaited at a stop, in seconds.
LAST_ANSWERS = 2.0
#: How long cancelled functions may take to end, in seconds.
CANCEL_SECONDS = 1.0
#: The shortest time that outcomes may take to be answered before they are sent again, in seconds.
FINISH_ANSWER_MIN = 1.0
#: How long the last outcomes may take to be sent, in seconds, if the grace ends before.
LAST_OUTCOMES = 10.0
#: How long threads whose requests were ended may take to end, in seconds.
END_SECONDS = 2.0

log = logging.getLogger("taskyard.worker")


class Worker:
    """A worker in this process. `run` blocks until a signal; `start` and `stop` are for other programs.

    `concurrency` functions run at a time in threads, and as many asynchronous ones on an event loop. While a function runs,
    the lease of its task is extended.
    """

    def __init__(
        self,
        app: App,
        *,
        concurrency: int = 10,
        tubes: Optional[Iterable[str]] = None,
        lease: float = LEASE_DEFAULT,
        grace: float = 30.0,
        name: Optional[str] = None,
    ) -> None:
        chosen = list(app.functions if tubes is None else tubes)
        unknown = [tube for tube in chosen if tube not in app.functions]
        if unknown or not chosen:
            raise ValueError(f"no task function for tube '{unknown[0]}'" if unknown else "the app has no task functions")
        if concurrency < 1 or lease <= 0:
            raise ValueError("concurrency must be at least 1, and the lease longer than 0")
        self._app, self._functions = app, [app.functions[tube] for tube in chosen]
        self._concurrency, self._lease, self._grace = concurrency, lease, grace
        self.name = name or worker_name()
        self._clock: Callable[[], float] = time.monotonic
        self._stop_requested = threading.Event()
        self._hurry = threading.Event()
        self._pools: Dict[bool, Pool] = {}
        self._takers: List[Taker] = []
        self._finisher: Optional[Finisher] = None
        self._keeper: Optional[LeaseKeeper] = None
        #: The clients of these two.
        self._clients: List[Client] = []

    def run(self) -> bool:
        """Runs until SIGTERM, SIGINT or `request_stop`; returns whether all functions could finish."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
        self.start()
        # A wait without end would not let signal handlers run on every system.
        while not self._stop_requested.wait(3600):
            pass
        return self.stop()

    def request_stop(self) -> None:
        """Makes `run` stop the worker; a second request does not wait for functions."""
        if self._stop_requested.is_set():
            self._hurry.set()
            if self._finisher is not None:
                self._finisher.hurry(LAST_OUTCOMES)
        self._stop_requested.set()

    def start(self) -> None:
        """Starts the threads of the worker."""
        client = self._app.client
        if self._app._testing is not None:
            raise RuntimeError("a worker cannot run inside of testing(); use run() of the queue")
        # One connection carries the outcomes and the extensions of leases, unless both are sent at the same moment.
        own = self._own_client(max(self._lease / 3, FINISH_ANSWER_MIN))
        self._finisher = finisher = Finisher(own, self._clock)
        for is_async in {function.is_async for function in self._functions}:
            made = LoopPool if is_async else ThreadPool
            self._pools[is_async] = made(self._concurrency, finisher.add)
        keeper_client = own if self._lease / 3 >= FINISH_ANSWER_MIN else self._own_client(self._lease / 3)
        self._clients = [own, keeper_client]
        self._keeper = LeaseKeeper(keeper_client, self._lease, list(self._pools.values()), finisher)
        for function in self._functions:
            pool = self._pools[function.is_async]
            taker = Taker(client, function, pool, finisher, self._lease, self.name)
            self._takers.append(taker)
            taker.start()
        log.info("worker %s runs %d tasks at a time of %s", self.name, self._concurrency, self._tubes())

    def stop(self, grace: Optional[float] = None) -> bool:
        """Takes no more tasks, gives back those that have not begun, and waits for functions; then cancels them.

        Outcomes are sent until the grace is over, or the leases of their tasks. Returns whether all functions could finish and
        all outcomes were sent.
        """
        log.info("worker %s stops", self.name)
        grace = self._grace if grace is None else grace
        grace_ends = self._clock() + grace
        for taker in self._takers:
            taker.stop()
        deadline = time.monotonic() + LAST_ANSWERS
        for taker in self._takers:
            taker.join(deadline)
        for pool in self._pools.values():
            pool.give_back(list(pool.queued))
        finished = self._wait(grace)
        if not finished:
            self._cancel_all()
        for pool in self._pools.values():
            pool.stop()
        left = 0.0 if self._hurry.is_set() else grace_ends - self._clock()
        # Leases are extended until the outcomes of their tasks are answered.
        sent = self._finisher is None or self._finisher.stop(max(left, LAST_OUTCOMES))
        self._end_requests()
        log.info("worker %s stopped", self.name)
        return finished and sent

    def _end_requests(self) -> None:
        """Ends requests whose answers are not awaited any more, and closes all connections."""
        if self._keeper is not None:
            self._keeper.stop()
        for client in self._clients:
            client._end()
        for taker in self._takers:
            taker.abandon()
        deadline = time.monotonic() + END_SECONDS
        threads: List[Union[Taker, LeaseKeeper, Finisher, None]] = [*self._takers, self._keeper, self._finisher]
        for thread in threads:
            if thread is not None:
                thread.join(deadline)

    def _wait(self, seconds: float, hurries: bool = True) -> bool:
        """Waits until no function runs, at most so long."""
        deadline = time.monotonic() + seconds
        while any(pool.held for pool in self._pools.values()):
            if time.monotonic() >= deadline or (hurries and self._hurry.is_set()):
                return False
            self._hurry.wait(0.01) if hurries else time.sleep(0.01)
        return True

    def _cancel_all(self) -> None:
        """Cancels functions that did not finish, and gives their tasks back."""
        for pool in self._pools.values():
            for task in list(pool.held):
                task.cancel(CancelReason.STOPPING)
        self._wait(CANCEL_SECONDS, hurries=False)
        for pool in self._pools.values():
            for task in list(pool.held):
                if task.claim() and self._finisher is not None:
                    log.warning("the task function did not end and is abandoned", extra=fields_of(task))
                    self._finisher.add(task, give_back(task))
                # From now on the finisher holds it.
                pool.held.pop(task, None)

    def _own_client(self, timeout: float) -> Client:
        """A client with connections of its own that repeats nothing by itself.

        A connection that died without a sign is replaced while there is time to extend leases and to send outcomes.
        """
        return self._app.client.copy(repeat_for=0.0, timeout=timeout)

    def _tubes(self) -> str:
        return ", ".join(function.tube for function in self._functions)

    def _on_signal(self, _number: int, _frame: Optional[FrameType]) -> None:
        self.request_stop()
