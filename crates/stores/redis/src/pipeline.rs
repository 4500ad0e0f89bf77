//! Pipelines batches: sends a batch while earlier ones are in flight, or runs it alone.
//!
//! Puts, takes and finishes of plain tubes need only one call each. Such a batch is sent on the same connection behind the one before,
//! so that Redis does not wait until that one is received and answered here. All other batches wait until nothing is in flight: they
//! may need several rounds, and lost replies must be known before they can be corrected. The same holds for commands that Redis has
//! refused, which were not done and are sent again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use taskyard_core::limits::{BATCH_BYTES_MAX, BATCH_TASKS_MAX};
use taskyard_core::{Command, Timestamp, TubeName};
use taskyard_redis::{Failure, Link, SentCalls};
use tokio::sync::oneshot;

use super::Redis;
use super::checks::refusal;
use super::execute::{Batch, TubeGroup, leases_of, rounds, sessions_of, tasks_in, tube_of};
use super::failure::error;
use super::results::{CallResult, Leases, Results};
use taskyard_store::Executed;

/// The work that is left.
enum Work {
    All(Vec<Command>),
    Some(Vec<TubeGroup>),
}

/// Calls that were sent, and the lease numbers that each may use.
struct InFlight {
    groups: Vec<TubeGroup>,
    ranges: Vec<(u64, u64)>,
    sent: SentCalls,
    /// Orders the replies: nodes do not answer in the order of the calls.
    ticket: Ticket,
}

/// The position of a batch in a sequence: it waits for the one before, and the next one waits for it.
pub(super) struct Ticket {
    before: oneshot::Receiver<()>,
    /// The next one waits until this is dropped.
    next: oneshot::Sender<()>,
}

/// A sequence of batches; it holds the end of the latest one.
#[derive(Default)]
pub(super) struct Sequence(Mutex<Option<oneshot::Receiver<()>>>);

impl Sequence {
    /// A position behind all earlier ones. Tasks of the runtime do not start in the order of arrival, so a batch enters first.
    pub fn enter(&self) -> Ticket {
        let (next, behind) = oneshot::channel();
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = last.replace(behind).unwrap_or_else(|| oneshot::channel().1);
        Ticket { before, next }
    }
}

impl Redis {
    /// Runs a batch. Every command is answered, whatever fails.
    pub(crate) async fn execute(
        &self,
        now: Timestamp,
        Ticket { before, next: entry }: Ticket,
        commands: Vec<Command>,
    ) -> Executed {
        let mut results = Results::new(self, commands.len());
        if let Some(refusal) = self.presence.refusal() {
            results.answer_rest(&refusal);
            return results.end();
        }
        // The sender is dropped without a message.
        let _ = before.await;
        if !commands.iter().all(is_simple) {
            return self.run_exclusive(now, Some(entry), Work::All(commands), results).await;
        }
        // Held until the results are recorded.
        let shared_access = self.exclusion.read().await;
        let in_flight = match self.dispatch(now, commands).await {
            Ok(in_flight) => in_flight,
            Err(commands) => {
                drop(shared_access);
                return self.run_exclusive(now, Some(entry), Work::All(commands), results).await;
            }
        };
        drop(entry);
        let again = self.complete(in_flight, &mut results).await;
        drop(shared_access);
        if again.is_empty() {
            return results.end();
        }
        self.run_exclusive(now, None, Work::Some(again), results).await
    }

    /// Runs a batch, or the rest of it, when nothing else is in flight.
    async fn run_exclusive(
        &self,
        now: Timestamp,
        entry: Option<oneshot::Sender<()>>,
        work: Work,
        results: Results<'_>,
    ) -> Executed {
        let _exclusive_access = self.exclusion.write().await;
        drop(entry);
        let mut link = self.link.lock().await;
        self.cache().now = now.as_micros();
        let mut batch = Batch { shared: self, link: &mut link, results };
        match (batch.resync().await, work) {
            (Ok(()), Work::All(commands)) => batch.run(commands).await,
            (Ok(()), Work::Some(groups)) => batch.run_round(groups).await,
            (Err(failure), _) => {
                batch.answer_rest(&error(&Failure::Unreachable(failure.text())));
            }
        }
        batch.results.end()
    }

