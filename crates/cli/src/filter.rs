//! Conditions for tasks, as options of commands.

use clap::{Args, ValueEnum};
use taskyard_wire::http::TaskFilterRequest;

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
        TaskFilterRequest {
            state: (!states.is_empty()).then(|| states.join(",")),
            text: self.text.clone(),
            key: self.key.clone(),
            subqueue: self.subqueue.clone(),
            worker: self.worker.clone(),
            error: self.error_match.clone(),
            attempts_min: self.attempts_min.map(u64::from),
            ..TaskFilterRequest::default()
        }
    }
}
