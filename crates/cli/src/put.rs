//! `put`: adds tasks to a tube.

use std::io::{self, BufRead};
use std::thread;

use anyhow::Context;
use clap::Args;
use taskyard::{Http, HttpError};
use taskyard_core::limits::{BATCH_TASKS_MAX, POSITIONS_MAX};
use taskyard_core::{
    Body, Command, Error, HeldKey, Key, KeyRequest, NewTask, OnConflict, Reply, Span, State,
    Timestamp, TubeName,
};
use taskyard_wire::Exit;
use taskyard_wire::http::{PlacedTask, PutAnswer};
use tokio::sync::mpsc::{Receiver, channel};

use crate::connect::{ConnectArgs, block_on, unexpected_reply};
use crate::failure::{NoTube, UsageError};
use crate::payload::Form;
use crate::progress::Progress;
use crate::task_args::NewTaskArgs;
use crate::{estimate, output, payload, units};

/// The arguments of `put`.
#[derive(Debug, Args)]
#[command(after_help = "\
DATA is stored as JSON if it parses as JSON, otherwise as text. --as json refuses invalid JSON,
--as text stores everything as text. @FILE reads a file, - reads standard input. One line end at
the end of a file is removed; data that is not UTF-8 is stored unchanged. A tube that does not
exist is created with kind fifottl, unless the server runs with --strict-tubes. If a task of the
tube has the key already, nothing is added and the id of that task is printed.

Examples:
  taskyard put mail '{\"to\": \"ann\"}'
  taskyard put mail hello --delay 10s --pri 5
  taskyard put mail @letter.txt --ttl 1h
  taskyard put mail news --at 2030-01-31T08:00:00Z
  taskyard put mail '[draft]' --as text
  taskyard put mail @report.json --key report:2030-01 --unique-for 1d
  taskyard put checks '{\"page\": 17}' --semaphore-priority 2.5
  taskyard put mail hello --estimate           the id, and when it will start
  seq 1000000 | taskyard put numbers --lines")]
pub struct PutArgs {
    /// The tube.
    tube: String,
    /// The payloads, one task each; either all tasks are added or none.
    #[arg(required_unless_present = "lines", value_name = "DATA", allow_negative_numbers = true)]
    data: Vec<String>,
    /// Read standard input, one task per line; empty lines are skipped.
    #[arg(long, conflicts_with = "data")]
    lines: bool,
    /// Treat DATA as JSON or as text.
    #[arg(long = "as", value_name = "TYPE")]
    form: Option<Form>,
    #[command(flatten)]
    task: NewTaskArgs,
    /// Make the task ready at this time, such as 2030-01-31T08:00:00Z, or 2030-01-31 for midnight UTC.
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp, conflicts_with = "delay")]
    at: Option<Timestamp>,
    /// A key that only one task of the tube has, at most 128 bytes; for one DATA.
    #[arg(long, value_name = "KEY", conflicts_with = "lines")]
    key: Option<String>,
    /// How long the key stays held after the task has ended, at most 7d.
    #[arg(long, value_name = "TIME", value_parser = units::span, requires = "key")]
    unique_for: Option<Span>,
    /// If a ready or delayed task has the key, give it this payload, priority and times.
    #[arg(long, requires = "key")]
    replace: bool,
    /// How long to wait if the tube is full.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    timeout: Span,
    /// Print after each id when the task will start; for at most 100 DATA.
    #[arg(long)]
    estimate: bool,
    /// Print one JSON object per line, with id, state, and existing if nothing was added.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Adds the tasks and prints their ids.
pub fn run(args: PutArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    if args.key.is_some() && args.data.len() > 1 {
        let text = "--key is for one task; put the others without it or with other keys";
        return Err(UsageError(text.into()).into());
    }
    let template = args.template()?;
    let http = args.connect.http()?;
    if args.lines {
        return block_on(put_lines(&args, &http, &tube, &template));
    }
    let tasks: Vec<NewTask> = args
        .data
        .iter()
        .map(|argument| {
            let (payload, hint) = payload::read(argument, args.form)?;
            hint.iter().for_each(output::note);
            Ok(with_payload(&template, &payload))
        })
        .collect::<anyhow::Result<_>>()?;
    let placed = block_on(put(&http, &tube, tasks, &args))?;
    print(&args, &placed)?;
    placed.iter().filter(|placed| placed.existing).for_each(|holder| args.note_holder(holder));
    Ok(Exit::Ok)
}

impl PutArgs {
    /// A task with all options and no payload.
    fn template(&self) -> anyhow::Result<NewTask> {
        let key = self.key_request()?.map(Box::new);
        Ok(NewTask { key, at: self.at, ..self.task.task(&[])? })
    }

    fn key_request(&self) -> anyhow::Result<Option<KeyRequest>> {
        let Some(key) = &self.key else { return Ok(None) };
        let key = Key::new(key).map_err(|error| UsageError(format!("--key: {error}")))?;
        let held = HeldKey { key, unique_for: self.unique_for.unwrap_or(Span::ZERO) };
        let on_conflict = if self.replace { OnConflict::Replace } else { OnConflict::Keep };
        Ok(Some(KeyRequest { held, on_conflict }))
    }

