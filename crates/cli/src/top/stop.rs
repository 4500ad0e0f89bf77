//! Being asked to stop by a signal.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end the view.
pub struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Stop {
    /// SIGINT and SIGTERM. A closed terminal does what whoever started us has chosen for it.
    pub fn listen() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Stop { interrupt, terminate: signal(SignalKind::terminate())?, hangup: None })
    }

    /// SIGHUP too, for who has a terminal to give back.
    pub fn with_hangup() -> io::Result<Self> {
        Ok(Stop { hangup: Some(signal(SignalKind::hangup())?), ..Stop::listen()? })
    }

    /// Ready once one of them came.
    pub async fn asked(&mut self) {
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
