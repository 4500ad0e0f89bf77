//! Keeps the sessions of one scheduler, their tasks, and the number of running tasks of each group.

use std::collections::HashMap;

use serde::Serialize;
use taskyard_core::schedule::{Worker, Zone, pause_until};
use taskyard_core::{Span, Timestamp};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::connection::SessionOptions;
use crate::session::{self, EventSender, SessionCommand, SessionEvent};
use crate::task::{Task, timestamp_text};
use taskyard_postgres::Conninfo;

/// How long a pause that is over is remembered.
const PAUSE_KEPT: Span = Span::from_secs(3600);

/// A session and the task that it runs.
pub struct Session {
    /// The group whose tasks it runs.
    pub key: String,
    /// Whether it is on a remote.
    pub remote: bool,
    /// The server process of the session, once it is connected.
    pub pid: Option<i32>,
    /// How many tasks it has run, and since when it exists.
    pub worker: Worker,
    /// The task that it runs.
    pub assigned: Option<AssignedTask>,
    commands: mpsc::UnboundedSender<SessionCommand>,
}

/// A task that is assigned to a session.
pub struct AssignedTask {
    /// The task.
    pub task: Task,
    /// When it started.
    pub start: Option<Timestamp>,
    /// The process that the table shows for it.
    pub shown_pid: Option<i32>,
    /// When the session received the command to run it.
    pub sent_at: Option<Instant>,
    /// Whether it is returned to the table when it ends, because the scheduler stops.
    pub return_on_end: bool,
    /// How often connecting was tried.
    pub connect_attempts: u32,
    /// When its timeout expires, where that includes connecting.
    pub deadline: Option<Instant>,
}

impl AssignedTask {
    /// A task that was claimed and has not been sent to its session.
    pub fn new(task: Task, start: Option<Timestamp>, deadline: Option<Instant>) -> Self {
        AssignedTask {
            shown_pid: task.pid,
            task,
            start,
            sent_at: None,
            return_on_end: false,
            connect_attempts: 0,
            deadline,
        }
    }
}

impl Session {
    /// Sends a command to the session.
    pub fn send(&self, command: SessionCommand) {
        // A session that has ended has already reported it.
        let _ = self.commands.send(command);
    }
}

#[derive(Default)]
struct GroupState {
    running: usize,
    /// When the next task with a pause may start.
    next_slot: Option<Timestamp>,
}

/// All sessions of one scheduler.
pub struct SessionPool {
    /// By session number.
    pub sessions: HashMap<u64, Session>,
    groups: HashMap<String, GroupState>,
    last_number: u64,
    events: mpsc::UnboundedSender<(u64, SessionEvent)>,
}

/// A group in the parameter `$1` of the claim.
#[derive(Serialize)]
struct BusyGroup {
    running: usize,
    slot: Option<String>,
}

/// An idle session in the parameter `$2` of the claim.
#[derive(Serialize)]
struct IdleSession<'a> {
    key: &'a str,
    pid: i32,
    max: i32,
    done: u32,
    since: String,
}

impl SessionPool {
    /// An empty pool; sessions report to `events`.
    pub fn new(events: mpsc::UnboundedSender<(u64, SessionEvent)>) -> Self {
        SessionPool { sessions: HashMap::new(), groups: HashMap::new(), last_number: 0, events }
    }

    /// Opens a session for a task.
    pub fn open(
        &mut self,
        key: String,
        assigned: AssignedTask,
        now: Timestamp,
        target: (Conninfo, SessionOptions),
    ) {
        self.last_number += 1;
        let (commands, received) = mpsc::unbounded_channel();
        let sender = EventSender { session: self.last_number, events: self.events.clone() };
        tokio::spawn(session::serve(target, assigned.deadline, sender, received));
        let worker = Worker { max: assigned.task.reuse.max, done: 0, since: now };
        self.groups.entry(key.clone()).or_default().running += 1;
        let remote = assigned.task.remote.is_some();
        let session =
            Session { key, remote, pid: None, worker, assigned: Some(assigned), commands };
        self.sessions.insert(self.last_number, session);
    }

    /// Assigns a task to an idle session.
    pub fn assign(&mut self, number: u64, assigned: AssignedTask) {
        if let Some(session) = self.sessions.get_mut(&number) {
            self.groups.entry(session.key.clone()).or_default().running += 1;
            session.assigned = Some(assigned);
        }
    }

    /// Removes the task of a session, which has ended.
    pub fn take(&mut self, number: u64) -> Option<AssignedTask> {
        let session = self.sessions.get_mut(&number)?;
        let assigned = session.assigned.take()?;
        session.worker.done += 1;
        if let Some(group) = self.groups.get_mut(&session.key) {
            group.running -= 1;
            if group.running == 0 && group.next_slot.is_none() {
                self.groups.remove(&session.key);
            }
        }
        Some(assigned)
    }

