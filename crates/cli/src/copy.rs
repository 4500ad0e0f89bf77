//! `copy`: copies tubes with their tasks, and semaphores, from one store to another.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use serde_json::{Value, json};
use taskyard_core::{Timestamp, TubeName};
use taskyard_store::copy::{Copied, Plan, Progress, copy, plan};
use taskyard_store::{OpenError, OpenOptions, Store};
use taskyard_wire::Exit;
use tokio::runtime::{Builder, Runtime};

use crate::failure::UsageError;
use crate::migrate::without_password;
use crate::open_store::{self, STORE_WAIT};
use crate::output;
use crate::progress::{self, LINE_EVERY};

/// The arguments of `copy`.
#[derive(Debug, Args)]
#[command(after_help = "\
Tasks keep their ids, states, times, priorities, attempts and payloads; tubes keep their options
and next ids; semaphores keep their waiting tasks, holders and events. Taken tasks become ready,
as after a crash.

Stop the servers of both stores first. A folder is locked while it is copied, so its `serve` must
be stopped; a database cannot be locked, so stop all clients that put and take there. The source
is not changed. If the source was used during the copy, the copy is refused at the end.

The copied tubes become visible in the target only when everything is copied: until then their
tasks are in paused tubes named taskyard.copy.… A copy that was killed resumes when the same
command is run again. The target is refused before anything is written if it has such tubes with
other content, or cannot store something: tasks of temporary tubes, which would be lost after the
copy, or tubes with a semaphore on a Redis cluster. The schema of a PostgreSQL database is
upgraded, as by `taskyard migrate`, even if it is only read. A database that is starting is waited
for up to 30 seconds.

Examples:
  taskyard copy --from sqlite:taskyard-data --to postgres://db/queue
  taskyard copy --from postgres://db/queue --to sqlite:backup --tube mail --tube sms
  taskyard copy --from sqlite:taskyard-data --to postgres://db/queue --dry-run
  taskyard copy --from redis://cache --to tarantool://queue:3301
  taskyard copy --from tarantool+queue://old:3301 --to sqlite:taskyard-data")]
pub struct CopyArgs {
    /// The store to read: sqlite:DIR, postgres://…, redis://…, tarantool://…, or tarantool+queue://… for the tubes of an
    /// existing tarantool/queue. A URL with a password belongs into the variable.
    #[arg(long, value_name = "URL", env = "TASKYARD_COPY_FROM", hide_env_values = true)]
    from: String,
    /// The store to write: any of these except the last.
    #[arg(long, value_name = "URL", env = "TASKYARD_COPY_TO", hide_env_values = true)]
    to: String,
    /// Copy only this tube and its semaphore; may be given several times.
    #[arg(long, value_name = "NAME")]
    tube: Vec<String>,
    /// Count what would be copied and write nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Opens both stores, copies, and closes them.
pub fn run(args: CopyArgs) -> anyhow::Result<Exit> {
    let tubes = args.tube.iter().map(|name| TubeName::new(name)).collect::<Result<Vec<_>, _>>()?;
    refuse_urls(&args)?;
    let read_only = OpenOptions { read_only: true, wait: STORE_WAIT, ..OpenOptions::default() };
    let from = open_store::open(&args.from, &read_only)
        .with_context(|| format!("cannot copy from {}", without_password(&args.from)))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let done = work(&args, &runtime, &*from, &tubes);
    // Also after an error: a folder that is not closed is slower to open.
    let closed = runtime.block_on(from.close());
    done?;
    closed.context("cannot close the source")?;
    Ok(Exit::Ok)
}

fn open_target(args: &CopyArgs, url: &str) -> anyhow::Result<Box<dyn Store>> {
    // A dry run must not change a database.
    let (read_only, wait) = (args.dry_run, STORE_WAIT);
    let options = OpenOptions { read_only, wait, ..OpenOptions::default() };
    let opened = open_store::open(url, &options);
    opened.with_context(|| format!("cannot copy to {}", without_password(&args.to)))
}

/// Refuses URLs that can only be a mistake.
fn refuse_urls(args: &CopyArgs) -> anyhow::Result<()> {
    for url in [&args.from, &args.to] {
        if url == "memory:" {
            let text = "a copy from or to memory: has no effect; name a persistent store";
            bail!(UsageError(text.into()));
        }
    }
    if args.from == args.to {
        bail!(UsageError("both URLs name the same store".into()));
    }
    if is_missing_folder(&args.from) {
        let what = "it contains no store".to_owned();
        bail!(OpenError::Unavailable { folder: folder(&args.from).into(), what });
    }
    Ok(())
}

fn folder(url: &str) -> &str {
    url.strip_prefix("sqlite:").unwrap_or_default()
}

/// Whether a URL names a folder without a store, which opening would create.
fn is_missing_folder(url: &str) -> bool {
    url.starts_with("sqlite:") && !Path::new(folder(url)).join("taskyard.db").exists()
}

fn work(
    args: &CopyArgs,
    runtime: &Runtime,
    from: &dyn Store,
    tubes: &[TubeName],
) -> anyhow::Result<()> {
    let begin = Instant::now();
    // A folder is created only when the copy is allowed; until then an empty store in memory stands for it.
    let fresh = is_missing_folder(&args.to);
    let mut to = open_target(args, if fresh { "memory:" } else { &args.to })?;
    let planned = runtime.block_on(plan(from, &*to, tubes));
    let copied = match planned {
        Ok(plan) if args.dry_run => Ok((plan, None)),
        Ok(plan) => {
            if fresh {
                to = open_target(args, &args.to)?;
            }
            runtime.block_on(copy_planned(from, &*to, plan))
        }
        Err(refusal) => Err(refusal.into()),
    };
    let closed = runtime.block_on(to.close());
    let (plan, copied) = copied?;
    closed.context("cannot close the target")?;
    if args.json {
        output::json(&as_json(&plan, copied, begin.elapsed()))
    } else {
        Ok(output::line(as_text(&plan, copied, begin.elapsed()))?)
    }
}

/// Copies what was planned and reports the progress.
async fn copy_planned(
    from: &dyn Store,
    to: &dyn Store,
    plan: Plan,
) -> anyhow::Result<(Plan, Option<Copied>)> {
    let mut reporter = ProgressReporter::new();
    let copied = copy(from, to, now()?, &plan, |progress| reporter.report(progress)).await;
    drop(reporter);
    Ok((plan, Some(copied?)))
}

fn now() -> anyhow::Result<Timestamp> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    Ok(Timestamp::from_micros(i64::try_from(since.as_micros())?))
}

