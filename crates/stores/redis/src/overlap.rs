//! Batches that leave while others are under way, and those that have Redis to themselves.
//!
//! Puts, takes and finishes of plain tubes need nothing but one call each. Such a batch is sent behind the one before it, on the same
//! connection, and Redis need not wait until that one is heard and answered here. All others wait until
//! nothing is under way any more: they may need several rounds, and what was lost must be known before it can be put in order. So must those
//! of which Redis has refused a part, which was not done and is asked again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use taskyard_core::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use taskyard_core::{Command, Timestamp, TubeName};
use taskyard_redis::{Failure, Link, SentCalls};
use tokio::sync::oneshot;

use super::Redis;
use super::execute::{Batch, Group, leases_of, sessions_of, tasks_in, tube_of, waves};
use super::failure::error;
use super::refuse::refusal;
use super::results::{Leases, Results, Taken};
use taskyard_store::Executed;

/// What is left to be done.
enum Work {
    All(Vec<Command>),
    Some(Vec<Group>),
}

/// Calls that were sent for these, and the lease numbers that each may use.
struct Begun {
    groups: Vec<Group>,
    ranges: Vec<(u64, u64)>,
    sent: SentCalls,
    /// Nodes do not answer in the order in which they were asked.
    landing: Entry,
}

/// The place of a batch among those that came before and after it, who wait until it is known how this one goes.
pub(super) struct Entry {
    before: oneshot::Receiver<()>,
    /// Whoever comes next waits until this is dropped.
    next: oneshot::Sender<()>,
}

/// The latest batch that came.
#[derive(Default)]
pub(super) struct Line(Mutex<Option<oneshot::Receiver<()>>>);

impl Line {
    /// A place behind all that came before. Batches are not begun in the order in which they come, so it is asked for first.
    pub fn enter(&self) -> Entry {
        let (next, behind) = oneshot::channel();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(behind).unwrap_or_else(|| oneshot::channel().1);
        Entry { before, next }
    }
}

impl Redis {
    /// Runs a batch. Whatever fails, each command is answered.
    pub(crate) async fn execute(
        &self,
        now: Timestamp,
        Entry { before, next: entry }: Entry,
        commands: Vec<Command>,
    ) -> Executed {
        let mut results = Results::new(self, commands.len());
        if let Some(refusal) = self.presence.refusal() {
            results.answer_rest(&refusal);
            return results.end();
        }
        // It is dropped, not sent.
        let _ = before.await;
        if !commands.iter().all(is_simple) {
            return self.run_alone(now, Some(entry), Work::All(commands), results).await;
        }
        // Kept until all is known of what came of it.
        let turn = self.turns.read().await;
        let begun = match self.begin_beside(now, commands).await {
            Ok(begun) => begun,
            Err(commands) => {
                drop(turn);
                return self.run_alone(now, Some(entry), Work::All(commands), results).await;
            }
        };
        drop(entry);
        let again = self.end_beside(begun, &mut results).await;
        drop(turn);
        if again.is_empty() {
            return results.end();
        }
        self.run_alone(now, None, Work::Some(again), results).await
    }

    /// Runs a batch, or what is left of it, when nothing else is under way.
    async fn run_alone(
        &self,
        now: Timestamp,
        entry: Option<oneshot::Sender<()>>,
        work: Work,
        results: Results<'_>,
    ) -> Executed {
        let _turn = self.turns.write().await;
        drop(entry);
        let mut link = self.link.lock().await;
        self.known().now = now.as_micros();
        let mut batch = Batch { shared: self, link: &mut link, results };
        match (batch.settle().await, work) {
            (Ok(()), Work::All(commands)) => batch.run(commands).await,
            (Ok(()), Work::Some(groups)) => batch.wave(groups).await,
            (Err(failure), _) => {
                batch.answer_rest(&error(&Failure::Unreachable(failure.text())));
            }
        }
        batch.results.end()
    }

    /// Sends a batch behind what is under way, if that can be done now.
    async fn begin_beside(
        &self,
        now: Timestamp,
        commands: Vec<Command>,
    ) -> Result<Begun, Vec<Command>> {
        let mut link = self.link.lock().await;
        self.known().now = now.as_micros();
        if !self.may_leave(&link, &commands) {
            return Err(commands);
        }
        let sessions = commands.iter().flat_map(sessions_of);
        let alive: HashMap<_, _> = sessions.map(|session| (session, true)).collect();
        let placed = commands.into_iter().enumerate().collect();
        let mut groups = waves(placed, &HashSet::new()).pop().unwrap_or_default();
        groups.iter_mut().for_each(Group::straighten);
        let (calls, ranges) = self.encode(&groups, &alive);
        let sent = link.begin(&calls).await;
        let landing = self.landings.enter();
        Ok(Begun { groups, ranges, sent, landing })
    }

    /// Takes in what came of it. Answers what was not done.
    async fn end_beside(&self, begun: Begun, results: &mut Results<'_>) -> Vec<Group> {
        let Begun { groups, ranges, sent, landing: Entry { before, next } } = begun;
        let (answers, troubles) = sent.receive().await;
        // What is learned of a tube must not be older than what is known.
        let _ = before.await;
        if !troubles.is_empty() {
            self.link.lock().await.handle_failures(troubles);
        }
        let (mut again, mut leases) = (Vec::new(), Leases::of(&ranges));
        for ((group, answer), range) in groups.into_iter().zip(answers).zip(ranges) {
            match results.take_in(&group, answer, range, &mut leases) {
                Taken::In => {}
                Taken::Not(failure @ Failure::Refused(_)) => results.fail(&group, &failure),
                Taken::Not(_) | Taken::Absent(_) => again.push(group),
            }
        }
        self.known().return_leases(&leases);
        drop(next);
        again
    }

    /// Whether these need nothing but one call for each of their tubes, which can leave at once.
    fn may_leave(&self, link: &Link, commands: &[Command]) -> bool {
        let (mut tasks, mut bytes, mut leases) = (0, 0, 0);
        let mut tubes: BTreeSet<&TubeName> = BTreeSet::new();
        let cluster = self.reach.url.cluster;
        for command in commands {
            tasks += tasks_in(command);
            bytes += command.payload_bytes();
            leases += leases_of(command);
            tubes.extend(tube_of(command));
            if refusal(command, cluster).is_some() || !self.is_at_home(command) {
                return false;
            }
        }
        let known = self.known();
        if known.disorder.is_some()
            || self.presence.is_overdue()
            || !known.has_leases(leases)
            || !tubes.iter().all(|tube| known.straight.contains(*tube))
        {
            return false;
        }
        drop(known);
        let keys = tubes.iter().map(|tube| self.tube_key(&self.whom(tube).home));
        tasks <= BATCH_TASKS_MAX
            && bytes <= BATCH_BYTES_MAX
            && link.is_ready(keys.collect::<Vec<_>>().iter().map(String::as_str))
    }

    /// Whether the sessions that a command names are connected here, and the registry knows where they take.
    fn is_at_home(&self, command: &Command) -> bool {
        let sessions = sessions_of(command);
        if sessions.is_empty() {
            return true;
        }
        let taken = match command {
            Command::Take(take) => Some(self.whom(&take.tube).home),
            _ => None,
        };
        let known = self.known();
        sessions.iter().all(|session| {
            known.sessions.connections.contains_key(session)
                && !taken.as_ref().is_some_and(|home| known.sessions.is_new_to(*session, home))
        })
    }
}

/// Whether a command may be one of those that leave beside others.
fn is_simple(command: &Command) -> bool {
    matches!(command, Command::Put { .. } | Command::Take(_) | Command::Finish { .. })
}
