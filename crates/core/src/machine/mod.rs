//! Applies commands to tubes, tasks, sessions and semaphores.
//!
//! [`Machine::apply`] is the entry point. Each verb has its file; `tubes` keeps the registry,
//! `batch` lets a store write a batch or undo it.

#[cfg(test)]
mod audit;
mod batch;
mod finish;
mod gate;
mod keys;
mod list;
mod positions;
mod put;
mod registry;
mod schedules;
mod sessions;
mod take;
#[cfg(test)]
mod tests;
mod tick;
mod transfer;
pub(crate) mod tubes;
mod view;
mod wall_clock;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::command::{Command, Reply};
use crate::effects::Effects;
use crate::error::{Error, Result};
use crate::index::CrossTubeIndex;
use crate::journal::{Entry, Journal};
use crate::names::check_names;
use crate::schedules::Schedules;
use crate::semaphore::Semaphores;
use crate::session::{Session, SessionId};
use crate::task::TaskId;
use crate::time::{Span, Timestamp};
use crate::tube::TubeName;

pub use put::{check_tasks, no_semaphore, refuse_priorities, refuse_subqueues};
use registry::Registry;
use tubes::Tube;

/// The rules of the queue: all tubes, tasks and sessions of one store, in memory.
///
/// The caller supplies the time, which never runs backwards: a `now` before the latest one counts
/// as the latest one.
#[derive(Debug, Default)]
pub struct Machine {
    now: Option<Timestamp>,
    /// How far the wall clock is ahead of that, in microseconds.
    wall_ahead: i64,
    /// The put times of the latest and the earliest restored task.
    latest_restored: Option<Timestamp>,
    earliest_restored: Option<Timestamp>,
    tubes: Registry,
    sessions: HashMap<SessionId, Session>,
    /// How long a session without connections keeps its tasks.
    session_ttr: Span,
    /// Sessions without connections, by their end.
    session_ends: BTreeSet<(Timestamp, SessionId)>,
    /// When each tube needs its next tick.
    wakeups: BTreeSet<(Timestamp, u32)>,
    semaphores: Semaphores,
    schedules: Schedules,
    /// Tasks by their semaphore that must be repaired with the next command.
    to_repair: Vec<(u32, TaskId)>,
    /// Tubes whose semaphores are lost: they grant nothing until they are configured again.
    orphans: Vec<u32>,
    next_lease: u64,
    shared: CrossTubeIndex,
    journal: Journal,
    /// Tubes in which tasks became takeable, or capacity free, since the effects were last taken.
    ready: Vec<u32>,
    room: Vec<u32>,
    /// Keys that were freed before their time, since the effects were last taken.
    keys_freed_early: u64,
    /// The number of deliveries that failed by time or with their session since then, by tube.
    failed: BTreeMap<u32, u64>,
}

impl Machine {
    /// Applies one command at the moment `now`: as a whole or, with an error, not at all.
    pub fn apply(&mut self, now: Timestamp, command: Command) -> Result<Reply> {
        let now = self.now.map_or(now, |latest| latest.max(now));
        self.now = Some(now);
        if self.needs_repair() {
            self.repair_gates(now);
        }
        check_names(&command)?;
        let mut reply = self.run(now, command);
        // Changed in place: every command passes here, and a reply is large.
        if self.wall_ahead != 0
            && let Ok(reply) = &mut reply
        {
            self.show_wall_time(reply);
        }
        reply
    }

    /// Applies a command after the checks. Called once; a call of its own would copy the command.
    #[inline(always)]
    fn run(&mut self, now: Timestamp, command: Command) -> Result<Reply> {
        match command {
            Command::CreateTube { tube, options, if_not_exists } => {
                self.create_tube(tube, options, if_not_exists)
            }
            Command::AlterTube { tube, change } => self.alter_tube(now, &tube, &change),
            Command::NameTube { tube, name, queue_num } => self.name_tube(&tube, name, queue_num),
            Command::DropTube { tube } => self.drop_tube(now, &tube),
            Command::Tubes { tube } => self.show_tubes(tube.as_ref()),
            Command::Put { tube, tasks, .. } => self.put(now, &tube, tasks),
            Command::Take(take) => self.take(now, &take),
            Command::Finish { tube, items, show } => self.finish(now, &tube, &items, show),
            Command::Kick { tube, count } => self.kick(now, &tube, count),
            Command::KickTasks { tube, ids, reset_attempts } => {
                self.kick_tasks(now, &tube, &ids, reset_attempts)
            }
            Command::Delete { tube, ids, show } => self.delete(now, &tube, &ids, show),
            Command::Peek { tube, ids } => self.peek(now, &tube, &ids),
            Command::Deliveries { tube, count } => self.deliveries(now, &tube, count),
            Command::Positions { tube, ids } => self.positions(now, &tube, &ids),
            Command::List(list) => self.list(now, &list),
            Command::Search(search) => self.search(now, &search),
            Command::Truncate { tube } => self.truncate(now, &tube),
            Command::ReleaseAll { tube } => self.release_all(now, &tube),
            Command::JoinSession { session, create } => self.join_session(now, session, create),
            Command::LeaveSession { session } => self.leave_session(now, session),
            Command::ConfigureSessions { ttr } => self.configure_sessions(ttr),
            Command::Semaphore(command) => {
                self.check_gates(&command)?;
                let mut reply = self.with_semaphores(|all| all.apply(now, command))?;
                self.apply_grants();
                self.name_tubes(&mut reply);
                Ok(Reply::Semaphore(reply))
            }
            Command::Schedule(command) => self.run_schedule(now, *command),
            Command::Tick { limit, seed } => Ok(Reply::Ticked(self.tick(now, limit, seed))),
        }
    }

