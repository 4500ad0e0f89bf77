//! Waits for the signals that end the view.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the view.
pub struct ViewSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl ViewSignals {
    /// SIGINT and SIGTERM. SIGHUP keeps the disposition that the parent process set.
    pub fn listen() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(ViewSignals { interrupt, terminate: signal(SignalKind::terminate())?, hangup: None })
    }

    /// SIGHUP too, for a view that has to restore the terminal.
    pub fn with_hangup() -> io::Result<Self> {
        Ok(ViewSignals { hangup: Some(signal(SignalKind::hangup())?), ..ViewSignals::listen()? })
    }

    /// Waits for one of them.
    pub async fn requested(&mut self) {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hangup => {}
        }
    }
}
