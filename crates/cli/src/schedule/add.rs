//! `schedule add`: creates a schedule or replaces it.

use clap::{Args, ValueEnum};
use taskyard_core::schedule::TimingRule;
use taskyard_core::{CatchUp, Overlap, Span, StoredSchedule, Timestamp};
use taskyard_wire::Exit;
use taskyard_wire::http::ScheduleRequest;

use super::show;
use crate::connect::{ServerArgs, block_on};
use crate::payload::{self, Form};
use crate::task_args::NewTaskArgs;
use crate::{output, units};

/// The arguments of `schedule add`.
#[derive(Debug, Args)]
#[command(after_help = "\
A cron expression has five fields: minute, hour, day of the month, month and day of the week; or
six, with the second first; or it is @hourly, @daily, @weekly, @monthly or @yearly. A time that
local clocks leave out in spring fires when the clocks are set; a time that they show twice in
autumn fires the first time; what fires every hour fires in both hours.

Examples:
  taskyard schedule add daily --tube reports --cron '0 9 * * 1-5' --zone Europe/Berlin --data '{}'
  taskyard schedule add poll --tube checks --every 5m --data '\"all\"' --overlap skip
  taskyard schedule add campaign --tube mail --every 1d --start 2030-01-31T08:00:00Z \\
      --until 2030-03-01 --data @letter.json --catch-up last")]
pub struct AddArgs {
    /// The name of the schedule.
    name: String,
    /// The tube that tasks are put into; it must exist.
    #[arg(long, value_name = "TUBE")]
    tube: String,
    /// The times, as a cron expression.
    #[arg(long, value_name = "CRON", required_unless_present = "every")]
    cron: Option<String>,
    /// The time zone of the cron expression.
    #[arg(long, value_name = "ZONE", default_value = "UTC", conflicts_with = "every")]
    zone: String,
    /// The times, as the distance from each to the next; at least 1s.
    #[arg(long, value_name = "TIME", value_parser = units::span, conflicts_with = "cron")]
    every: Option<Span>,
    /// The first time of --every; without it, times are counted from 1970, so that 5m is at :00, :05 ...
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp, requires = "every")]
    start: Option<Timestamp>,
    /// The payload of each task: JSON or text; @FILE reads a file, - reads standard input.
    #[arg(long, value_name = "DATA", allow_hyphen_values = true)]
    data: String,
    /// Treat DATA as JSON or as text.
    #[arg(long = "as", value_name = "TYPE")]
    form: Option<Form>,
    #[command(flatten)]
    task: NewTaskArgs,
    /// What happens with times that were missed, because no server ran or the schedule was paused.
    #[arg(long, value_name = "WHICH", default_value = "none")]
    catch_up: CatchUpChoice,
    /// Whether a time fires while the task of an earlier time exists.
    #[arg(long, value_name = "HOW", default_value = "allow")]
    overlap: OverlapChoice,
    /// No time after this moment fires.
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp)]
    until: Option<Timestamp>,
    /// Pause it; without this a replaced schedule stays as it is.
    #[arg(long)]
    paused: bool,
    /// Refuse to replace a schedule.
    #[arg(long)]
    only_new: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Which missed times fire.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CatchUpChoice {
    /// None of them.
    None,
    /// The last one.
    Last,
    /// All of them, at most 1,000.
    All,
}

/// What a time does while the task of an earlier one exists.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverlapChoice {
    /// It fires.
    Allow,
    /// It is skipped.
    Skip,
}

/// Creates the schedule and prints it.
pub fn run(args: &AddArgs) -> anyhow::Result<Exit> {
    let (payload, hint) = payload::read(&args.data, args.form)?;
    hint.iter().for_each(output::note);
    let rule = match (&args.cron, args.every) {
        (_, Some(every)) => TimingRule::Every { every, start: args.start },
        (cron, None) => {
            let (cron, zone) = (cron.as_deref().unwrap_or_default(), args.zone.as_str());
            TimingRule::Cron { cron: cron.into(), zone: zone.into() }
        }
    };
    let new = StoredSchedule::new(&args.name, &args.tube, args.task.task(&payload)?, &rule)?;
    let schedule = StoredSchedule {
        catch_up: match args.catch_up {
            CatchUpChoice::None => CatchUp::None,
            CatchUpChoice::Last => CatchUp::Last,
            CatchUpChoice::All => CatchUp::All,
        },
        overlap: match args.overlap {
            OverlapChoice::Allow => Overlap::Allow,
            OverlapChoice::Skip => Overlap::Skip,
        },
        until: args.until,
        ..new
    };
    // A replaced schedule stays paused.
    let paused = args.paused.then_some(true);
    let request = ScheduleRequest { paused, ..ScheduleRequest::new(&schedule, args.only_new)? };
    let http = args.server.connect.http()?;
    let set = block_on(async { Ok(http.set_schedule(&schedule.name, &request).await?) })?;
    show::print(&set, args.server.json)
}
