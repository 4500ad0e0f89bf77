//! Keeps outcomes and starts until the database has confirmed that they are written.

use std::time::Duration;

use tokio::time::Instant;

use crate::connection::{Row, SqlError};
use crate::outcome::TaskOutcome;

/// How many bytes of outcomes go in one round, unless one alone is longer: the server accepts no message of a gigabyte.
const ROUND_BYTES_MAX: usize = 32 << 20;
/// How long to wait before a row is tried again that another transaction holds locked.
const LOCKED_RETRY: Duration = Duration::from_millis(20);
/// How long to wait before writing again when the database cannot write.
const BLOCKED_RETRY: Duration = Duration::from_millis(250);

/// Outcomes and starts that are sent in one round.
#[derive(Default)]
pub(super) struct Batch {
    pub outcomes: Vec<TaskOutcome>,
    /// The numbers of the sessions whose tasks start.
    pub starts: Vec<u64>,
}

/// What has to be written to the table.
#[derive(Default)]
pub(super) struct Outbox {
    /// Outcomes that are not sent yet.
    pub outcomes: Vec<TaskOutcome>,
    /// Sessions whose task starts as soon as the table shows it as running.
    pub starts: Vec<u64>,
    /// What was sent and not answered yet.
    pub sent: Batch,
    /// Outcomes that the database refused in every form; they are tried again from time to time.
    pub rejected: Vec<TaskOutcome>,
    /// When to try again rows that were locked.
    pub retry_at: Option<Instant>,
    /// Until when nothing is written, because the database cannot write now.
    pub blocked_until: Option<Instant>,
    /// Why the database cannot write.
    pub problem: Option<String>,
}

impl Outbox {
    /// Prepares for a new connection: what had no answer on the last one is sent again.
    pub fn reconnected(&mut self) {
        self.blocked_until = None;
        let sent = self.take_sent();
        self.outcomes.extend(sent.outcomes);
        self.starts.extend(sent.starts);
    }

    /// Whether outcomes are not written yet.
    pub fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty() || !self.sent.outcomes.is_empty()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty() && self.starts.is_empty()
    }

    /// Whether there is something to send that does not wait for a locked row.
    pub fn is_ready(&self) -> bool {
        self.retry_at.is_none() && !self.is_empty()
    }

    /// Whether writing was suspended when this was last checked.
    pub fn is_held(&self) -> bool {
        self.blocked_until.is_some()
    }

    /// Whether writing is suspended; ends the suspension when its time is over.
    pub fn is_blocked(&mut self, now: Instant) -> bool {
        self.blocked_until = self.blocked_until.filter(|until| *until > now);
        self.blocked_until.is_some()
    }

    /// Suspends writing, because the database cannot write now.
    pub fn block(&mut self, error: &SqlError) {
        (self.blocked_until, self.retry_at) = (Some(Instant::now() + BLOCKED_RETRY), None);
        self.problem = Some(error.line());
    }

    /// Tries the starts and outcomes of locked rows again soon.
    pub fn retry_soon(&mut self) {
        self.retry_at = Some(Instant::now() + LOCKED_RETRY);
    }

    /// The outcomes that go in the next round.
    pub fn next_outcomes(&self) -> &[TaskOutcome] {
        &self.outcomes[..portion(&self.outcomes)]
    }

    /// Marks the next outcomes and all starts as sent.
    pub fn send(&mut self) {
        let rest = self.outcomes.split_off(portion(&self.outcomes));
        self.sent = Batch {
            outcomes: std::mem::replace(&mut self.outcomes, rest),
            starts: std::mem::take(&mut self.starts),
        };
    }

    /// Removes what was sent.
    pub fn take_sent(&mut self) -> Batch {
        std::mem::take(&mut self.sent)
    }

    /// Puts back a batch that was not written.
    pub fn unsend(&mut self, batch: Batch) {
        self.outcomes.extend(batch.outcomes);
        self.starts = batch.starts;
    }

    /// The database has written these outcomes, except those of `locked` rows, which are sent again.
    pub fn confirm(&mut self, outcomes: Vec<TaskOutcome>, locked: &[Row]) {
        self.problem = None;
        let locked: Vec<i64> = locked.iter().filter_map(|row| row.parsed(0)).collect();
        if !locked.is_empty() {
            self.outcomes.extend(outcomes.into_iter().filter(|end| locked.contains(&end.id)));
            self.retry_soon();
        }
    }

    /// All outcomes that are not written yet.
    pub fn all_outcomes(&self) -> impl Iterator<Item = &TaskOutcome> {
        self.outcomes.iter().chain(&self.rejected).chain(&self.sent.outcomes)
    }
}

/// How many of these outcomes go in one round.
fn portion(outcomes: &[TaskOutcome]) -> usize {
    let mut bytes = 0;
    let fits = outcomes.iter().take_while(|outcome| {
        bytes += outcome.bytes();
        bytes <= ROUND_BYTES_MAX
    });
    fits.count().max(1).min(outcomes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_outcomes_are_sent_in_several_rounds() {
        // All outcomes went in one message; beyond a gigabyte the server closed the connection, and the message was sent
        // whole again, for ever.
        let outcome = |bytes: usize| TaskOutcome {
            output: Some("x".repeat(bytes)),
            ..TaskOutcome::default()
        };
        assert_eq!(portion(&[]), 0);
        assert_eq!(portion(&[outcome(ROUND_BYTES_MAX + 1), outcome(1)]), 1);
        let half = ROUND_BYTES_MAX / 2;
        assert_eq!(portion(&[outcome(half), outcome(half), outcome(1)]), 2);
        assert_eq!(portion(&[outcome(1), outcome(2), outcome(3)]), 3);
    }
}
