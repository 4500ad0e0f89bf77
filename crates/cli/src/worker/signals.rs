//! Counts the signals that ask the worker to stop: the first one ends it after its task, the second one at once.

use std::{fs, io};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The number of stop signals that were received.
pub struct StopRequests(watch::Receiver<u32>);

impl StopRequests {
    /// Counts SIGINT, SIGTERM and SIGHUP from now on. SIGHUP is counted because a command in its own process group does not
    /// end with the terminal, so the worker must not either.
    pub fn listen() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = if is_under_nohup() { None } else { Some(signal(SignalKind::hangup())?) };
        let (sender, receiver) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = async { hangup.as_mut()?.recv().await }, if hangup.is_some() => {}
                }
                sender.send_modify(|times| *times += 1);
            }
        });
        Ok(StopRequests(receiver))
    }

    /// Whether a signal was received.
    pub fn is_requested(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Ready when one signal was received.
    pub async fn requested(&self) {
        self.times(1).await;
    }

    /// Ready when a second signal was received.
    pub async fn repeated(&self) {
        self.times(2).await;
    }

    async fn times(&self, least: u32) {
        let mut times = self.0.clone();
        // A closed channel means that the runtime ends.
        let _ = times.wait_for(|times| *times >= least).await;
    }
}

/// Whether the parent process ignores SIGHUP, as `nohup` does.
fn is_under_nohup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    // SIGHUP is signal 1 and bit 0.
    ignored.is_some_and(|bits| bits & 1 != 0)
}