    /// The effects since the last call.
    pub fn take_effects(&mut self) -> Effects {
        let events = self.semaphores.take_new_events();
        let (next_wakeup, next_schedule) = (self.next_wakeup(), self.next_schedule());
        let keys_freed_early = std::mem::take(&mut self.keys_freed_early);
        let mut effects =
            Effects { events, next_wakeup, next_schedule, keys_freed_early, ..Effects::default() };
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        for number in std::mem::take(&mut self.ready) {
            let Some(tube) = self.tubes.get_mut(number) else { continue };
            tube.signals.ready = false;
            let takeable = tube.takeable(now);
            if takeable > 0 {
                effects.ready.push((tube.name.clone(), takeable));
            }
        }
        for number in std::mem::take(&mut self.room) {
            let Some(tube) = self.tubes.get_mut(number) else { continue };
            tube.signals.room = false;
            if tube.room() > 0 {
                effects.room.push((tube.name.clone(), tube.room()));
            }
        }
        for (number, count) in std::mem::take(&mut self.failed) {
            let Some(tube) = self.tubes.get(number) else { continue };
            effects.failed.push((tube.name.clone(), count));
        }
        effects
    }

    /// Notes that deliveries of a tube failed without a command for them.
    fn note_failed(&mut self, number: u32, count: usize) {
        if count > 0 {
            *self.failed.entry(number).or_default() += count as u64;
        }
    }

    /// When the next change is due.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        let tube = self.wakeups.first().map(|wakeup| wakeup.0);
        let session = self.session_ends.first().map(|end| end.0);
        let detached = self.needs_repair().then_some(Timestamp::EPOCH);
        tube.into_iter().chain(session).chain(self.semaphores.next_wakeup()).chain(detached).min()
    }

    fn number(&self, tube: &TubeName) -> Result<u32> {
        self.tubes.number(tube).ok_or_else(|| Error::TubeNotFound(tube.clone()))
    }

    /// The tube of a number that was just looked up.
    fn tube(&mut self, number: u32) -> &mut Tube {
        self.tubes.get_mut(number).expect("every number in the registry has its tube")
    }

    /// Records a task before its first change in a batch.
    fn note(&mut self, number: u32, id: TaskId) {
        if !self.journal.on {
            return;
        }
        self.note_stats(number);
        let batch = self.journal.batch;
        let tube = self.tube(number);
        if tube.tasks.note(id, batch) {
            let before = tube.tasks.get(id).map(|slot| tube.tasks.detached(slot));
            self.journal.entries.push(Entry::Task { tube: number, id, before });
        }
    }

    /// Records the statistics of a tube before their first change in a batch.
    fn note_stats(&mut self, number: u32) {
        if !self.journal.on {
            return;
        }
        let batch = self.journal.batch;
        let tube = self.tube(number);
        if std::mem::replace(&mut tube.noted, batch) != batch {
            let before = tube.since_open;
            self.journal.entries.push(Entry::Stats { tube: number, before });
        }
    }

    /// After a tube changed: updates its wake-up and its signals for waiting commands.
    fn update_signals(&mut self, number: u32) {
        let now = self.now.unwrap_or(Timestamp::EPOCH);
        let Some(tube) = self.tubes.get_mut(number) else { return };
        let keys = tube.tasks.keys().due();
        let done = tube.tasks.done().due(&tube.options);
        let wakeup = tube.next_change(now).into_iter().chain(done).chain(keys).min();
        if wakeup != tube.wakeup {
            if let Some(old) = tube.wakeup {
                self.wakeups.remove(&(old, number));
            }
            if let Some(new) = wakeup {
                self.wakeups.insert((new, number));
            }
            tube.wakeup = wakeup;
        }
        if tube.takeable(now) > 0 && !std::mem::replace(&mut tube.signals.ready, true) {
            self.ready.push(number);
        }
        if tube.options.capacity.is_some()
            && tube.room() > 0
            && !std::mem::replace(&mut tube.signals.room, true)
        {
            self.room.push(number);
        }
    }

    /// Signals capacity in a tube that has no limit any more, which `update_signals` does not.
    fn signal_room(&mut self, number: u32) {
        if !std::mem::replace(&mut self.tube(number).signals.room, true) {
            self.room.push(number);
        }
    }
}