    /// Sends a batch behind those in flight, if that is possible now.
    async fn dispatch(
        &self,
        now: Timestamp,
        commands: Vec<Command>,
    ) -> Result<InFlight, Vec<Command>> {
        let mut link = self.link.lock().await;
        self.cache().now = now.as_micros();
        if !self.can_dispatch(&link, &commands) {
            return Err(commands);
        }
        let sessions = commands.iter().flat_map(sessions_of);
        let alive: HashMap<_, _> = sessions.map(|session| (session, true)).collect();
        let placed = commands.into_iter().enumerate().collect();
        let mut groups = rounds(placed, &HashSet::new()).pop().unwrap_or_default();
        groups.iter_mut().for_each(TubeGroup::merge_commands);
        let (calls, ranges) = self.encode(&groups, &alive);
        let sent = link.begin(&calls).await;
        let ticket = self.reply_order.enter();
        Ok(InFlight { groups, ranges, sent, ticket })
    }

    /// Receives and records the results. Answers the groups that were not done.
    async fn complete(&self, in_flight: InFlight, results: &mut Results<'_>) -> Vec<TubeGroup> {
        let InFlight { groups, ranges, sent, ticket: Ticket { before, next } } = in_flight;
        let (answers, troubles) = sent.receive().await;
        // A recorded state of a tube must not be older than the known one.
        let _ = before.await;
        if !troubles.is_empty() {
            self.link.lock().await.handle_failures(troubles);
        }
        let (mut again, mut leases) = (Vec::new(), Leases::of(&ranges));
        for ((group, answer), range) in groups.into_iter().zip(answers).zip(ranges) {
            match results.apply_answer(&group, answer, range, &mut leases) {
                CallResult::SemaphoreAnswer => {}
                CallResult::Failed(failure @ Failure::Refused(_)) => results.fail(&group, &failure),
                CallResult::Failed(_) | CallResult::Absent(_) => again.push(group),
            }
        }
        self.cache().return_leases(&leases);
        drop(next);
        again
    }

    /// Whether these commands need only one call for each tube, which can be sent at once.
    fn can_dispatch(&self, link: &Link, commands: &[Command]) -> bool {
        let (mut tasks, mut bytes, mut leases) = (0, 0, 0);
        let mut tubes: BTreeSet<&TubeName> = BTreeSet::new();
        let cluster = self.connector.url.cluster;
        for command in commands {
            tasks += tasks_in(command);
            bytes += command.payload_bytes();
            leases += leases_of(command);
            tubes.extend(tube_of(command));
            if refusal(command, cluster).is_some() || !self.has_sessions_here(command) {
                return false;
            }
        }
        let cache = self.cache();
        if cache.resync.is_some()
            || self.presence.last.is_overdue()
            || !cache.has_leases(leases)
            || !tubes.iter().all(|tube| cache.mergeable.contains(*tube))
        {
            return false;
        }
        drop(cache);
        let keys = tubes.iter().map(|tube| self.tube_key(&self.address(tube).tag));
        tasks <= BATCH_TASKS_MAX
            && bytes <= BATCH_BYTES_MAX
            && link.is_ready(keys.collect::<Vec<_>>().iter().map(String::as_str))
    }

    /// Whether the sessions of a command are connected here, and the registry knows the tubes that they take from.
    fn has_sessions_here(&self, command: &Command) -> bool {
        let sessions = sessions_of(command);
        if sessions.is_empty() {
            return true;
        }
        let taken = match command {
            Command::Take(take) => Some(self.address(&take.tube).tag),
            _ => None,
        };
        let cache = self.cache();
        sessions.iter().all(|session| {
            cache.sessions.connections.contains_key(session)
                && !taken.as_ref().is_some_and(|tag| cache.sessions.is_new_to(*session, tag))
        })
    }
}

/// Whether a command can be pipelined.
fn is_simple(command: &Command) -> bool {
    matches!(command, Command::Put { .. } | Command::Take(_) | Command::Finish { .. })
}
