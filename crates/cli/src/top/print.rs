//! Prints the numbers for programs and files: one table, or lines of JSON.

use std::fmt::Write as _;

use serde::Serialize;
use taskyard::{Http, HttpError};
use taskyard_wire::http::TaskCounts;
use tokio::time::Interval;

use super::columns::Column;
use super::sample::{Observation, Report, Row, Total, Tracker, sample};
use super::stop::ViewSignals;
use super::text;
use super::view::Choice;
use crate::internal_tubes::InternalArgs;
use crate::output;

/// A server that is sampled periodically.
pub struct Source {
    http: Http,
    internal: InternalArgs,
    ticks: Interval,
    tracker: Tracker,
}

impl Source {
    /// A source without samples.
    pub fn new(http: Http, internal: InternalArgs, ticks: Interval) -> Self {
        Source { http, internal, ticks, tracker: Tracker::default() }
    }

    /// The next sample with rates, or the failure to reach the server.
    async fn next(&mut self) -> Result<Observation, HttpError> {
        loop {
            self.ticks.tick().await;
            match self.tracker.note(sample(self.http.clone(), self.internal).await)? {
                Observation::Reachable(report) if report.seconds.is_none() => {}
                observation => return Ok(observation),
            }
        }
    }

    /// One sample with rates; here an unreachable server is an error.
    async fn once(&mut self) -> Result<Report, HttpError> {
        match self.next().await? {
            Observation::Reachable(report) => Ok(report),
            Observation::Unreachable(error) => Err(error),
        }
    }
}

/// Prints one table.
pub async fn table(mut source: Source, choice: &Choice) -> anyhow::Result<()> {
    let report = source.once().await?;
    let url = source.http.url();
    output::line(format!("{url} answered in {}", text::latency(report.latency)))?;
    output::line(text::totals(&report))?;
    output::line(text::durations(&report))?;
    let rows = choice.of(&report);
    if rows.is_empty() {
        return Ok(());
    }
    output::line("")?;
    let columns = choice.columns.printed();
    let titles: Vec<_> = columns.iter().map(|column| column.title()).collect();
    let mut table = output::table(&titles);
    for row in rows {
        table.add_row(columns.iter().map(|column| cell(row, *column, report.time)));
    }
    Ok(output::show(&table)?)
}

/// A cell with every digit.
fn cell(row: &Row, column: Column, now: f64) -> String {
    let TaskCounts { ready, taken, buried, delayed, done, .. } = row.tasks;
    let count = match column {
        Column::Ready => ready,
        Column::Taken => taken,
        Column::Delayed => delayed,
        Column::Buried => buried,
        Column::Done => done,
        Column::Waiting => row.consumers,
        _ => return text::cell(row, column, now),
    };
    count.to_string()
}

/// One line of JSON.
#[derive(Serialize)]
struct JsonLine<'a> {
    time: f64,
    url: &'a str,
    latency: f64,
    seconds: Option<f64>,
    total: &'a Total,
    tubes: Vec<&'a Row>,
}

/// One line of JSON about an unreachable server.
#[derive(Serialize)]
struct UnreachableLine<'a> {
    url: &'a str,
    error: String,
}

/// Prints a line of JSON for each interval, or only one.
pub async fn json(mut source: Source, choice: &Choice, once: bool) -> anyhow::Result<()> {
    let url = source.http.url();
    if once {
        return Ok(output::line(line(&source.once().await?, &url, choice)?)?);
    }
    let mut stop = ViewSignals::listen()?;
    loop {
        let seen = tokio::select! {
            () = stop.requested() => return Ok(()),
            seen = source.next() => seen?,
        };
        output::line(match seen {
            Observation::Reachable(report) => line(&report, &url, choice)?,
            Observation::Unreachable(error) => {
                escaped(&UnreachableLine { url: &url, error: error.to_string() })?
            }
        })?;
    }
}

fn line(report: &Report, url: &str, choice: &Choice) -> serde_json::Result<String> {
    let Report { time, latency, seconds, ref total, .. } = *report;
    escaped(&JsonLine { time, url, latency, seconds, total, tubes: choice.of(report) })
}

/// JSON without control characters for a terminal: the format itself allows the upper ones.
fn escaped(value: &impl Serialize) -> serde_json::Result<String> {
    let mut safe = String::new();
    for char in serde_json::to_string(value)?.chars() {
        if char.is_control() {
            // Such a character is always inside a string, where this means the same.
            let _ = write!(safe, "\\u{:04x}", u32::from(char));
        } else {
            safe.push(char);
        }
    }
    Ok(safe)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sample::tests::{report, tube};
    use super::*;

    #[test]
    fn a_line_of_json_has_the_chosen_tubes_and_the_sums_of_all() {
        let at = |puts| vec![tube(1, "mail", [puts, 0, 0]), tube(2, "sms", [puts, 0, 0])];
        let choice = Choice { filter: "mail".into(), ..Choice::default() };
        let line = line(&report(2000, [at(0), at(5)]), "http://x", &choice).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["seconds"], 2.0);
        assert_eq!(line["total"]["rates"]["put"], 5.0);
        assert_eq!(line["total"]["tubes"], 2);
        let tasks = json!({
            "ready": 5, "taken": 0, "buried": 0, "delayed": 0, "done": 0, "kept": 0, "total": 5,
        });
        let mail = json!({
            "name": "mail", "kind": "fifottl", "paused": false, "tasks": tasks, "consumers": 2,
            "next_wakeup": null, "rates": { "put": 2.5, "take": 0.0, "ack": 0.0, "fail": null }, "wait": null, "run": null,
        });
        assert_eq!(line["tubes"], json!([mail]));
    }

    #[test]
    fn control_characters_are_escaped() {
        let name = "a\u{1b}\u{9b}\u{7f}";
        let safe = escaped(&name).unwrap();
        assert_eq!(safe, r#""a\u001b\u009b\u007f""#);
        assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), name);
    }

    #[test]
    fn a_table_has_room_for_every_digit() {
        let tubes = || vec![tube(1, "mail", [12_345_678_901, 0, 0])];
        let report = report(1000, [tubes(), tubes()]);
        assert_eq!(cell(&report.tubes[0], Column::Ready, 0.0), "12345678901");
        assert_eq!(cell(&report.tubes[0], Column::Put, 0.0), "0");
    }
}
