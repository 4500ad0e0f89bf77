//! Computes the outcome of a task: its state, its texts, its next run.

use serde::Serialize;
use taskyard_core::Timestamp;
use taskyard_core::schedule::{Cron, Zone, backoff, next_plan, next_plan_after};
use taskyard_timezone::NamedZone;

use crate::connection::SqlError;
use crate::session::RunResult;
use crate::table::Profile;
use crate::task::{Task, timestamp_text};

/// How often a task may lose its session before it ends with an error.
const LOSSES_MAX: u32 = 3;

/// The outcome of a task, as the statement reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TaskOutcome {
    /// The task.
    pub id: i64,
    /// The process that the table shows for it.
    pub old_pid: Option<i32>,
    /// The process that the table shall show.
    pub pid: Option<i32>,
    /// Its new state.
    pub state: &'static str,
    /// Its new plan.
    pub plan: Option<String>,
    /// When it started.
    pub start: Option<String>,
    /// When it ended.
    pub stop: Option<String>,
    /// Its output.
    pub output: Option<String>,
    /// Its error.
    pub error: Option<String>,
    /// How often it was tried before.
    pub attempts: u32,
    /// Whether its row is deleted.
    pub remove: bool,
    /// When it runs again.
    pub next: Option<String>,
}

impl TaskOutcome {
    /// The length of its texts.
    pub fn bytes(&self) -> usize {
        let texts = [&self.output, &self.error].into_iter().flatten();
        texts.map(String::len).sum()
    }

    /// The outcome in a simpler form, after the database refused the forms before for this `reason`; `None` where the form
    /// changes nothing.
    pub fn in_form(&self, form: OutcomeForm, reason: &str) -> Option<Self> {
        let whole = self.clone();
        let texts = [&self.output, &self.error];
        match form {
            OutcomeForm::Full => Some(whole),
            OutcomeForm::Ascii if texts.into_iter().flatten().all(|text| text.is_ascii()) => None,
            OutcomeForm::Ascii => {
                let note = "characters that the database cannot store are written as codes";
                let note = ascii(&SqlError::with_detail(note, reason).text(None));
                let error = self.error.as_deref().map(|error| format!("{}\n{note}", ascii(error)));
                let output = self.output.as_deref().map(ascii);
                Some(TaskOutcome { output, error: error.or(Some(note)), ..whole })
            }
            OutcomeForm::WithoutOutput => Some(whole.without_output(reason)),
            // A unique column of the user may allow no second row: the row itself becomes the next run.
            OutcomeForm::ReplannedInPlace => {
                let plan = Some(self.next.clone()?);
                Some(TaskOutcome {
                    state: "PLAN",
                    plan,
                    pid: None,
                    start: None,
                    stop: None,
                    next: None,
                    attempts: 0,
                    ..whole.without_output(reason)
                })
            }
            OutcomeForm::WithoutNextRun => {
                self.next.as_ref()?;
                Some(TaskOutcome { next: None, ..whole.without_output(reason) })
            }
        }
    }

    /// The shortest outcome: that the task ended, in a state that every table has, and why nothing else is written.
    fn without_output(self, reason: &str) -> Self {
        let state = if self.state == "PLAN" { "PLAN" } else { "DONE" };
        let error = SqlError::with_detail("the outcome of the task cannot be written", reason);
        let error = Some(ascii(&error.text(None)));
        TaskOutcome { state, output: None, error, remove: false, ..self }
    }
}

/// The forms in which an outcome is written, where the database refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutcomeForm {
    /// Unchanged.
    Full,
    /// In characters that every database can store.
    Ascii,
    /// Without its output.
    WithoutOutput,
    /// The row itself is planned for the next run, instead of a copy.
    ReplannedInPlace,
    /// Without the next run.
    WithoutNextRun,
}

impl OutcomeForm {
    /// In the order in which they are tried.
    pub const ALL: [Self; 5] = [
        OutcomeForm::Full,
        OutcomeForm::Ascii,
        OutcomeForm::WithoutOutput,
        OutcomeForm::ReplannedInPlace,
        OutcomeForm::WithoutNextRun,
    ];
}

/// Replaces all characters outside ASCII by codes such as `\u{20ac}`.
fn ascii(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            char if char.is_ascii() => plain.push(char),
            char => plain.extend(char.escape_unicode()),
        }
    }
    plain
}

