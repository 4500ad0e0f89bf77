//! apalis with its SQLite store, compared with our workers, as a separate program: its SQLite and ours cannot be linked together.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::json;

/// Where its program is; `cargo xtask bench` builds it.
const PROGRAM: &str = "TASKYARD_PEER_APALIS";
/// A backlog that suits it: each task costs it more the more there are, with five thousand about ten times as much.
const TASKS_MAX: usize = 1_000;
const STARTS: usize = 300;

/// The figures that it reports.
#[derive(Debug, Deserialize)]
pub struct Figures {
    version: String,
    settings: String,
    /// Tasks a second.
    pub drain: f64,
    /// Milliseconds from a put to its start.
    pub start_p50: f64,
    pub start_p99: f64,
}

impl Figures {
    /// Its figures for the notes.
    pub fn name(&self) -> String {
        format!("apalis {} ({}, {TASKS_MAX} tasks)", self.version, self.settings)
    }
}

/// Runs the same work on a disk of the same kind; `None` when its program is not installed.
pub fn measure(
    folder: &Path,
    tasks: usize,
    processors: usize,
    batch: usize,
) -> Result<Option<Figures>> {
    let Some(program) = std::env::var_os(PROGRAM) else {
        eprintln!("  apalis is not measured: `cargo xtask bench` installs it");
        return Ok(None);
    };
    let folder = folder.join("apalis");
    std::fs::create_dir_all(&folder)?;
    let settings = json!({
        "folder": folder,
        "tasks": tasks.min(TASKS_MAX),
        "processors": processors,
        "batch": batch,
        "starts": STARTS,
    });
    let mut command = Command::new(program);
    command.arg(settings.to_string()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("its program does not start")?;
    ensure!(output.status.success(), "its program failed: {}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let figures: Figures = serde_json::from_str(printed.trim())
        .with_context(|| format!("its program printed {printed}"))?;
    let Figures { drain, start_p50, start_p99, .. } = &figures;
    eprintln!(
        "  {}: {drain:.0} tasks/s, put to start p50 {start_p50:.2} ms, p99 {start_p99:.2} ms",
        figures.name()
    );
    Ok(Some(figures))
}
