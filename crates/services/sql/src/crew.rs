//! The sessions of one scheduler, and how many of each group are at work.

use std::collections::HashMap;

use serde::Serialize;
use taskyard_core::schedule::{Worker, Zone, pause_until};
use taskyard_core::{Span, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::session::{self, Event, Order, Teller};
use crate::task::{Task, moment_text};
use crate::wire::Opening;
use taskyard_postgres::Conninfo;

/// For how long a pause that is over is remembered.
const PAUSE_KEPT: Span = Span::from_secs(3600);

/// A session.
pub struct Session {
    /// The group that it works for.
    pub key: String,
    /// Whether it is on a remote.
    pub far: bool,
    /// The process that serves it, once it is there.
    pub pid: Option<i32>,
    /// What it has done.
    pub worker: Worker,
    /// What it runs.
    pub held: Option<Held>,
    orders: mpsc::UnboundedSender<Order>,
}

/// A task that a session has.
pub struct Held {
    /// The task.
    pub task: Task,
    /// When it began.
    pub start: Option<Timestamp>,
    /// The process that the table shows for it.
    pub shown_pid: Option<i32>,
    /// When its session was told to run it.
    pub ran: Option<Instant>,
    /// Whether it is given back when it ends, because we stop.
    pub give_back: bool,
    /// How often connecting was tried.
    pub tries: u32,
    /// When its time is over, where that includes connecting.
    pub deadline: Option<Instant>,
}

impl Session {
    /// Tells it something.
    pub fn order(&self, order: Order) {
        // A session that is gone has told so.
        let _ = self.orders.send(order);
    }
}

#[derive(Default)]
struct Group {
    running: usize,
    /// When the next task with a pause may begin.
    slot: Option<Timestamp>,
}

/// All sessions.
pub struct Crew {
    /// By number.
    pub sessions: HashMap<u64, Session>,
    groups: HashMap<String, Group>,
    last: u64,
    events: mpsc::UnboundedSender<(u64, Event)>,
}

/// A group, as the statement reads it.
#[derive(Serialize)]
struct Busy {
    running: usize,
    slot: Option<String>,
}

/// A session that has nothing to do, as the statement reads it.
#[derive(Serialize)]
struct Idle<'a> {
    key: &'a str,
    pid: i32,
    max: i32,
    done: u32,
    since: String,
}

impl Crew {
    /// Nobody yet; sessions tell `events` what happens.
    pub fn new(events: mpsc::UnboundedSender<(u64, Event)>) -> Self {
        Crew { sessions: HashMap::new(), groups: HashMap::new(), last: 0, events }
    }

    /// Opens a session for a task.
    pub fn open(&mut self, key: String, held: Held, now: Timestamp, how: (Conninfo, Opening)) {
        self.last += 1;
        let (orders, received) = mpsc::unbounded_channel();
        let teller = Teller { session: self.last, events: self.events.clone() };
        tokio::spawn(session::serve(how, held.deadline, teller, received));
        let worker = Worker { max: held.task.reuse.max, done: 0, since: now };
        self.groups.entry(key.clone()).or_default().running += 1;
        let far = held.task.remote.is_some();
        let session = Session { key, far, pid: None, worker, held: Some(held), orders };
        self.sessions.insert(self.last, session);
    }

    /// Gives a task to a session that has nothing to do.
    pub fn give(&mut self, number: u64, held: Held) {
        if let Some(session) = self.sessions.get_mut(&number) {
            self.groups.entry(session.key.clone()).or_default().running += 1;
            session.held = Some(held);
        }
    }

    /// Takes the task of a session that has ended.
    pub fn take(&mut self, number: u64) -> Option<Held> {
        let session = self.sessions.get_mut(&number)?;
        let held = session.held.take()?;
        session.worker.done += 1;
        if let Some(group) = self.groups.get_mut(&session.key) {
            group.running -= 1;
            if group.running == 0 && group.slot.is_none() {
                self.groups.remove(&session.key);
            }
        }
        Some(held)
    }

    /// The session that has nothing to do, by group and process.
    pub fn idle(&self, key: &str, pid: i32) -> Option<u64> {
        let fits = |session: &Session| {
            session.held.is_none() && session.pid == Some(pid) && session.key == key
        };
        self.sessions.iter().find(|(_, session)| fits(session)).map(|(number, _)| *number)
    }

