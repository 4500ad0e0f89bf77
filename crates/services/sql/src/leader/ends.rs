//! How tasks end, and how that is written down.

use std::time::Duration;

use tokio::time::Instant;

use super::Leader;
use crate::crew::{Ended, Held, json};
use crate::session::{Event, Outcome};
use crate::status::Status;
use crate::table::{REPEATED, Table};
use crate::verdict::{Plainness, Ran, Verdict};
use crate::wire::{Ask, AskError, ConnectError, Refusal, Row, Wire};

/// For how long no session is opened when the server has no room for it.
const FULL: Duration = Duration::from_millis(250);
/// The longest wait for room on a remote.
const REMOTE_FULL_MAX: Duration = Duration::from_secs(5);

/// How many bytes of ends go in one round, unless one alone is longer: the server takes no message of a gigabyte.
const ROUND_BYTES_MAX: usize = 32 << 20;

/// How many of these ends go in one round.
pub(super) fn portion(ends: &[Verdict]) -> usize {
    let mut bytes = 0;
    let fits = ends.iter().take_while(|end| {
        bytes += end.bytes();
        bytes <= ROUND_BYTES_MAX
    });
    fits.count().max(1).min(ends.len())
}

impl Leader {
    /// Takes what a session told.
    pub(super) fn take_event(&mut self, number: u64, event: Event) {
        match event {
            Event::Opened(pid) => {
                if let Some(session) = self.crew.sessions.get_mut(&number) {
                    session.pid = Some(pid);
                    if session.held.as_ref().is_some_and(|held| held.task.remote.is_none()) {
                        self.unopened = (0, String::new());
                    }
                    self.starts.push(number);
                }
            }
            Event::Failed(error) => self.not_opened(number, error),
            Event::Ended(outcome) => self.ended(number, outcome),
        }
    }

    fn ended(&mut self, number: u64, outcome: Outcome) {
        let Some(session) = self.crew.sessions.get(&number) else { return };
        self.look.add(&session.key);
        let (key, over) = (session.key.clone(), outcome.lost || outcome.cancelled);
        let Some(Held { task, start, shown_pid, give_back, .. }) = self.crew.take(number) else {
            return;
        };
        let stop = self.clock.now();
        if give_back && outcome.error.is_some() {
            let verdict = self.judged(|judge, _| judge.given_back(&task, shown_pid));
            self.ends.push(verdict);
            return self.crew.close(number);
        }
        let counter = match (&outcome.error, outcome.lost) {
            (_, true) => &self.status.lost,
            (Some(_), false) => &self.status.failed,
            (None, false) => &self.status.done,
        };
        Status::count(counter);
        let ran = Ran { pid: shown_pid, start, stop };
        let verdict = self.judged(|judge, _| judge.ended(&task, ran, outcome));
        self.ends.push(verdict);
        let ended = Ended { plan: task.plan, stop, max: task.reuse.max, drift: task.drift };
        self.crew.pause(&key, &ended, &self.zone);
        if over || !task.reuse.goes_on() {
            self.crew.close(number);
        }
    }

    /// There is no session for a task.
    fn not_opened(&mut self, number: u64, error: ConnectError) {
        let Some(session) = self.crew.sessions.get_mut(&number) else { return };
        self.look.add(&session.key);
        let Some(held) = session.held.as_mut() else { return };
        let full = matches!(&error, ConnectError::Refused(refusal) if refusal.is_full());
        if held.task.remote.is_some() && full && !held.give_back {
            held.tries = held.tries.saturating_add(1);
            let wait = FULL.saturating_mul(1 << held.tries.min(8)).min(REMOTE_FULL_MAX);
            let again = Instant::now() + wait;
            if held.deadline.is_none_or(|deadline| again < deadline) {
                self.reopen.push((again, number));
                return;
            }
        }
        let Some(held) = self.crew.take(number) else { return };
        self.crew.close(number);
        let verdict = match held.task.remote {
            // It is never a task's fault that the database has no room for it.
            None => {
                tracing::debug!("no session: {}", error.line());
                // That there is no room passes; anything else somebody has to see to.
                if !full {
                    self.unopened = (self.unopened.0.saturating_add(1), error.line());
                }
                self.full_until = Some(Instant::now() + FULL);
                self.judged(|judge, _| judge.given_back(&held.task, None))
            }
            Some(_) if held.give_back => self.judged(|judge, _| judge.given_back(&held.task, None)),
            Some(_) => {
                Status::count(&self.status.failed);
                let refusal = remote_refusal(&error);
                self.judged(|judge, now| judge.unreachable(&held.task, now, &refusal))
            }
        };
        self.ends.push(verdict);
    }

    /// Opens again what had no room on its remote.
    pub(super) fn reopen_due(&mut self, table: &Table, now: Instant) {
        let due = self.reopen.extract_if(.., |(at, _)| *at <= now).map(|(_, number)| number);
        for number in due.collect::<Vec<_>>() {
            let Some(key) = self.crew.sessions.get(&number).map(|session| session.key.clone())
            else {
                continue;
            };
            let Some(held) = self.crew.take(number) else { continue };
            self.crew.close(number);
            match self.opening(&held.task, table) {
                Ok(how) => self.crew.open(key, held, self.clock.now(), how),
                Err(refusal) => {
                    let verdict =
                        self.judged(|judge, now| judge.refused(&held.task, now, &refusal));
                    self.ends.push(verdict);
                }
            }
        }
    }

