// Waits for times, signals and promises.

/** Resolves after this time; rejects with the reason of the signal if that is aborted first. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, ms);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

/** Resolves when the signal is aborted. */
export function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}

/** Resolves when the work is done, or after this time. */
export async function within(work: Promise<unknown>, ms: number): Promise<void> {
  const over = new AbortController();
  const timer = pause(ms, over.signal).catch(() => undefined);
  await Promise.race([work, timer]);
  over.abort();
}
