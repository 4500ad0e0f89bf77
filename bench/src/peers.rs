//! Runs the programs of other queues and reads the figures that they print.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::Value;

/// Another queue.
pub struct Peer {
    pub name: &'static str,
    /// Its program in the folder of `TASKYARD_PEERS`.
    pub script: &'static str,
    /// The environment variable with its interpreter.
    pub interpreter: &'static str,
}

/// Peers with their figures, or why they were not measured.
pub type PeerResults<'a, T> = [(&'a Peer, Result<T>)];

/// Milliseconds from a put to its start.
#[derive(Deserialize)]
pub struct StartLatency {
    pub p50: f64,
    pub p99: f64,
}

impl Peer {
    /// Runs its program with these settings; the last line of its output is the result.
    pub fn run<T: for<'a> Deserialize<'a>>(&self, settings: &Value) -> Result<T> {
        let missing = "its packages are not installed; `cargo xtask bench` installs them";
        let path = |name: &str| std::env::var_os(name).map(PathBuf::from).context(missing);
        let mut command = Command::new(path(self.interpreter)?);
        command.arg(path("TASKYARD_PEERS")?.join(self.script)).arg(settings.to_string());
        command.env("NODE_PATH", path("TASKYARD_PEERS_NODE_MODULES")?);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "its program failed: {}", output.status);
        let printed = String::from_utf8_lossy(&output.stdout);
        let line = printed.lines().last().ok_or_else(|| anyhow!("its program printed nothing"))?;
        serde_json::from_str(line).with_context(|| format!("its program printed {line}"))
    }
}

/// Lists one figure of each peer.
pub fn compare<T>(results: &PeerResults<'_, T>, words: impl Fn(&T) -> String) -> String {
    let each = results.iter().map(|(peer, measured)| match measured {
        Ok(figures) => format!("{} {}", peer.name, words(figures)),
        Err(_) => format!("{} not measured", peer.name),
    });
    each.collect::<Vec<_>>().join(", ")
}
