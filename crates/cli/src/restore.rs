//! `restore`: makes a data folder of a backup, or verifies one.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use taskyard_store_sqlite::backup::{RestoreError, check, restore};
use taskyard_wire::Exit;

use crate::backup::{as_json, contents, moment};
use crate::failure::UsageError;
use crate::output;
use crate::progress::TaskProgress;

/// The arguments of `restore`.
#[derive(Debug, Args)]
#[command(after_help = "\
The folder must not exist, or must be empty; one with anything in it is refused. No server runs on
it yet: start one afterwards with `taskyard serve --data DIR`. It has all tasks of the backup; those
that were taken are ready, as after a restart of the server.

The work is done in DIR.restoring, which gets the name DIR when all checksums were right and the
store in it could be opened. A restore that was killed leaves DIR.restoring, or at its very
end DIR, which no server opens, and DIR.restoring.lock; run it again, or remove them. DIR must be on the same file system
as its parent, so it cannot be a mount point. It belongs to the user that runs the command: run it
as the user of the server, or give DIR to that user afterwards with `chown -R`.

Leases go on above all numbers that the store gave before: an ack of a delivery from before the
restore is refused. Ids that were given after the backup are given again to other tasks.

Examples:
  taskyard restore queue.backup --check
  taskyard restore queue.backup --data taskyard-data
  zstd -d < queue.backup.zst | taskyard restore - --data taskyard-data")]
pub struct RestoreArgs {
    /// The backup, or - for the standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The folder to create.
    #[arg(long, value_name = "DIR", required_unless_present = "check")]
    data: Option<PathBuf>,
    /// Only verify the file: that it is complete and as it was written.
    #[arg(long, conflicts_with = "data")]
    check: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Restores or verifies a backup.
pub fn run(args: RestoreArgs) -> anyhow::Result<Exit> {
    let begin = Instant::now();
    let is_input = args.file == Path::new("-");
    let shown =
        if is_input { "the standard input".into() } else { args.file.display().to_string() };
    let file: Box<dyn Read> = match is_input {
        true => Box::new(io::stdin().lock()),
        false => {
            let cannot = || format!("cannot read {shown}");
            let file = File::open(&args.file).with_context(cannot)?;
            if file.metadata().with_context(cannot)?.is_dir() {
                bail!(UsageError(format!("{shown} is a folder, and no backup")));
            }
            Box::new(file)
        }
    };
    let what = if args.check { "verified" } else { "restored" };
    let mut progress = TaskProgress::new(what);
    let mut show = |done, total| progress.show(done, total);
    let now = now()?;
    let header = match &args.data {
        Some(folder) => restore(file, folder, now, &mut show),
        None => check(file, &mut show),
    };
    drop(progress);
    let header = header.map_err(|error| named(error, &shown))?;
    let seconds = begin.elapsed().as_secs_f64();
    if args.data.is_some() && now < header.taken_at {
        output::note(format!(
            "the clock of this machine is behind the backup, made {}: set it and restore again, otherwise leases and grants from \
             after the backup may be given again",
            moment(&header)
        ));
    }
    if args.json {
        let mut summary = as_json(&header);
        summary["data"] = args.data.map(|folder| folder.to_string_lossy().into_owned()).into();
        summary["seconds"] = seconds.into();
        output::json(&summary)?;
        return Ok(Exit::Ok);
    }
    let (what, made) = (contents(&header), moment(&header));
    match &args.data {
        Some(folder) => output::line(format!(
            "restored {what} into {}, made {made} ({seconds:.1} s)",
            folder.display()
        ))?,
        None => output::line(format!(
            "{shown} is intact: {what}, made {made} by taskyard {} from {}",
            header.program.escape_debug(),
            header.store.escape_debug()
        ))?,
    }
    Ok(Exit::Ok)
}

/// Adds the name of the file to an error about it.
fn named(error: RestoreError, shown: &str) -> anyhow::Error {
    match error {
        RestoreError::Used { .. } | RestoreError::Folder(_) | RestoreError::Name(_) => error.into(),
        of_file => anyhow::Error::from(of_file).context(format!("cannot restore {shown}")),
    }
}

fn now() -> anyhow::Result<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(i64::try_from(since.as_micros())?)
}
