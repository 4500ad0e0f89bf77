//! How a task's end is written down: its state, its text, its next run.

use serde::Serialize;
use taskyard_core::Timestamp;
use taskyard_core::schedule::{Cron, Zone, backoff, next_plan, next_plan_after};

use crate::session::Outcome;
use crate::table::Profile;
use crate::task::{Task, moment_text};
use crate::wire::Refusal;
use crate::zone::Named;

/// How often a task may lose its session before it is given up.
const LOSSES_MAX: u32 = 3;

/// How a task ended, as the statement reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The task.
    pub id: i64,
    /// The session that it has in the table.
    pub old_pid: Option<i32>,
    /// The session that it gets.
    pub pid: Option<i32>,
    /// Its state.
    pub state: &'static str,
    /// Its new plan.
    pub plan: Option<String>,
    /// When it began.
    pub start: Option<String>,
    /// When it ended.
    pub stop: Option<String>,
    /// What it said.
    pub output: Option<String>,
    /// What went wrong.
    pub error: Option<String>,
    /// How often it was tried before.
    pub attempts: u32,
    /// Whether it is deleted.
    pub remove: bool,
    /// When it runs again.
    pub next: Option<String>,
}

impl Verdict {
    /// How long its texts are.
    pub fn bytes(&self) -> usize {
        let texts = [&self.output, &self.error].into_iter().flatten();
        texts.map(String::len).sum()
    }

    /// The end in a form that the database may take where it refused the ones before, as `said`; `None` where this form
    /// says nothing new.
    pub fn plainer(&self, plainness: Plainness, said: &str) -> Option<Self> {
        let end = self.clone();
        let texts = [&self.output, &self.error];
        match plainness {
            Plainness::Whole => Some(end),
            Plainness::Ascii if texts.into_iter().flatten().all(|text| text.is_ascii()) => None,
            Plainness::Ascii => {
                let note = "characters that the database cannot store are written as codes";
                let note = ascii(&Refusal::detailed(note, said).text(None));
                let error = self.error.as_deref().map(|error| format!("{}\n{note}", ascii(error)));
                let output = self.output.as_deref().map(ascii);
                Some(Verdict { output, error: error.or(Some(note)), ..end })
            }
            Plainness::Bare => Some(end.bare(said)),
            // A column of the user may allow one row only: the row itself becomes the next one.
            Plainness::InPlace => {
                let plan = Some(self.next.clone()?);
                Some(Verdict {
                    state: "PLAN",
                    plan,
                    pid: None,
                    start: None,
                    stop: None,
                    next: None,
                    attempts: 0,
                    ..end.bare(said)
                })
            }
            Plainness::Last => {
                self.next.as_ref()?;
                Some(Verdict { next: None, ..end.bare(said) })
            }
        }
    }

    /// The least that can be said: that it ended, in a state that every table has, and why no more is said.
    fn bare(self, said: &str) -> Self {
        let state = if self.state == "PLAN" { "PLAN" } else { "DONE" };
        let refusal = Refusal::detailed("the end of the task cannot be written", said);
        let error = Some(ascii(&refusal.text(None)));
        Verdict { state, output: None, error, remove: false, ..self }
    }
}

/// How plainly an end is written, where the database refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plainness {
    /// As it is.
    Whole,
    /// In characters that every database can store.
    Ascii,
    /// Without its output.
    Bare,
    /// The row itself runs again, instead of another one like it.
    InPlace,
    /// Without the next run.
    Last,
}

impl Plainness {
    /// From the whole to the plainest.
    pub const ALL: [Self; 5] =
        [Plainness::Whole, Plainness::Ascii, Plainness::Bare, Plainness::InPlace, Plainness::Last];
}

/// The text with codes for all characters that a database may not know.
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

/// A run of a task: who ran it, and when.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// The session that it has in the table.
    pub pid: Option<i32>,
    /// When it began, if it did.
    pub start: Option<Timestamp>,
    /// When it ended.
    pub stop: Timestamp,
}

/// What decides beside the task itself.
pub struct Judge<'a> {
    /// Which states there are.
    pub profile: Profile,
    /// The clocks of the database.
    pub zone: &'a dyn Zone,
}

