//! `schedule list`, `show` and `next`: prints schedules and their times.

use clap::Args;
use taskyard_core::ScheduleName;
use taskyard_core::limits::SCHEDULES_LISTED_MAX;
use taskyard_wire::Exit;
use taskyard_wire::http::{CatchUpWord, OverlapWord, ScheduleAnswer};

use crate::connect::{ServerArgs, ServerLinesArgs, block_on};
use crate::{output, units};

/// The arguments of `schedule list`.
#[derive(Debug, Args)]
pub struct ScheduleListArgs {
    #[command(flatten)]
    server: ServerLinesArgs,
}

/// The arguments of `schedule next`.
#[derive(Debug, Args)]
pub struct NextArgs {
    /// The schedule.
    name: String,
    /// Print at most this many times.
    #[arg(long, value_name = "N", default_value_t = 20)]
    count: usize,
    #[command(flatten)]
    server: ServerArgs,
}

/// Prints all schedules.
pub fn list(args: &ScheduleListArgs) -> anyhow::Result<Exit> {
    let http = args.server.connect.http()?;
    let all = block_on(async {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = http.schedules(after.as_ref(), SCHEDULES_LISTED_MAX).await?;
            all.extend(page.schedules);
            let Some(next) = page.next else { return Ok(all) };
            after = Some(ScheduleName::new(&next)?);
        }
    })?;
    if args.server.json {
        output::json_lines(&all)?;
        return Ok(Exit::Ok);
    }
    let header = ["schedule", "tube", "times", "next", "last", "fired", "skipped", "state"];
    let mut table = output::table(&header);
    for schedule in &all {
        table.add_row([
            output::printable(&schedule.name),
            output::printable(&schedule.tube),
            output::printable(&times(schedule)),
            moment(schedule.next),
            moment(schedule.last),
            schedule.fired.to_string(),
            schedule.skipped.to_string(),
            state(schedule).to_owned(),
        ]);
    }
    output::show(&table)?;
    Ok(Exit::Ok)
}

/// Prints the current state of a schedule.
pub fn print_one(server: &ServerArgs, name: &ScheduleName) -> anyhow::Result<Exit> {
    let http = server.connect.http()?;
    let schedule = block_on(async { Ok(http.schedule(name).await?) })?;
    print(&schedule, server.json)
}

/// Prints the next times of a schedule.
pub fn next(args: &NextArgs) -> anyhow::Result<Exit> {
    let name = ScheduleName::new(&args.name)?;
    let http = args.server.connect.http()?;
    let times = block_on(async { Ok(http.next_times(&name, args.count).await?) })?;
    let times = times.iter().map(|time| time.as_secs_f64());
    if args.server.json {
        output::json(&serde_json::json!({ "times": times.collect::<Vec<_>>() }))?;
        return Ok(Exit::Ok);
    }
    for time in times {
        output::line(units::utc(time))?;
    }
    Ok(Exit::Ok)
}

/// Prints a schedule.
pub fn print(schedule: &ScheduleAnswer, json: bool) -> anyhow::Result<Exit> {
    if json {
        output::json(schedule)?;
        return Ok(Exit::Ok);
    }
    let catch_up = match schedule.catch_up {
        CatchUpWord::None => "none",
        CatchUpWord::Last => "last",
        CatchUpWord::All => "all",
    };
    let overlap = match schedule.overlap {
        OverlapWord::Allow => "allow",
        OverlapWord::Skip => "skip",
    };
    let mut lines = vec![
        ("schedule", output::printable(&schedule.name)),
        ("tube", output::printable(&schedule.tube)),
        ("times", output::printable(&times(schedule))),
        ("state", state(schedule).to_owned()),
        ("next", moment(schedule.next)),
        ("last", moment(schedule.last)),
        ("fired", schedule.fired.to_string()),
        ("skipped", schedule.skipped.to_string()),
        ("catch-up", catch_up.to_owned()),
        ("overlap", overlap.to_owned()),
        ("until", moment(schedule.until)),
        ("task", output::printable(&serde_json::to_string(&schedule.task)?)),
    ];
    lines.extend(schedule.error.as_deref().map(|error| ("error", output::printable(error))));
    let text: String =
        lines.into_iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect();
    output::bytes(text.as_bytes())?;
    Ok(Exit::Ok)
}

/// The rule of a schedule, as a person writes it.
fn times(schedule: &ScheduleAnswer) -> String {
    let every = schedule.every.map(|every| {
        let start = schedule.start.map(|start| format!(" from {}", units::utc(start)));
        format!("every {}{}", units::in_words(every), start.unwrap_or_default())
    });
    let cron = schedule.cron.as_deref().map(|cron| match schedule.zone.as_deref() {
        Some(zone) => format!("{cron} {zone}"),
        None => cron.to_owned(),
    });
    every.or(cron).unwrap_or_default()
}

fn state(schedule: &ScheduleAnswer) -> &'static str {
    match schedule {
        ScheduleAnswer { next: None, .. } => "over",
        ScheduleAnswer { paused: true, .. } => "paused",
        ScheduleAnswer { error: Some(_), .. } => "failing",
        _ => "active",
    }
}

fn moment(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), units::utc)
}
