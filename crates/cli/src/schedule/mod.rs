//! `schedule`: puts a task at certain times.

mod add;
mod show;

use clap::{Args, Subcommand};
use taskyard_core::{Command, Reply, ScheduleCommand, ScheduleName, ScheduleReply};
use taskyard_wire::Exit;
use taskyard_wire::http::PutAnswer;

use crate::connect::{ConnectArgs, ServerArgs, block_on, unexpected_reply};
use crate::output;

use add::AddArgs;
use show::{NextArgs, ScheduleListArgs};

/// The arguments of `schedule`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  taskyard schedule add daily --tube reports --cron '0 9 * * 1-5' --zone Europe/Berlin --data '{}'
  taskyard schedule add poll --tube checks --every 5m --data '\"all\"' --overlap skip
  taskyard schedule list
  taskyard schedule next daily --count 5
  taskyard schedule run daily
  taskyard schedule remove daily

The server puts the task at each time of the schedule, exactly once, also if several servers share
a store.")]
pub struct ScheduleArgs {
    #[command(subcommand)]
    verb: ScheduleVerb,
}

/// The subcommands of `schedule`.
#[derive(Debug, Subcommand)]
enum ScheduleVerb {
    /// Create a schedule, or replace it.
    Add(Box<AddArgs>),
    /// Show all schedules.
    #[command(visible_alias = "ls")]
    List(ScheduleListArgs),
    /// Show one schedule.
    Show(ScheduleNameArgs),
    /// Show the next times of a schedule.
    Next(NextArgs),
    /// Pause a schedule.
    Pause(ScheduleNameArgs),
    /// Resume a schedule; times that it missed are caught up as --catch-up says.
    Resume(ScheduleNameArgs),
    /// Put the task of a schedule now; its times stay.
    Run(ScheduleNameArgs),
    /// Remove a schedule; its tasks stay.
    Remove(ScheduleNameArgs),
}

/// A schedule.
#[derive(Debug, Args)]
struct ScheduleNameArgs {
    /// The schedule.
    name: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs a subcommand.
pub fn run(args: ScheduleArgs) -> anyhow::Result<Exit> {
    match args.verb {
        ScheduleVerb::Add(args) => add::run(&args),
        ScheduleVerb::List(args) => show::list(&args),
        ScheduleVerb::Show(args) => show::print_one(&args.server, &args.name()?),
        ScheduleVerb::Next(args) => show::next(&args),
        ScheduleVerb::Pause(args) => pause(&args, true),
        ScheduleVerb::Resume(args) => pause(&args, false),
        ScheduleVerb::Run(args) => run_now(&args),
        ScheduleVerb::Remove(args) => remove(&args),
    }
}

impl ScheduleNameArgs {
    fn name(&self) -> anyhow::Result<ScheduleName> {
        Ok(ScheduleName::new(&self.name)?)
    }
}

/// Sends a command for schedules.
fn execute(connect: &ConnectArgs, command: ScheduleCommand) -> anyhow::Result<ScheduleReply> {
    match connect.execute(Command::Schedule(Box::new(command)))? {
        Reply::Schedule(reply) => Ok(reply),
        _ => Err(unexpected_reply("schedule")),
    }
}

fn pause(args: &ScheduleNameArgs, paused: bool) -> anyhow::Result<Exit> {
    let name = args.name()?;
    execute(&args.server.connect, ScheduleCommand::Pause { name: name.clone(), paused })?;
    show::print_one(&args.server, &name)
}

fn run_now(args: &ScheduleNameArgs) -> anyhow::Result<Exit> {
    let name = args.name()?;
    let http = args.server.connect.http()?;
    let placed = block_on(async { Ok(http.run_schedule(&name).await?) })?;
    if args.server.json {
        output::json_lines(PutAnswer::new(&placed).tasks)?;
        return Ok(Exit::Ok);
    }
    for task in &placed {
        if task.existing {
            let (id, state) = (task.id, task.state.name());
            output::note(format!("task {id} ({state}) of this schedule exists; nothing was added"));
        }
        output::line(task.id)?;
    }
    Ok(Exit::Ok)
}

fn remove(args: &ScheduleNameArgs) -> anyhow::Result<Exit> {
    let name = args.name()?;
    execute(&args.server.connect, ScheduleCommand::Remove { name: name.clone() })?;
    if args.server.json {
        output::json(&serde_json::json!({ "removed": name.as_str() }))?;
    } else {
        output::line(format!("removed {}", output::printable(name.as_str())))?;
    }
    Ok(Exit::Ok)
}