/// The process and the times of one run of a task.
#[derive(Clone, Copy, Debug)]
pub struct RunTimes {
    /// The process that the table shows for it.
    pub pid: Option<i32>,
    /// When it started, if it did.
    pub start: Option<Timestamp>,
    /// When it ended.
    pub stop: Timestamp,
}

/// Computes outcomes by the profile of the table and the time zone of the database.
pub struct OutcomeRules<'a> {
    /// TaskSelector states there are.
    pub profile: Profile,
    /// The time zone of the database.
    pub zone: &'a dyn Zone,
}

impl OutcomeRules<'_> {
    /// The outcome of a task that ran.
    pub fn ended(&self, task: &Task, run: RunTimes, result: RunResult) -> TaskOutcome {
        let attempts = task.attempts.saturating_add(1);
        if result.lost && task.remote.is_none() && !result.cancelled {
            if attempts < task.attempts_max.max(LOSSES_MAX) {
                return TaskOutcome { attempts, ..self.returned(task, run.pid) };
            }
            let detail = result.error.map_or_else(String::new, |error| error.line());
            let said = format!("task lost its session {attempts} times");
            let error = SqlError::with_detail(said, detail);
            return self.failed(task, run, Some(&error), result.output, attempts);
        }
        match result.error {
            Some(error) if attempts < task.attempts_max && !result.cut => {
                let plan = backoff(run.stop, task.backoff, attempts, self.zone);
                TaskOutcome {
                    plan: Some(timestamp_text(plan)),
                    error: Some(error.text(Some(&task.input))),
                    attempts,
                    ..self.returned(task, run.pid)
                }
            }
            Some(error) => self.failed(task, run, Some(&error), result.output, task.attempts),
            None if result.cut => {
                let error = SqlError::new("output is too long and was cut");
                self.failed(task, run, Some(&error), result.output, task.attempts)
            }
            None => {
                let remove = task.delete && result.output.is_none();
                let done = self.failed(task, run, None, result.output, task.attempts);
                TaskOutcome { state: "DONE", error: None, remove, ..done }
            }
        }
    }

    /// The outcome of a task that could not start.
    pub fn rejected(&self, task: &Task, stop: Timestamp, error: &SqlError) -> TaskOutcome {
        let run = RunTimes { pid: None, start: None, stop };
        let mut outcome = self.failed(task, run, Some(error), None, task.attempts);
        outcome.error = Some(error.text(None));
        outcome
    }

    /// A task whose remote could not be reached: it is tried again up to `attempts_max`.
    pub fn unreachable(&self, task: &Task, stop: Timestamp, error: &SqlError) -> TaskOutcome {
        let attempts = task.attempts.saturating_add(1);
        if attempts >= task.attempts_max {
            return self.rejected(task, stop, error);
        }
        let plan = backoff(stop, task.backoff, attempts, self.zone);
        TaskOutcome {
            plan: Some(timestamp_text(plan)),
            error: Some(error.text(None)),
            attempts,
            ..self.returned(task, None)
        }
    }

    /// The outcome of a task that had expired when it was claimed.
    pub fn expired(&self, task: &Task, now: Timestamp) -> TaskOutcome {
        let state = if self.profile == Profile::Extended { "GONE" } else { "DONE" };
        let error = SqlError::new("task not active");
        let start = Some(timestamp_text(now));
        TaskOutcome { state, start, ..self.rejected(task, now, &error) }
    }

    /// Returns a task to the state PLAN, so that it is claimed again.
    pub fn returned(&self, task: &Task, old_pid: Option<i32>) -> TaskOutcome {
        TaskOutcome {
            id: task.id,
            old_pid,
            pid: None,
            state: "PLAN",
            plan: None,
            start: None,
            stop: None,
            output: None,
            error: None,
            attempts: task.attempts,
            remove: false,
            next: None,
        }
    }

    fn failed(
        &self,
        task: &Task,
        run: RunTimes,
        error: Option<&SqlError>,
        output: Option<String>,
        attempts: u32,
    ) -> TaskOutcome {
        TaskOutcome {
            pid: run.pid,
            state: if self.profile == Profile::Extended { "FAIL" } else { "DONE" },
            start: run.start.map(timestamp_text),
            stop: Some(timestamp_text(run.stop)),
            output,
            error: error.map(|error| error.text(Some(&task.input))),
            attempts,
            next: self.next(task, run.stop).map(timestamp_text),
            ..self.returned(task, run.pid)
        }
    }

    /// When the task runs again.
    fn next(&self, task: &Task, stop: Timestamp) -> Option<Timestamp> {
        match parse_cron(task) {
            Ok(Some((cron, zone))) => match zone {
                Some(zone) => cron.next(stop, &zone),
                None => cron.next(stop, self.zone),
            },
            // The error was reported when the task was claimed.
            Err(_) => None,
            // A retry or a manual run does not move the runs that follow.
            Ok(None) => match task.origin {
                Some(origin) => next_plan_after(origin, stop, task.repeat, task.drift, self.zone),
                None => next_plan(task.plan, stop, task.repeat, task.drift, self.zone),
            },
        }
    }
}