    /// Tells that a task has the key already.
    fn note_holder(&self, holder: &PlacedTask) {
        let (id, state) = (holder.id, State::from(holder.state));
        output::note(match state {
            // A put leaves tasks in other states as they are.
            State::Ready | State::Delayed if self.replace => {
                format!("task {id} has this key and was replaced")
            }
            State::Done => format!("task {id} had this key and has ended; nothing was added"),
            _ => format!("task {id} ({}) has this key; nothing was added", state.name()),
        });
    }
}

fn with_payload(template: &NewTask, payload: &[u8]) -> NewTask {
    let body = Body::with_meta(payload, template.body.meta().unwrap_or_default());
    NewTask { body, ..template.clone() }
}

async fn put(
    http: &Http,
    tube: &TubeName,
    tasks: Vec<NewTask>,
    args: &PutArgs,
) -> anyhow::Result<Vec<PlacedTask>> {
    let subqueues = tasks.iter().any(|task| task.subqueue.is_some());
    let refused = |error| match error {
        // For other commands this is a wrong name; here the tube has to be created.
        HttpError::Refused { error: Error::TubeNotFound(tube), .. } => {
            anyhow::Error::from(NoTube { tube, subqueues })
        }
        error => error.into(),
    };
    let wait = args.timeout;
    if args.estimate {
        return Ok(http.put_estimated(tube, &tasks, wait).await.map_err(refused)?.tasks);
    }
    let put = Command::Put { tube: tube.clone(), tasks, wait };
    match http.execute_one(put).await.map_err(refused)? {
        Reply::Put(placed) => Ok(PutAnswer::new(&placed).tasks),
        _ => Err(unexpected_reply("put")),
    }
}

/// Puts lines as they arrive, in batches of all lines that are available.
async fn put_lines(
    args: &PutArgs,
    http: &Http,
    tube: &TubeName,
    template: &NewTask,
) -> anyhow::Result<Exit> {
    let mut lines = read_lines();
    let mut progress = Progress::new();
    let mut count = 0;
    // A terminal shows only the number of tasks below.
    let mut printing = args.json || !output::is_terminal();
    let mut hinted = false;
    let size = if args.estimate { POSITIONS_MAX } else { BATCH_TASKS };
    while let Some(batch) = next_batch(&mut lines, size).await {
        let stopped = || format!("stopped after {}", output::plural(count as u64, "task"));
        let mut tasks = Vec::with_capacity(batch.len());
        for line in batch {
            let line = line.context("cannot read standard input").with_context(stopped)?;
            let (payload, hint) = payload::from_text(&line, args.form).with_context(stopped)?;
            // The other lines usually need the same hint.
            if let Some(hint) = hint.filter(|_| !std::mem::replace(&mut hinted, true)) {
                output::note(hint);
            }
            tasks.push(with_payload(template, &payload));
        }
        let placed = put(http, tube, tasks, args).await.with_context(stopped)?;
        count += placed.len();
        progress.count(count as u64, "tasks put");
        // A closed pipe ends the printing of ids and not the put.
        printing = printing && print(args, &placed).is_ok();
    }
    drop(progress);
    output::note(format!("put {} into {tube}", output::plural(count as u64, "task")));
    Ok(Exit::Ok)
}

fn print(args: &PutArgs, placed: &[PlacedTask]) -> anyhow::Result<()> {
    if args.json {
        return output::json_lines(placed);
    }
    let line = |placed: &PlacedTask| match args.estimate {
        true => format!("{}\t{}\n", placed.id, estimate::start(placed.queue.as_deref())),
        false => format!("{}\n", placed.id),
    };
    let lines: String = placed.iter().map(line).collect();
    Ok(output::bytes(lines.as_bytes())?)
}

/// How many tasks and how many bytes go in one batch.
const BATCH_TASKS: usize = 1_000;
const BATCH_BYTES: usize = 4 << 20;
const _: () = assert!(BATCH_TASKS <= BATCH_TASKS_MAX);

/// Reads lines ahead on a separate thread, so that a slow producer does not delay lines that have arrived.
fn read_lines() -> Receiver<io::Result<String>> {
    let (sender, receiver) = channel(BATCH_TASKS);
    thread::spawn(move || {
        let lines = io::stdin().lock().lines();
        for line in lines.filter(|line| !matches!(line, Ok(line) if line.trim().is_empty())) {
            let last = line.is_err();
            if sender.blocking_send(line).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// The next lines that are available, at least one; `None` at the end.
async fn next_batch(
    lines: &mut Receiver<io::Result<String>>,
    most: usize,
) -> Option<Vec<io::Result<String>>> {
    let size = |line: &io::Result<String>| line.as_ref().map_or(0, String::len);
    let first = lines.recv().await?;
    let mut bytes = size(&first);
    let mut batch = vec![first];
    while batch.len() < most && bytes < BATCH_BYTES {
        let Ok(line) = lines.try_recv() else { break };
        bytes += size(&line);
        batch.push(line);
    }
    Some(batch)
}
