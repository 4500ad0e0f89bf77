//! Memory with many tasks, and opening them again: each in a fresh process.

use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use taskyard::Client;

use super::load::{self, Load, TUBE};
use super::report::{Report, Row, Target};
use super::{Size, store_in};

/// What a child process does.
#[derive(Clone, Debug)]
pub enum Child {
    /// Puts this many tasks and prints its memory.
    Fill(usize),
    /// Opens the store again and prints how long that took.
    Reopen(usize),
}

impl FromStr for Child {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (word, tasks) = text.split_once(':').ok_or("a child is WORD:TASKS")?;
        let tasks = tasks.parse().map_err(|_| "TASKS is a number")?;
        match word {
            "fill" => Ok(Child::Fill(tasks)),
            "reopen" => Ok(Child::Reopen(tasks)),
            _ => Err(format!("unknown child {word}")),
        }
    }
}

pub fn measure(report: &mut Report, folder: &Path, size: Size) -> Result<()> {
    for tasks in size.resident {
        let place = folder.join("resident");
        _ = std::fs::remove_dir_all(&place);
        let megabytes = spawn(&format!("fill:{tasks}"), &place)?;
        // The targets for a million, also of a short run, and for ten million.
        let is_million = *tasks <= 1_000_000;
        let (limit, opening) = if is_million { (140.0, 0.4) } else { (1_000.0, 4.0) };
        report.add(Row {
            what: format!("memory with {tasks} ready tasks"),
            figure: megabytes,
            unit: "MB resident",
            target: Some(Target::AtMost(limit)),
            note: "100-byte payloads, default budget, fresh process".into(),
        });
        let seconds = spawn(&format!("reopen:{tasks}"), &place)?;
        report.add(Row {
            what: format!("opening {tasks} tasks"),
            figure: seconds,
            unit: "s",
            target: Some(Target::AtMost(opening)),
            note: "every row read and checked".into(),
        });
    }
    Ok(())
}

/// Runs a child and returns the one number it prints.
fn spawn(child: &str, place: &Path) -> Result<f64> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--child", child, "--data"])
        .arg(place)
        .output()?;
    if !output.status.success() {
        bail!("the child {child} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let text = String::from_utf8(output.stdout)?;
    text.trim().parse().with_context(|| format!("the child {child} printed {text:?}"))
}

pub async fn run_child(child: &Child, place: &Path) -> Result<()> {
    match *child {
        Child::Fill(tasks) => {
            let parent = place.parent().context("the folder has a parent")?;
            let client = Client::open(&store_in(parent, "resident")).await?;
            load::put(&client, Load { clients: 4, batch: 1_000, tasks }).await?;
            println!("{}", resident_megabytes()?);
            client.close().await?;
        }
        Child::Reopen(tasks) => {
            let begin = Instant::now();
            let client = Client::open(&format!("sqlite:{}", place.display())).await?;
            let there = client.stats(TUBE).await?.tasks.ready;
            let seconds = begin.elapsed().as_secs_f64();
            ensure!(there == tasks as u64, "{there} tasks found");
            println!("{seconds}");
            client.close().await?;
        }
    }
    Ok(())
}

fn resident_megabytes() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kilobytes: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}