    /// The idle session of a group with this process.
    pub fn find_idle(&self, key: &str, pid: i32) -> Option<u64> {
        let fits = |session: &Session| {
            session.assigned.is_none() && session.pid == Some(pid) && session.key == key
        };
        self.sessions.iter().find(|(_, session)| fits(session)).map(|(number, _)| *number)
    }

    /// Closes one session.
    pub fn close(&mut self, number: u64) {
        if let Some(session) = self.sessions.remove(&number) {
            session.send(SessionCommand::Close);
        }
    }

    /// Closes all idle sessions.
    pub fn close_idle(&mut self) {
        self.sessions.retain(|_, session| {
            let busy = session.assigned.is_some();
            if !busy {
                session.send(SessionCommand::Close);
            }
            busy
        });
    }

    /// The number of sessions that have a task.
    pub fn busy(&self) -> usize {
        self.sessions.values().filter(|session| session.assigned.is_some()).count()
    }

    /// Counts the sessions in the scheduler's own database.
    pub fn local(&self) -> LocalSessions {
        let mut local = LocalSessions::default();
        for session in self.sessions.values().filter(|session| !session.remote) {
            local.open += 1;
            local.busy += usize::from(session.assigned.is_some());
            local.connecting += usize::from(session.pid.is_none());
        }
        local
    }

    /// The sum of the lengths of the inputs of all assigned tasks.
    pub fn input_bytes(&self) -> usize {
        self.assigned().map(|assigned| assigned.task.input.len()).sum()
    }

    /// Whether a task was sent to its session after `since`.
    pub fn has_started_since(&self, since: Instant) -> bool {
        self.assigned().filter_map(|assigned| assigned.sent_at).any(|sent_at| sent_at > since)
    }

    /// The assigned tasks.
    pub fn assigned(&self) -> impl Iterator<Item = &AssignedTask> {
        self.sessions.values().filter_map(|session| session.assigned.as_ref())
    }

    /// The ids of the assigned tasks.
    pub fn ids(&self) -> impl Iterator<Item = i64> {
        self.assigned().map(|assigned| assigned.task.id)
    }

    /// Delays the next task of a group after a task with a pause has ended.
    pub fn pause(&mut self, key: &str, ended: &EndedTask, zone: &dyn Zone) {
        let EndedTask { plan, stop, max, drift } = *ended;
        if max < 0 {
            let slot = pause_until(plan, stop, max.unsigned_abs(), drift, zone);
            self.groups.entry(key.to_owned()).or_default().next_slot = Some(slot);
        }
    }

    /// When the next pause of a group ends.
    pub fn next_slot(&self, now: Timestamp) -> Option<Timestamp> {
        self.groups.values().filter_map(|group| group.next_slot).filter(|slot| *slot > now).min()
    }

    /// The busy and pausing groups as the claim reads them. Forgets pauses that ended long ago.
    pub fn busy_json(&mut self, now: Timestamp) -> String {
        for group in self.groups.values_mut() {
            group.next_slot = group.next_slot.filter(|slot| *slot + PAUSE_KEPT > now);
        }
        self.groups.retain(|_, group| group.running > 0 || group.next_slot.is_some());
        let groups = self.groups.iter().map(|(key, group)| {
            let slot = group.next_slot.map(timestamp_text);
            (key, BusyGroup { running: group.running, slot })
        });
        json(groups.collect::<HashMap<_, _>>())
    }

    /// The idle sessions as the claim reads them.
    pub fn idle_json(&self) -> String {
        let idle = self.sessions.values().filter(|session| session.assigned.is_none());
        let idle = idle.filter_map(|session| {
            Some(IdleSession {
                key: &session.key,
                pid: session.pid?,
                max: session.worker.max,
                done: session.worker.done,
                since: timestamp_text(session.worker.since),
            })
        });
        json(idle.collect::<Vec<_>>())
    }
}

/// The sessions in the scheduler's own database.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalSessions {
    /// All of them.
    pub open: usize,
    /// Those with a task.
    pub busy: usize,
    /// Those that are not connected yet.
    pub connecting: usize,
}

/// The times of a task that has ended, from which the pause of its group follows.
pub struct EndedTask {
    /// When it was planned to start.
    pub plan: Timestamp,
    /// When it ended.
    pub stop: Timestamp,
    /// Its `max`.
    pub max: i32,
    /// Whether the pause counts from the end.
    pub drift: bool,
}

/// Serializes a value as JSON.
pub fn json(value: impl Serialize) -> String {
    serde_json::to_string(&value).expect("plain structs are JSON")
}

/// Writes values as an array of PostgreSQL.
pub fn array<T: ToString>(values: impl IntoIterator<Item = T>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    format!("{{{}}}", values.join(","))
}