/// The cron expression and the time zone of a task, or why they are invalid.
pub fn parse_cron(task: &Task) -> Result<Option<(Cron, Option<NamedZone>)>, String> {
    let Some(text) = &task.cron else { return Ok(None) };
    let cron = Cron::parse(text).map_err(|error| error.to_string())?;
    let zone = match &task.zone {
        Some(name) => {
            Some(NamedZone::find(name).ok_or_else(|| format!("unknown time zone \"{name}\""))?)
        }
        None => None,
    };
    Ok(Some((cron, zone)))
}

#[cfg(test)]
mod tests {
    use taskyard_core::schedule::{Interval, Reuse, Utc};

    use super::*;
    use crate::output::Format;

    const SECOND: i64 = 1_000_000;

    fn task() -> Task {
        let format = Format {
            header: true,
            string: true,
            delimiter: None,
            escape: None,
            quote: None,
            escapes_itself: false,
            null: String::new(),
        };
        Task {
            id: 5,
            group: "group".into(),
            remote: None,
            input: "SELECT 1".into(),
            plan: Timestamp::EPOCH,
            origin: None,
            delete: true,
            drift: false,
            reuse: Reuse { max: 0, count: 0, live: Interval::ZERO },
            repeat: Interval::ZERO,
            timeout: Interval::ZERO,
            format: Ok(format),
            cron: None,
            zone: None,
            attempts: 0,
            attempts_max: 0,
            backoff: Interval::from_micros(SECOND),
            pid: None,
            save: false,
        }
    }

    fn ended(task: &Task, result: RunResult) -> TaskOutcome {
        let rules = OutcomeRules { profile: Profile::PgTask, zone: &Utc };
        let stop = Timestamp::from_micros(10 * SECOND);
        rules.ended(task, RunTimes { pid: Some(7), start: Some(Timestamp::EPOCH), stop }, result)
    }

    fn at(seconds: i64) -> Option<String> {
        Some(timestamp_text(Timestamp::from_micros(seconds * SECOND)))
    }

    #[test]
    fn a_task_without_output_is_deleted_unless_delete_is_false() {
        assert!(ended(&task(), RunResult::default()).remove);
        assert!(!ended(&Task { delete: false, ..task() }, RunResult::default()).remove);
        let with_output = RunResult { output: Some(String::new()), ..RunResult::default() };
        assert!(!ended(&task(), with_output).remove);
    }

    #[test]
    fn a_failed_task_is_tried_up_to_attempts_max() {
        let failed = || RunResult { error: Some(SqlError::new("no")), ..RunResult::default() };
        let once = ended(&task(), failed());
        assert_eq!((once.state, once.attempts, once.plan), ("DONE", 0, None));
        let asked = Task { attempts_max: 3, ..task() };
        let again = ended(&asked, failed());
        assert_eq!((again.state, again.attempts, again.plan), ("PLAN", 1, at(11)));
        let again = ended(&Task { attempts: 1, ..asked.clone() }, failed());
        assert_eq!((again.state, again.attempts, again.plan), ("PLAN", 2, at(12)));
        let last = ended(&Task { attempts: 2, ..asked }, failed());
        assert_eq!((last.state, last.attempts), ("DONE", 2));
    }

    #[test]
    fn a_task_ends_with_an_error_after_three_lost_sessions() {
        let lost = || RunResult { lost: true, ..RunResult::default() };
        let first = ended(&task(), lost());
        assert_eq!((first.state, first.attempts, first.error), ("PLAN", 1, None));
        let third = ended(&Task { attempts: 2, ..task() }, lost());
        assert_eq!((third.state, third.attempts), ("DONE", 3));
        // Whether a remote has run the task is unknown, so it is not run again.
        let remote = ended(&Task { remote: Some(String::new()), ..task() }, lost());
        assert_eq!(remote.state, "DONE");
    }

