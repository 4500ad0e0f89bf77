// Stops the workers of this process at SIGTERM and SIGINT.

/** What a signal stops. */
export interface Stoppable {
  stop(options?: { grace?: number }): Promise<void>;
}

const SIGNALS = ["SIGTERM", "SIGINT"] as const;
const workers = new Set<Stoppable>();
let signalled = false;

/** From now on the signals stop this worker. */
export function stopAtSignals(worker: Stoppable): void {
  if (workers.size === 0) for (const signal of SIGNALS) process.on(signal, onSignal);
  workers.add(worker);
}

/** The worker has stopped. */
export function forgetSignals(worker: Stoppable): void {
  workers.delete(worker);
  if (workers.size === 0 && !signalled) for (const signal of SIGNALS) process.off(signal, onSignal);
}

/** The first signal stops all workers with their grace, the second one without. */
function onSignal(signal: NodeJS.Signals): void {
  const again = signalled;
  signalled = true;
  const stopped = [...workers].map((worker) => worker.stop(again ? { grace: 0 } : {}));
  if (again) return;
  void Promise.allSettled(stopped).then(() => {
    signalled = false;
    for (const name of SIGNALS) process.off(name, onSignal);
    // The signal ends the process as it would without workers, unless the program handles it.
    if (process.listenerCount(signal) === 0) process.kill(process.pid, signal);
  });
}