    /// Gives back the tasks whose session was never there.
    pub(super) fn give_back_unopened(&mut self) {
        let unopened = self.crew.sessions.iter().filter(|(_, session)| session.pid.is_none());
        for number in unopened.map(|(number, _)| *number).collect::<Vec<_>>() {
            if let Some(held) = self.crew.take(number) {
                let verdict = self.judged(|judge, _| judge.given_back(&held.task, held.shown_pid));
                self.ends.push(verdict);
            }
            self.crew.close(number);
        }
    }

    /// The statement that writes these ends down.
    pub(super) async fn finish_text(
        &self,
        wire: &mut Wire,
        table: &Table,
        ends: &[Verdict],
    ) -> Result<String, AskError> {
        if ends.iter().all(|end| end.next.is_none()) {
            return Ok(table.statements.finish.clone());
        }
        // Asked each time: somebody may have added a column.
        let rows = wire.ask(Ask::new(REPEATED, [&table.oid.to_string(), "{}"])).await?;
        let row = rows.first().ok_or_else(|| AskError::Lost("no answer".into()))?;
        let text = |place| row.text(place).unwrap_or_default();
        Ok(table.statements.finish_again(text(0), text(1)))
    }

    /// Keeps what somebody else holds locked for the next round.
    pub(super) fn written(&mut self, ends: Vec<Verdict>, locked: &[Row]) {
        let locked: Vec<i64> = locked.iter().filter_map(|row| row.parsed(0)).collect();
        if !locked.is_empty() {
            self.ends.extend(ends.into_iter().filter(|end| locked.contains(&end.id)));
            self.again = Some(Instant::now() + Duration::from_millis(20));
        }
    }

    /// Writes ends one by one, because together they were refused: one that cannot be written must not keep the others
    /// from it.
    pub(super) async fn write_alone(
        &mut self,
        wire: &mut Wire,
        table: &Table,
        ends: Vec<Verdict>,
    ) -> Result<(), AskError> {
        // They stay here until there is an answer about each: this may be given up at any moment.
        self.sent.0 = ends;
        let written = self.write_sent(wire, table).await;
        self.ends.append(&mut self.sent.0);
        written
    }

    async fn write_sent(&mut self, wire: &mut Wire, table: &Table) -> Result<(), AskError> {
        while let Some(end) = self.sent.0.last().cloned() {
            if !self.write_one(wire, table, end).await? {
                break;
            }
            self.sent.0.pop();
        }
        Ok(())
    }

    /// Writes one, in a plainer form each time the database refuses it; answers no where nothing can be written now.
    async fn write_one(
        &mut self,
        wire: &mut Wire,
        table: &Table,
        end: Verdict,
    ) -> Result<bool, AskError> {
        let mut said = String::new();
        let mut last = end.clone();
        for plainness in Plainness::ALL {
            let Some(end) = end.plainer(plainness, &said) else { continue };
            let sql = self.finish_text(wire, table, std::slice::from_ref(&end)).await?;
            let ask = Ask { sql: &sql, params: vec![Some(json([&end]))] };
            match wire.ask(ask).await {
                Ok(locked) => {
                    self.trouble = None;
                    self.written(vec![end], &locked);
                    return Ok(true);
                }
                Err(AskError::Refused(refusal)) if refusal.is_passing() => {
                    (self.hold, self.again) = (Some(Instant::now() + FULL), None);
                    self.trouble = Some(refusal.line());
                    return Ok(false);
                }
                // The table itself is gone or changed: nothing can be written there now.
                Err(AskError::Refused(refusal)) if refusal.code.starts_with("42P") => {
                    return Err(AskError::Refused(refusal));
                }
                Err(AskError::Refused(refusal)) => said = refusal.line(),
                Err(lost) => return Err(lost),
            }
            last = end;
        }
        tracing::error!("the end of a task cannot be written: {said}");
        // It has run, so it is not given to anybody else.
        self.unwritten.push(last);
        Ok(true)
    }
}

/// What is written down about a remote that cannot be reached.
fn remote_refusal(error: &ConnectError) -> Refusal {
    match error {
        ConnectError::Unreachable(why) => Refusal::detailed("could not connect to the remote", why),
        ConnectError::Refused(refusal) => {
            let said = format!("{}:  {}", refusal.severity, refusal.message);
            Refusal::detailed("could not connect to the remote", said)
        }
        ConnectError::PasswordUnused => Refusal {
            hint: Some("Target server's authentication method must be changed.".into()),
            ..Refusal::detailed(
                "password is required",
                "Non-superuser cannot connect if the server does not request a password.",
            )
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ends_go_one_after_another() {
        // All that waited went in one message; beyond a gigabyte the server hung up, and it was sent whole again, for
        // ever.
        let end = |bytes: usize| Verdict { output: Some("x".repeat(bytes)), ..Verdict::default() };
        assert_eq!(portion(&[]), 0);
        assert_eq!(portion(&[end(ROUND_BYTES_MAX + 1), end(1)]), 1);
        assert_eq!(portion(&[end(ROUND_BYTES_MAX / 2), end(ROUND_BYTES_MAX / 2), end(1)]), 2);
        assert_eq!(portion(&[end(1), end(2), end(3)]), 3);
    }
}