    #[test]
    fn a_task_repeats_after_success_failure_and_expiry() {
        let task = Task { repeat: Interval::from_micros(4 * SECOND), ..task() };
        assert_eq!(ended(&task, RunResult::default()).next, at(12));
        let failed = RunResult { error: Some(SqlError::new("no")), ..RunResult::default() };
        assert_eq!(ended(&Task { drift: true, ..task.clone() }, failed).next, at(14));
        let rules = OutcomeRules { profile: Profile::Extended, zone: &Utc };
        let late = rules.expired(&task, Timestamp::from_micros(9 * SECOND));
        assert_eq!((late.state, late.next, late.start), ("GONE", at(12), at(9)));
        // One that failed once at the full hour repeated at odd seconds from then on.
        let (plan, origin) = (Timestamp::from_micros(7 * SECOND), Some(Timestamp::EPOCH));
        let retried = Task { plan, origin, ..task.clone() };
        assert_eq!(ended(&retried, RunResult::default()).next, at(12));
        let cron = Task { cron: Some("* * * * *".into()), ..task };
        assert_eq!(ended(&cron, RunResult::default()).next, at(60));
    }

    #[test]
    fn an_unreachable_remote_is_tried_up_to_attempts_max() {
        // It was tried once, whatever attempts_max said.
        let rules = OutcomeRules { profile: Profile::PgTask, zone: &Utc };
        let (stop, away) = (Timestamp::from_micros(10 * SECOND), SqlError::new("away"));
        let asked = Task { attempts_max: 2, remote: Some("host=h".into()), ..task() };
        let again = rules.unreachable(&asked, stop, &away);
        assert_eq!((again.state, again.attempts, again.plan), ("PLAN", 1, at(11)));
        assert_eq!(again.error.as_deref(), Some("ERROR:  away"));
        let last = rules.unreachable(&Task { attempts: 1, ..asked }, stop, &away);
        assert_eq!((last.state, last.attempts, last.plan), ("DONE", 1, None));
        assert_eq!(rules.unreachable(&task(), stop, &away).state, "DONE");
    }

    #[test]
    fn a_refused_outcome_is_written_in_simpler_forms() {
        // A repeat ended for ever when its end could not be written once.
        let task = Task { repeat: Interval::from_micros(4 * SECOND), ..task() };
        let whole = ended(&task, RunResult { output: Some("5 €".into()), ..RunResult::default() });
        let in_form = |form| whole.in_form(form, "too long").expect("the form differs");
        let ascii = in_form(OutcomeForm::Ascii);
        assert_eq!((ascii.output.as_deref(), ascii.next.clone()), (Some("5 \\u{20ac}"), at(12)));
        let short = in_form(OutcomeForm::WithoutOutput);
        assert_eq!((short.output, short.next), (None, at(12)));
        let error = "ERROR:  the outcome of the task cannot be written\nDETAIL:  too long";
        assert_eq!(short.error.as_deref(), Some(error));
        let same = in_form(OutcomeForm::ReplannedInPlace);
        assert_eq!((same.state, same.plan, same.next), ("PLAN", at(12), None));
        assert_eq!(in_form(OutcomeForm::WithoutNextRun).next, None);
        // A form that changes nothing is skipped.
        let once = ended(&Task { repeat: Interval::ZERO, ..task }, RunResult::default());
        let unchanged =
            [OutcomeForm::Ascii, OutcomeForm::ReplannedInPlace, OutcomeForm::WithoutNextRun];
        for form in unchanged {
            assert_eq!(once.in_form(form, "no"), None);
        }
    }

    #[test]
    fn a_truncated_output_is_an_error_and_not_tried_again() {
        let cut = RunResult { cut: true, output: Some("x".into()), ..RunResult::default() };
        let outcome = ended(&Task { attempts_max: 9, ..task() }, cut);
        assert_eq!((outcome.state, outcome.output.as_deref()), ("DONE", Some("x")));
        assert!(outcome.error.is_some_and(|error| error.starts_with("ERROR:  output is too long")));
    }
}
