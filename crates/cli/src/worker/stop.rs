//! Being asked to stop: the first signal asks, the second insists.

use std::{fs, io};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often somebody has asked to stop.
pub struct Stop(watch::Receiver<u32>);

impl Stop {
    /// Counts SIGINT, SIGTERM and SIGHUP from now on. The last is counted because a command in a
    /// group of its own does not end with the terminal, so the worker must not either.
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
        Ok(Stop(receiver))
    }

    /// Whether somebody has asked.
    pub fn is_asked(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Ready once somebody has asked.
    pub async fn asked(&self) {
        self.times(1).await;
    }

    /// Ready once somebody has asked again.
    pub async fn insisted(&self) {
        self.times(2).await;
    }

    async fn times(&self, least: u32) {
        let mut times = self.0.clone();
        // An error is a runtime that is ending, which is a stop too.
        let _ = times.wait_for(|times| *times >= least).await;
    }
}

/// Whether whoever started us wants a closed terminal to be ignored.
fn is_under_nohup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    // The signals count from one, the bits from zero, and SIGHUP is the first.
    ignored.is_some_and(|bits| bits & 1 != 0)
}