fn as_json(plan: &Plan, copied: Option<Copied>, took: Duration) -> Value {
    let tubes = plan.tubes.iter().map(|tube| {
        let (record, tasks) = (&tube.copy.record, tube.copy.stats.tasks);
        json!({ "tube": record.name.as_str(), "tasks": tasks.total(), "next_id": record.next_id })
    });
    json!({
        "copied": copied.is_some_and(|copied| !copied.already),
        "already": plan.already,
        "tasks": plan.tasks(),
        "resumed": copied.map_or(0, |copied| copied.resumed),
        "semaphores": plan.semaphores.len(),
        "tubes": tubes.collect::<Vec<_>>(),
        "seconds": took.as_secs_f64(),
    })
}

fn as_text(plan: &Plan, copied: Option<Copied>, took: Duration) -> String {
    let (tubes, semaphores) = (plan.tubes.len() as u64, plan.semaphores.len() as u64);
    let what = format!(
        "{} in {}, {}",
        output::plural(plan.tasks(), "task"),
        output::plural(tubes, "tube"),
        output::plural(semaphores, "semaphore")
    );
    match copied {
        _ if plan.already => format!("the target already has everything: {what}"),
        None => format!("would copy {what}"),
        Some(copied) => {
            let resumed = match copied.resumed {
                0 => String::new(),
                resumed => format!(", {resumed} of them by an earlier copy"),
            };
            format!("copied {what}{resumed} ({:.1} s)", took.as_secs_f64())
        }
    }
}

/// Reports the progress: a bar on a terminal, lines otherwise.
struct ProgressReporter {
    bar: progress::Progress,
    last_line: Instant,
}

impl ProgressReporter {
    fn new() -> Self {
        ProgressReporter { bar: progress::Progress::new(), last_line: Instant::now() }
    }

    fn report(&mut self, progress: Progress<'_>) {
        let Progress { tube, done, total } = progress;
        if self.bar.is_shown() {
            self.bar.bar(done, total, tube.as_str());
        } else if done == total || self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            output::note(format!("copied {done} of {total} tasks; copying tube '{tube}'"));
        }
    }
}
