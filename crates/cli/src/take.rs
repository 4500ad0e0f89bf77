//! `take`: take tasks.

use clap::Args;
use taskyard_core::{Command, Reply, Span, Take, Task, TubeName};
use taskyard_wire::Exit;
use taskyard_wire::http::{Form, TaskAnswer};

use crate::connect::{ConnectArgs, misfit, program};
use crate::{data, output, units};

/// What to take.
#[derive(Debug, Args)]
#[command(after_help = "\
A taken task is yours until the lease is over; then it is given to somebody else. Before that:
ack it when it is done, release it to give it back, touch it to have more time.
Exit code 3 says that nothing came in the time given.

Examples:
  taskyard take mail                          one task if there is one
  taskyard take mail --wait 5s                wait up to five seconds for it
  taskyard take mail --count 100 --lease 10m --json
  taskyard take mail --json | jq .data")]
pub struct TakeArgs {
    /// The tube.
    tube: String,
    /// At most how many tasks; in tubes with sub-queues at most one of each.
    #[arg(long, value_name = "N", default_value_t = 1)]
    count: usize,
    /// Wait this long for the first task.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "0")]
    wait: Span,
    /// How long the tasks are yours.
    #[arg(long, value_name = "TIME", value_parser = units::span, default_value = "60s")]
    lease: Span,
    /// Print one JSON object a line, with id, lease, attempts, data and more.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Takes and prints.
pub fn run(args: TakeArgs) -> anyhow::Result<Exit> {
    let tube = TubeName::new(&args.tube)?;
    let take = Take {
        tube: tube.clone(),
        count: args.count,
        session: None,
        lease: Some(args.lease),
        wait: args.wait,
    };
    let Reply::Taken(tasks) = args.connect.ask(Command::Take(take))? else {
        return Err(misfit("take"));
    };
    if tasks.is_empty() {
        if !args.json {
            // The take itself went well, so a question that fails does not change how it ends.
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

/// Why nothing came: a paused tube gives nothing out, whatever it has.
fn why_nothing(args: &TakeArgs, tube: &TubeName) -> anyhow::Result<String> {
    let asked = args.connect.ask(Command::Tubes { tube: Some(tube.clone()) })?;
    let Reply::Tubes(tubes) = asked else { return Err(misfit("tubes")) };
    let Some(found) = tubes.iter().find(|found| found.options.paused) else {
        return Ok(format!("nothing to take from {tube}"));
    };
    let (program, flags) = (program(), args.connect.flags());
    let (ready, name) = (found.stats.tasks.ready, output::quoted(tube.as_str()));
    Ok(format!(
        "tube {tube} is paused, {ready} ready; let deliveries go on: {program} tube resume {name}{flags}"
    ))
}

/// A line for each task, and how to go on.
fn print(args: &TakeArgs, tube: &TubeName, tasks: &[Task]) -> anyhow::Result<()> {
    let mut table = output::table(&["id:lease", "attempts", "data"]);
    for task in tasks {
        let data = data::show(task.body.as_ref());
        table.add_row([name(task), task.attempts.to_string(), data]);
    }
    output::show(&table)?;
    let names: Vec<String> = tasks.iter().map(name).collect();
    let tube = output::quoted(tube.as_str());
    let (program, flags) = (program(), args.connect.flags());
    // Only for people: a program that reads the lines above must not stumble over this one.
    output::note(format!(
        "yours for {} s; when done: {program} ack {tube} {}{flags}",
        args.lease.as_secs_f64(),
        names.join(" ")
    ));
    Ok(())
}

/// The delivery as `ack` reads it.
fn name(task: &Task) -> String {
    match task.lease {
        Some(lease) => format!("{}:{lease}", task.id),
        None => task.id.to_string(),
    }
}