impl Judge<'_> {
    /// A task that ran.
    pub fn ended(&self, task: &Task, ran: Ran, outcome: Outcome) -> Verdict {
        let attempts = task.attempts.saturating_add(1);
        if outcome.lost && task.remote.is_none() && !outcome.cancelled {
            if attempts < task.attempts_max.max(LOSSES_MAX) {
                return Verdict { attempts, ..self.given_back(task, ran.pid) };
            }
            let detail = outcome.error.map_or_else(String::new, |error| error.line());
            let said = format!("task lost its session {attempts} times");
            let error = Refusal::detailed(said, detail);
            return self.failed(task, ran, Some(&error), outcome.output, attempts);
        }
        match outcome.error {
            Some(error) if attempts < task.attempts_max && !outcome.cut => {
                let plan = backoff(ran.stop, task.backoff, attempts, self.zone);
                Verdict {
                    plan: Some(moment_text(plan)),
                    error: Some(error.text(Some(&task.input))),
                    attempts,
                    ..self.given_back(task, ran.pid)
                }
            }
            Some(error) => self.failed(task, ran, Some(&error), outcome.output, task.attempts),
            None if outcome.cut => {
                let error = Refusal::own("output is too long and was cut");
                self.failed(task, ran, Some(&error), outcome.output, task.attempts)
            }
            None => {
                let remove = task.delete && outcome.output.is_none();
                let done = self.failed(task, ran, None, outcome.output, task.attempts);
                Verdict { state: "DONE", error: None, remove, ..done }
            }
        }
    }

    /// A task that could not even begin.
    pub fn refused(&self, task: &Task, stop: Timestamp, error: &Refusal) -> Verdict {
        let ran = Ran { pid: None, start: None, stop };
        let mut verdict = self.failed(task, ran, Some(error), None, task.attempts);
        verdict.error = Some(error.text(None));
        verdict
    }

    /// A task whose remote could not be reached: tried again as often as it asks for.
    pub fn unreachable(&self, task: &Task, stop: Timestamp, error: &Refusal) -> Verdict {
        let attempts = task.attempts.saturating_add(1);
        if attempts >= task.attempts_max {
            return self.refused(task, stop, error);
        }
        let plan = backoff(stop, task.backoff, attempts, self.zone);
        Verdict {
            plan: Some(moment_text(plan)),
            error: Some(error.text(None)),
            attempts,
            ..self.given_back(task, None)
        }
    }

    /// A task whose time was over when its turn came.
    pub fn expired(&self, task: &Task, now: Timestamp) -> Verdict {
        let state = if self.profile == Profile::Extended { "GONE" } else { "DONE" };
        let error = Refusal::own("task not active");
        let start = Some(moment_text(now));
        Verdict { state, start, ..self.refused(task, now, &error) }
    }

    /// A task that is to be claimed anew.
    pub fn given_back(&self, task: &Task, old_pid: Option<i32>) -> Verdict {
        Verdict {
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
        ran: Ran,
        error: Option<&Refusal>,
        output: Option<String>,
        attempts: u32,
    ) -> Verdict {
        Verdict {
            pid: ran.pid,
            state: if self.profile == Profile::Extended { "FAIL" } else { "DONE" },
            start: ran.start.map(moment_text),
            stop: Some(moment_text(ran.stop)),
            output,
            error: error.map(|error| error.text(Some(&task.input))),
            attempts,
            next: self.next(task, ran.stop).map(moment_text),
            ..self.given_back(task, ran.pid)
        }
    }

    /// When it runs again.
    fn next(&self, task: &Task, stop: Timestamp) -> Option<Timestamp> {
        match cron_of(task) {
            Ok(Some((cron, zone))) => match zone {
                Some(zone) => cron.next(stop, &zone),
                None => cron.next(stop, self.zone),
            },
            // What cannot be read was said when the task began.
            Err(_) => None,
            // That it was tried again later, or run by hand, does not move those that follow.
            Ok(None) => match task.origin {
                Some(origin) => next_plan_after(origin, stop, task.repeat, task.drift, self.zone),
                None => next_plan(task.plan, stop, task.repeat, task.drift, self.zone),
            },
        }
    }
}

