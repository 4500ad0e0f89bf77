//! `take`: takes tasks from a tube.

use clap::Args;
use taskyard::worker_name;
use taskyard_core::{Command, Reply, Span, Take, Task, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::{Form, TaskAnswer};

use crate::connect::{ConnectArgs, program, unexpected_reply};
use crate::{output, payload, units};

/// The arguments of `take`.
#[derive(Debug, Args)]
#[command(after_help = "\
A taken task is reserved for you until its lease ends; after that it is delivered again. Before
that, ack it when it is done, release it to return it, or touch it to extend the lease. The exit
code is 3 if there was no task within the time given.

Examples:
  taskyard take mail                          one task, if there is one
  taskyard take mail --wait 5s                wait up to five seconds for a task
  taskyard take mail --count 100 --lease 10m --json
  taskyard take mail --json | jq .data")]
pub struct TakeArgs {
    /// The tube.
    tube: String,
    /// Take at most this many tasks; in tubes with sub-queues at most one of each.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: usize,
    /// Wait this long for the first task.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    wait: Span,
    /// The lease: how long the tasks are reserved for you.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    lease: Span,
    /// The name of the worker that lists show; host, process id and program by default.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Print one JSON object per line, with id, lease, attempts, data and more.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Takes tasks and prints them.
pub fn run(args: TakeArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let take = Take {
        tube: tube.clone(),
        count: args.count,
        session: None,
        lease: Some(args.lease),
        worker: Some(args.worker.as_deref().map_or_else(worker_name, Into::into)),
        wait: args.wait,
    };
    let Reply::Taken(tasks) = args.connect.execute(Command::Take(take))? else {
        return Err(unexpected_reply("take"));
    };
    if tasks.is_empty() {
        if !args.json {
            // The take succeeded, so an error of this query does not change the exit code.
            let why = why_nothing(&args, &tube);
            output::note(why.unwrap_or_else(|_| format!("nothing to take from {tube}")));
        }
        return Ok(Exit::Nothing);
    }
    if args.json {
        output::json_lines(tasks.iter().map(|task| TaskAnswer::new(task, Form::Json)))?;
    } else {
        print(&args, &tube, &tasks)?;
    }
    Ok(Exit::Ok)
}

/// Why there is no task: a paused tube delivers nothing.
fn why_nothing(args: &TakeArgs, tube: &TubeName) -> anyhow::Result<String> {
    let asked = args.connect.execute(Command::Tubes { tube: Some(tube.clone()) })?;
    let Reply::Tubes(tubes) = asked else { return Err(unexpected_reply("tubes")) };
    let Some(found) = tubes.iter().find(|found| found.options.paused) else {
        return Ok(format!("nothing to take from {tube}"));
    };
    let (program, flags) = (program(), args.connect.flags());
    let (ready, name) = (found.stats.tasks.ready, output::quoted(tube.as_str()));
    Ok(format!(
        "tube {tube} is paused, {ready} ready; resume it: {program} tube resume {name}{flags}"
    ))
}

/// Prints a line for each task, and the command to acknowledge them.
fn print(args: &TakeArgs, tube: &TubeName, tasks: &[Task]) -> anyhow::Result<()> {
    let mut table = output::table(&["id:lease", "attempts", "data"]);
    for task in tasks {
        let data = payload::show(task.body.as_ref());
        table.add_row([name(task), task.attempts.to_string(), data]);
    }
    output::show(&table)?;
    let names: Vec<String> = tasks.iter().map(name).collect();
    let tube = output::quoted(tube.as_str());
    let (program, flags) = (program(), args.connect.flags());
    // On standard error, so that programs that parse the output do not read it.
    output::note(format!(
        "yours for {} s; when done: {program} ack {tube} {}{flags}",
        args.lease.as_secs_f64(),
        names.join(" ")
    ));
    Ok(())
}

/// The delivery in the format of `ack`.
fn name(task: &Task) -> String {
    match task.lease {
        Some(lease) => format!("{}:{lease}", task.id),
        None => task.id.to_string(),
    }
}