    /// Closes one.
    pub fn close(&mut self, number: u64) {
        if let Some(session) = self.sessions.remove(&number) {
            session.order(Order::Close);
        }
    }

    /// Closes all that have nothing to do.
    pub fn close_idle(&mut self) {
        self.sessions.retain(|_, session| {
            let busy = session.held.is_some();
            if !busy {
                session.order(Order::Close);
            }
            busy
        });
    }

    /// How many are at work.
    pub fn busy(&self) -> usize {
        self.sessions.values().filter(|session| session.held.is_some()).count()
    }

    /// How many are in the scheduler's own database.
    pub fn local(&self) -> Local {
        let mut local = Local::default();
        for session in self.sessions.values().filter(|session| !session.far) {
            local.open += 1;
            local.busy += usize::from(session.held.is_some());
            local.unopened += usize::from(session.pid.is_none());
        }
        local
    }

    /// How long the inputs of the tasks under way are together.
    pub fn input_bytes(&self) -> usize {
        let held = self.sessions.values().filter_map(|session| session.held.as_ref());
        held.map(|held| held.task.input.len()).sum()
    }

    /// Whether a task has begun since.
    pub fn has_begun_since(&self, since: Instant) -> bool {
        let held = self.sessions.values().filter_map(|session| session.held.as_ref());
        held.filter_map(|held| held.ran).any(|ran| ran > since)
    }

    /// The tasks under way.
    pub fn ids(&self) -> impl Iterator<Item = i64> {
        self.sessions.values().filter_map(|session| Some(session.held.as_ref()?.task.id))
    }

    /// A task with a pause has ended: the next one of its group waits.
    pub fn pause(&mut self, key: &str, ended: &Ended, zone: &dyn Zone) {
        let Ended { plan, stop, max, drift } = *ended;
        if max < 0 {
            let slot = pause_until(plan, stop, max.unsigned_abs(), drift, zone);
            self.groups.entry(key.to_owned()).or_default().slot = Some(slot);
        }
    }

    /// When the next pause ends.
    pub fn next_slot(&self, now: Timestamp) -> Option<Timestamp> {
        self.groups.values().filter_map(|group| group.slot).filter(|slot| *slot > now).min()
    }

    /// The groups at work, for the statement; forgets pauses that are long over.
    pub fn busy_json(&mut self, now: Timestamp) -> String {
        for group in self.groups.values_mut() {
            group.slot = group.slot.filter(|slot| *slot + PAUSE_KEPT > now);
        }
        self.groups.retain(|_, group| group.running > 0 || group.slot.is_some());
        let groups = self.groups.iter().map(|(key, group)| {
            (key, Busy { running: group.running, slot: group.slot.map(moment_text) })
        });
        json(groups.collect::<HashMap<_, _>>())
    }

    /// The sessions that have nothing to do, for the statement.
    pub fn idle_json(&self) -> String {
        let idle = self.sessions.values().filter(|session| session.held.is_none());
        let idle = idle.filter_map(|session| {
            Some(Idle {
                key: &session.key,
                pid: session.pid?,
                max: session.worker.max,
                done: session.worker.done,
                since: moment_text(session.worker.since),
            })
        });
        json(idle.collect::<Vec<_>>())
    }
}

/// How many sessions are in the scheduler's own database.
#[derive(Clone, Copy, Debug, Default)]
pub struct Local {
    /// All of them.
    pub open: usize,
    /// Those with a task.
    pub busy: usize,
    /// Those that do not have a connection yet.
    pub unopened: usize,
}

/// A task with a pause that has ended.
pub struct Ended {
    /// When it was to begin.
    pub plan: Timestamp,
    /// When it ended.
    pub stop: Timestamp,
    /// Its `max`.
    pub max: i32,
    /// Whether the pause counts from the end.
    pub drift: bool,
}

/// A value as JSON.
pub fn json(value: impl Serialize) -> String {
    serde_json::to_string(&value).expect("plain structs are JSON")
}

/// Numbers as an array of PostgreSQL.
pub fn array<T: ToString>(numbers: impl IntoIterator<Item = T>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    format!("{{{}}}", numbers.join(","))
}
