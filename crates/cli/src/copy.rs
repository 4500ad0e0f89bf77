//! `copy`: tubes with their tasks, and semaphores, from one store to another.

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

use crate::failure::Wrong;
use crate::migrate::shown;
use crate::opening::{self, STORE_WAIT};
use crate::{output, progress};

/// How often a line says how far it is, where nobody watches a bar.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// From where to where.
#[derive(Debug, Args)]
#[command(after_help = "\
Tasks keep their ids, states, times, priorities, attempts and payloads; tubes their options and next ids; semaphores who
waits and holds, and their events. What is taken comes over as after a crash: ready.

Stop the servers of both stores first. A folder is locked while it is copied, so its `serve` must be stopped; a database
cannot be locked, so stop what puts and takes there. The source is not changed, and a copy that finds in the end
that it was used meanwhile is refused.

Nothing is seen in the target before all is there: until then its tasks are in paused tubes called taskyard.copy.…
A copy that was killed goes on where it stopped when the same command is run again. A target that has such tubes with
other content, or cannot hold something, is refused before anything is written: tasks of temporary tubes, which would not
outlive the copy, or tubes with a semaphore on a cluster of Redis. A PostgreSQL database is brought to the form of this
version, as by `taskyard migrate`, even if it is only read. A database that is starting is waited for, up to 30 seconds.

Examples:
  taskyard copy --from sqlite:taskyard-data --to postgres://db/queue
  taskyard copy --from postgres://db/queue --to sqlite:backup --tube mail --tube sms
  taskyard copy --from sqlite:taskyard-data --to postgres://db/queue --dry-run
  taskyard copy --from redis://cache --to tarantool://queue:3301
  taskyard copy --from tarantool+queue://old:3301 --to sqlite:taskyard-data")]
pub struct CopyArgs {
    /// The store to read: sqlite:DIR, postgres://…, redis://…, tarantool://…, or tarantool+queue://… for the tubes of an
    /// existing tarantool/queue.
    #[arg(long, value_name = "URL")]
    from: String,
    /// The store to write: any of these but the last.
    #[arg(long, value_name = "URL")]
    to: String,
    /// Only this tube, with the semaphore before it; may be given several times.
    #[arg(long, value_name = "NAME")]
    tube: Vec<String>,
    /// Count what would be copied, and write nothing.
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
    let look = OpenOptions { read_only: true, wait: STORE_WAIT, ..OpenOptions::default() };
    let from = opening::open(&args.from, &look)
        .with_context(|| format!("cannot copy from {}", shown(&args.from)))?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let done = work(&args, &runtime, &*from, &tubes);
    // Whatever came of it: a folder that is not given up properly is slower to open.
    let closed = runtime.block_on(from.close());
    done?;
    closed.context("cannot close the source properly")?;
    Ok(Exit::Ok)
}

fn open_target(args: &CopyArgs, url: &str) -> anyhow::Result<Box<dyn Store>> {
    // A look must not change a database.
    let (read_only, wait) = (args.dry_run, STORE_WAIT);
    let options = OpenOptions { read_only, wait, ..OpenOptions::default() };
    let opened = opening::open(url, &options);
    opened.with_context(|| format!("cannot copy to {}", shown(&args.to)))
}

/// Refuses what could only be a mistake.
fn refuse_urls(args: &CopyArgs) -> anyhow::Result<()> {
    for url in [&args.from, &args.to] {
        if url == "memory:" {
            let text = "memory: is empty before and gone after; name a store that lasts";
            bail!(Wrong(text.into()));
        }
    }
    if args.from == args.to {
        bail!(Wrong("both URLs name the same store".into()));
    }
    if is_missing_folder(&args.from) {
        let what = "there is no store in it".to_owned();
        bail!(OpenError::Unavailable { folder: folder(&args.from).into(), what });
    }
    Ok(())
}

fn folder(url: &str) -> &str {
    url.strip_prefix("sqlite:").unwrap_or_default()
}

/// Whether a URL names a folder that has no store: to open it would make one.
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
    // A folder is made when it is sure that something comes into it; until then it is as empty as memory.
    let fresh = is_missing_folder(&args.to);
    let mut to = open_target(args, if fresh { "memory:" } else { &args.to })?;
    let planned = runtime.block_on(plan(from, &*to, tubes));
    let copied = match planned {
        Ok(plan) if args.dry_run => Ok((plan, None)),
        Ok(plan) => {
            if fresh {
                to = open_target(args, &args.to)?;
            }
            runtime.block_on(bring(from, &*to, plan))
        }
        Err(refusal) => Err(refusal.into()),
    };
    let closed = runtime.block_on(to.close());
    let (plan, copied) = copied?;
    closed.context("cannot close the target properly")?;
    if args.json {
        output::json(&as_json(&plan, copied, begin.elapsed()))
    } else {
        Ok(output::line(as_text(&plan, copied, begin.elapsed()))?)
    }
}

/// Copies what was planned, and says how far it is.
async fn bring(
    from: &dyn Store,
    to: &dyn Store,
    plan: Plan,
) -> anyhow::Result<(Plan, Option<Copied>)> {
    let mut teller = Teller::new();
    let copied = copy(from, to, now()?, &plan, |progress| teller.tell(progress)).await;
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
    let (tubes, semaphores) = (plan.tubes.len(), plan.semaphores.len());
    let what = format!("{} tasks in {tubes} tubes, {semaphores} semaphores", plan.tasks());
    match copied {
        _ if plan.already => format!("all of it is there already: {what}"),
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

/// Says how far it is: a bar for a person, lines otherwise.
struct Teller {
    bar: progress::Progress,
    said: Instant,
}

impl Teller {
    fn new() -> Self {
        Teller { bar: progress::Progress::new(), said: Instant::now() }
    }

    fn tell(&mut self, progress: Progress<'_>) {
        let Progress { tube, done, total } = progress;
        if self.bar.is_shown() {
            self.bar.bar(done, total, tube.as_str());
        } else if done == total || self.said.elapsed() >= LINE_EVERY {
            self.said = Instant::now();
            output::note(format!("{done} of {total} tasks, now of tube '{tube}'"));
        }
    }
}