/// When a task runs by cron, and by which clocks; or why that cannot be read.
pub fn cron_of(task: &Task) -> Result<Option<(Cron, Option<Named>)>, String> {
    let Some(text) = &task.cron else { return Ok(None) };
    let cron = Cron::parse(text).map_err(|error| error.to_string())?;
    let zone = match &task.zone {
        Some(name) => {
            Some(Named::find(name).ok_or_else(|| format!("time zone \"{name}\" is not known"))?)
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

    fn ended(task: &Task, outcome: Outcome) -> Verdict {
        let judge = Judge { profile: Profile::Seed, zone: &Utc };
        let stop = Timestamp::from_micros(10 * SECOND);
        judge.ended(task, Ran { pid: Some(7), start: Some(Timestamp::EPOCH), stop }, outcome)
    }

    fn at(seconds: i64) -> Option<String> {
        Some(moment_text(Timestamp::from_micros(seconds * SECOND)))
    }

    #[test]
    fn a_task_without_output_goes_unless_it_shall_stay() {
        assert!(ended(&task(), Outcome::default()).remove);
        assert!(!ended(&Task { delete: false, ..task() }, Outcome::default()).remove);
        let said = Outcome { output: Some(String::new()), ..Outcome::default() };
        assert!(!ended(&task(), said).remove);
    }

    #[test]
    fn a_failed_task_is_tried_as_often_as_asked() {
        let failed = || Outcome { error: Some(Refusal::own("no")), ..Outcome::default() };
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
    fn a_lost_session_is_not_the_end_but_three_are() {
        let lost = || Outcome { lost: true, ..Outcome::default() };
        let first = ended(&task(), lost());
        assert_eq!((first.state, first.attempts, first.error), ("PLAN", 1, None));
        let third = ended(&Task { attempts: 2, ..task() }, lost());
        assert_eq!((third.state, third.attempts), ("DONE", 3));
        // Whether a remote has done it nobody knows, so it is not done again.
        let remote = ended(&Task { remote: Some(String::new()), ..task() }, lost());
        assert_eq!(remote.state, "DONE");
    }

    #[test]
    fn what_ends_repeats_whether_well_or_not() {
        let task = Task { repeat: Interval::from_micros(4 * SECOND), ..task() };
        assert_eq!(ended(&task, Outcome::default()).next, at(12));
        let failed = Outcome { error: Some(Refusal::own("no")), ..Outcome::default() };
        assert_eq!(ended(&Task { drift: true, ..task.clone() }, failed).next, at(14));
        let judge = Judge { profile: Profile::Extended, zone: &Utc };
        let late = judge.expired(&task, Timestamp::from_micros(9 * SECOND));
        assert_eq!((late.state, late.next, late.start), ("GONE", at(12), at(9)));
        // One that failed once at the full hour repeated at odd seconds from then on.
        let (plan, origin) = (Timestamp::from_micros(7 * SECOND), Some(Timestamp::EPOCH));
        let retried = Task { plan, origin, ..task.clone() };
        assert_eq!(ended(&retried, Outcome::default()).next, at(12));
        let cron = Task { cron: Some("* * * * *".into()), ..task };
        assert_eq!(ended(&cron, Outcome::default()).next, at(60));
    }

    #[test]
    fn a_remote_that_is_away_is_tried_as_often_as_asked() {
        // It was tried once, whatever attempts_max said.
        let judge = Judge { profile: Profile::Seed, zone: &Utc };
        let (stop, away) = (Timestamp::from_micros(10 * SECOND), Refusal::own("away"));
        let asked = Task { attempts_max: 2, remote: Some("host=h".into()), ..task() };
        let again = judge.unreachable(&asked, stop, &away);
        assert_eq!((again.state, again.attempts, again.plan), ("PLAN", 1, at(11)));
        assert_eq!(again.error.as_deref(), Some("ERROR:  away"));
        let last = judge.unreachable(&Task { attempts: 1, ..asked }, stop, &away);
        assert_eq!((last.state, last.attempts, last.plan), ("DONE", 1, None));
        assert_eq!(judge.unreachable(&task(), stop, &away).state, "DONE");
    }

    #[test]
    fn an_end_is_written_more_and_more_plainly() {
        // A repeat ended for ever when its end could not be written once.
        let task = Task { repeat: Interval::from_micros(4 * SECOND), ..task() };
        let whole = ended(&task, Outcome { output: Some("5 €".into()), ..Outcome::default() });
        let plainer = |plainness| whole.plainer(plainness, "not so").expect("it says something");
        let plain = plainer(Plainness::Ascii);
        assert_eq!((plain.output.as_deref(), plain.next.clone()), (Some("5 \\u{20ac}"), at(12)));
        let bare = plainer(Plainness::Bare);
        assert_eq!((bare.output, bare.next), (None, at(12)));
        let said = "ERROR:  the end of the task cannot be written\nDETAIL:  not so";
        assert_eq!(bare.error.as_deref(), Some(said));
        let same = plainer(Plainness::InPlace);
        assert_eq!((same.state, same.plan, same.next), ("PLAN", at(12), None));
        assert_eq!(plainer(Plainness::Last).next, None);
        // What is plain already, and what does not repeat, is not written twice.
        let once = ended(&Task { repeat: Interval::ZERO, ..task }, Outcome::default());
        for plainness in [Plainness::Ascii, Plainness::InPlace, Plainness::Last] {
            assert_eq!(once.plainer(plainness, "no"), None);
        }
    }

    #[test]
    fn an_output_that_was_cut_is_an_error_and_not_tried_again() {
        let cut = Outcome { cut: true, output: Some("x".into()), ..Outcome::default() };
        let verdict = ended(&Task { attempts_max: 9, ..task() }, cut);
        assert_eq!((verdict.state, verdict.output.as_deref()), ("DONE", Some("x")));
        assert!(verdict.error.is_some_and(|error| error.starts_with("ERROR:  output is too long")));
    }
}
