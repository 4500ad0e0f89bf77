//! Conditions for tasks, as options of commands.

use clap::{Args, ValueEnum};
use taskyard::Http;
use taskyard_core::{Command, Counts, Execute, Reply, Timestamp, TubeName};
use taskyard_wire::http::TaskFilterRequest;

use crate::progress::Progress;
use crate::units;

/// Conditions that tasks meet.
#[derive(Debug, Args)]
#[command(next_help_heading = "Filter")]
pub struct FilterArgs {
    /// Only tasks in this state; may be repeated.
    #[arg(long, value_name = "STATE", value_enum)]
    state: Vec<StateName>,
    /// Only tasks whose payload contains this text (case-sensitive).
    #[arg(long = "match", value_name = "TEXT")]
    text: Option<String>,
    /// Only the task with this key.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only tasks of this sub-queue.
    #[arg(long, value_name = "KEY")]
    subqueue: Option<String>,
    /// Only tasks that this worker holds or finished, or for which it failed last.
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Only tasks with a failure whose error contains this text.
    #[arg(long, value_name = "TEXT")]
    error_match: Option<String>,
    /// Only tasks with at least this many attempts.
    #[arg(long, value_name = "N")]
    attempts_min: Option<u32>,
    /// Only tasks put at this time or later: 2030-01-31T08:00:00Z, or seconds since 1970.
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp)]
    created_from: Option<Timestamp>,
    /// Only tasks put before this time.
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp)]
    created_until: Option<Timestamp>,
    /// Only done tasks that ended at this time or later.
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp)]
    finished_from: Option<Timestamp>,
    /// Only done tasks that ended before this time.
    #[arg(long, value_name = "DATETIME", value_parser = units::timestamp)]
    finished_until: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum StateName {
    Ready,
    Taken,
    Delayed,
    Buried,
    Done,
}

impl FilterArgs {
    /// Whether every task meets it.
    pub fn is_empty(&self) -> bool {
        self.request() == TaskFilterRequest::default()
    }

    /// Whether a text is given and empty, as by a script whose variable is not set.
    pub fn has_empty_text(&self) -> bool {
        [&self.text, &self.key, &self.error_match]
            .into_iter()
            .any(|text| text.as_deref() == Some(""))
    }

    /// The conditions as a request has them.
    pub fn request(&self) -> TaskFilterRequest {
        let name = |state: &StateName| match state {
            StateName::Ready => "ready",
            StateName::Taken => "taken",
            StateName::Delayed => "delayed",
            StateName::Buried => "buried",
            StateName::Done => "done",
        };
        let states: Vec<_> = self.state.iter().map(name).collect();
        let seconds = |time: Option<Timestamp>| time.map(Timestamp::as_secs_f64);
        TaskFilterRequest {
            state: (!states.is_empty()).then(|| states.join(",")),
            text: self.text.clone(),
            key: self.key.clone(),
            subqueue: self.subqueue.clone(),
            worker: self.worker.clone(),
            error: self.error_match.clone(),
            attempts_min: self.attempts_min.map(u64::from),
            created_from: seconds(self.created_from),
            created_until: seconds(self.created_until),
            finished_from: seconds(self.finished_from),
            finished_until: seconds(self.finished_until),
        }
    }
}

/// How many tasks a search in these states compares, to show progress to a person; `None` if nothing is shown to one.
pub async fn compared(
    http: &Http,
    tube: &TubeName,
    states: &str,
    progress: &Progress,
) -> Option<u64> {
    if !progress.is_shown() {
        return None;
    }
    // The search itself reports what is wrong.
    let shown = http.execute(vec![Command::Tubes { tube: Some(tube.clone()) }]).await.pop()?;
    let Ok(Reply::Tubes(tubes)) = shown else { return None };
    Some(tasks_in(states, &tubes.first()?.stats.tasks))
}

fn tasks_in(states: &str, tasks: &Counts) -> u64 {
    let counts = states.split(',').map(|state| match state {
        "ready" => tasks.ready,
        "taken" => tasks.taken,
        "delayed" => tasks.delayed,
        "buried" => tasks.buried,
        _ => tasks.kept,
    });
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted_by_state() {
        let tasks = Counts { ready: 1, taken: 2, delayed: 4, buried: 8, done: 99, kept: 16 };
        for (states, count) in [("buried", 8), ("ready,taken,delayed,buried", 15), ("done", 16)] {
            assert_eq!(tasks_in(states, &tasks), count, "{states}");
        }
    }
}
