//! A pool whose backends always have another task, so that sandboxes cannot be started ahead of tasks.
//!
//! In turns: the pool as it is installed, the pool without the small program `taskyard-sandbox`, which then starts its whole executable in each
//! sandbox, and bubblewrap with a shell in the same kind of sandbox without any pool.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use super::super::report::{Report, Row, Target};
use super::gateway::{Gateway, Line};

/// Sandboxes at a time.
const BACKENDS: usize = 4;
/// Clients that always have another task.
const CLIENTS: usize = 8;
/// Tasks of one turn.
const TASKS: usize = 200;
/// Turns of each of the three.
const TURNS: usize = 7;
/// In percent: when the init process was a shell, a pool ran 144 tasks a second, and 124 to 131 with the whole executable.
const AS_A_SHELL: f64 = 113.0;
/// Where Debian installs it.
const BUBBLEWRAP: &str = "/usr/bin/bwrap";

pub async fn measure(report: &mut Report) -> Result<()> {
    let lone = LoneProgram::copy()?;
    let config = format!("backends: {BACKENDS}\nprograms: {{none: {{command: [/bin/true]}}}}\n");
    let installed = Gateway::start(&config)?;
    let without = Gateway::start_program(&lone.program, &config)?;
    let (mut rates, mut large, mut shell) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..TURNS {
        rates.push(busy(&installed.address).await?);
        large.push(busy(&without.address).await?);
        shell.push(tokio::task::spawn_blocking(shells).await??);
    }
    let ratio = |others: &[f64]| {
        let mut ratios: Vec<_> = rates.iter().zip(others).map(|(own, other)| own / other).collect();
        median(&mut ratios)
    };
    let (to_large, to_shell) = (ratio(&large), ratio(&shell));
    report.add(Row {
        what: "pool: always busy, of the rate with the whole executable in each sandbox".into(),
        figure: to_large * 100.0,
        unit: "%",
        target: Some(Target::AtLeast(AS_A_SHELL)),
        note: format!(
            "median of {TURNS} turns; {:.0} tasks/s, {BACKENDS} backends, {CLIENTS} clients; with the whole executable {:.0}; {:.0} % of the rate of \
             a shell in bubblewrap without a pool ({:.0})",
            median(&mut rates),
            median(&mut large),
            to_shell * 100.0,
            median(&mut shell)
        ),
    });
    Ok(())
}

fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The product alone in a folder of its own.
struct LoneProgram {
    folder: PathBuf,
    program: PathBuf,
}

impl LoneProgram {
    fn copy() -> Result<Self> {
        let folder = format!("taskyard-bench-lone-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fs::create_dir_all(&folder)?;
        let program = folder.join("taskyard");
        fs::copy(crate::product()?, &program)?;
        Ok(LoneProgram { folder, program })
    }
}

impl Drop for LoneProgram {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.folder);
    }
}

/// Tasks a second through a pool.
async fn busy(address: &str) -> Result<f64> {
    let begin = Instant::now();
    let mut clients = JoinSet::new();
    let started = Arc::new(AtomicUsize::new(0));
    for _ in 0..CLIENTS {
        let (address, started) = (address.to_owned(), Arc::clone(&started));
        clients.spawn(async move {
            while started.fetch_add(1, Ordering::Relaxed) < TASKS {
                run_one(&address).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    Ok(TASKS as f64 / begin.elapsed().as_secs_f64())
}

async fn run_one(address: &str) -> Result<()> {
    let mut line = Line::open(address, "none").await?;
    line.say_start().await?;
    loop {
        let text = line.text().await?;
        if text.starts_with("complete ") {
            ensure!(text == "complete {}", "it failed: {text}");
            return Ok(());
        }
    }
}

/// Sandboxes a second with a shell in each, started by as many threads as there are backends.
fn shells() -> Result<f64> {
    let (begin, started) = (Instant::now(), AtomicUsize::new(0));
    let folder = std::env::temp_dir().join(format!("taskyard-bench-shell-{}", std::process::id()));
    let failed = std::sync::Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..BACKENDS {
            scope.spawn(|| {
                loop {
                    let number = started.fetch_add(1, Ordering::Relaxed);
                    if number >= TASKS {
                        return;
                    }
                    if let Err(error) = shell_in_sandbox(&folder.join(number.to_string())) {
                        *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                        return;
                    }
                }
            });
        }
    });
    let rate = TASKS as f64 / begin.elapsed().as_secs_f64();
    _ = fs::remove_dir_all(&folder);
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(rate), Err)
}

/// The same sandbox as that of a task, with a folder of its own.
fn shell_in_sandbox(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut command = Command::new(BUBBLEWRAP);
    command.args([
        "--unshare-all",
        "--new-session",
        "--as-pid-1",
        "--unshare-user",
        "--disable-userns",
    ]);
    command.args(["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]);
    for name in ["/tmp", "/dev/shm"] {
        command.args(["--size", "67108864", "--tmpfs", name]);
    }
    command.args([
        "--remount-ro",
        "/dev",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/lib",
        "/lib",
    ]);
    command.args(["--symlink", "usr/lib64", "/lib64", "--bind"]).arg(folder).arg("/task");
    command.args(["--remount-ro", "/", "--chdir", "/task", "--", "/bin/sh", "-c"]);
    command
        .args(["ulimit -c 0 && ulimit -n 256 && /bin/true", "sh"])
        .env_clear()
        .env("PATH", "/usr/bin");
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).output();
    let ended = ended.with_context(|| format!("cannot start {BUBBLEWRAP}"))?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(fs::remove_dir_all(folder)?)
}
