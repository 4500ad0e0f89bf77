//! Simulates a database that servers share: the core's machine, presence of servers, notifications, and faults of both.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::{
    Command, Effects, Error, Finish, FinishItem, Holder, Machine, NewEvents, Reply, Result,
    SessionId, Span, Timestamp, TubeName,
};
use taskyard_store::remote::HEARTBEAT_TIMEOUT;
use taskyard_store::{Executed, RemoteChange, Watcher};
use tokio::time::Instant;

use crate::effects::{FaultName, count_effect, count_effects};
use crate::faults::FaultKind;
use crate::history::SharedHistory;
use crate::plan::{Plan, stream};
use crate::planted::PlantedFault;

/// Identifies a connection of a server: a server that starts again has a new one.
pub type ConnectionId = u64;

/// Replies are lost this often, of 100, while they are lost.
const LOST_PERCENT: u8 = 40;

/// A database and the servers that use it.
pub struct Database {
    machine: Machine,
    started: Instant,
    start: Timestamp,
    rng: Rng,
    latency_max: Duration,
    planted: Option<PlantedFault>,
    history: SharedHistory,
    /// How often each session was joined.
    joins: BTreeMap<SessionId, u32>,
    /// Whether the machine can undo its latest batch.
    is_open_batch: bool,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    /// How many crashes are not over yet.
    down: u32,
    slow: u32,
    /// The number of crashes so far: what was under way before one gets no reply.
    pub crashes: u64,
    lost_replies: BTreeMap<usize, u32>,
    refused: BTreeMap<usize, u32>,
    lost_notifications: BTreeMap<usize, u32>,
}

/// What the database knows of a server process.
struct Connection {
    server: usize,
    watcher: Option<Watcher>,
    last_heartbeat: Timestamp,
    is_declared_dead: bool,
    /// Whether the server has stopped and closed it.
    is_closed: bool,
    /// The connections of its sessions.
    sessions: BTreeMap<SessionId, u32>,
    /// Reverts deliveries and sessions whose replies were lost.
    undo: Vec<Command>,
    last_arrival: Instant,
}

/// The way of a batch to the database and back.
pub struct Transit {
    /// When it arrives.
    pub arrival: Instant,
    /// How long the reply takes.
    pub back: Duration,
    /// Whether the reply is lost.
    pub is_lost: bool,
    /// The number of crashes when it was sent.
    pub crashes: u64,
}

impl Database {
    /// An empty database.
    pub fn new(plan: &Plan, history: &SharedHistory, planted: Option<PlantedFault>) -> Self {
        Database {
            machine: Machine::default(),
            started: Instant::now(),
            start: plan.start,
            rng: stream(plan.seed, u64::MAX, 1),
            latency_max: match plan.scenario {
                // The network between clients and servers has it.
                scenario if scenario.has_network() => Duration::ZERO,
                _ => plan.latency_max,
            },
            planted,
            history: history.clone(),
            joins: BTreeMap::new(),
            is_open_batch: false,
            connections: BTreeMap::new(),
            next_connection: 0,
            down: 0,
            slow: 0,
            crashes: 0,
            lost_replies: BTreeMap::new(),
            refused: BTreeMap::new(),
            lost_notifications: BTreeMap::new(),
        }
    }

    fn now(&self) -> Timestamp {
        self.start.moved(self.started.elapsed().as_micros() as i64)
    }

    /// Registers a process of a server.
    pub fn connect(&mut self, server: usize) -> ConnectionId {
        let id = self.next_connection;
        self.next_connection += 1;
        let connection = Connection {
            server,
            watcher: None,
            last_heartbeat: self.now(),
            is_declared_dead: false,
            is_closed: false,
            sessions: BTreeMap::new(),
            undo: Vec::new(),
            last_arrival: Instant::now(),
        };
        self.connections.insert(id, connection);
        id
    }

    /// Sets the receiver of changes by other servers.
    pub fn watch(&mut self, id: ConnectionId, watcher: Watcher) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.watcher = Some(watcher);
        }
    }

    /// Draws the way of a batch; the error is that the database cannot be reached.
    pub fn send(&mut self, id: ConnectionId) -> Result<Transit> {
        let server = self.connections[&id].server;
        let is_refused = is_on(&self.refused, server);
        if self.down > 0 || is_refused {
            count_effect(if is_refused {
                FaultName::RefuseServer
            } else {
                FaultName::CrashDatabase
            });
            return Err(Error::StoreUnavailable("connection refused".into()));
        }
        let mut most = self.latency_max.as_millis() as u64;
        if self.slow > 0 && most > 0 {
            count_effect(FaultName::SlowDatabase);
            most *= 20;
        }
        let mut latency = || Duration::from_millis(self.rng.u64(0..=most));
        let (there, back) = (latency(), latency());
        let is_lost = is_on(&self.lost_replies, server) && self.rng.u8(0..100) < LOST_PERCENT;
        let connection = self.connections.get_mut(&id).expect("it was found above");
        let mut arrival = Instant::now() + there;
        if most > 0 {
            // Batches of a connection never overtake each other.
            arrival = arrival.max(connection.last_arrival + Duration::from_millis(1));
            connection.last_arrival = arrival;
        }
        Ok(Transit { arrival, back, is_lost, crashes: self.crashes })
    }

    /// Executes a batch that arrives.
    pub fn execute(&mut self, id: ConnectionId, commands: Vec<Command>) -> Executed {
        if self.planted == Some(PlantedFault::CrashLosesBatch) {
            if std::mem::replace(&mut self.is_open_batch, true) {
                self.machine.keep();
            }
            self.machine.begin();
        }
        self.undo_unacknowledged(id);
        let now = self.now();
        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            let session = match &command {
                Command::JoinSession { session, .. } => Some((*session, true)),
                Command::LeaveSession { session } => Some((*session, false)),
                _ => None,
            };
            let reply = self.machine.apply(now, command);
            if let (Some((session, joins)), Ok(_)) = (session, &reply) {
                self.note_session(id, session, joins);
            }
            replies.push(reply);
        }
        let effects = self.machine.take_effects();
        self.notify_others(Some(id), &effects);
        Executed { replies, effects, unloaded: Vec::new() }
    }

    fn note_session(&mut self, id: ConnectionId, session: SessionId, joins: bool) {
        self.count_session(session, joins);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let count = connection.sessions.entry(session).or_default();
        *count = if joins { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            connection.sessions.remove(&session);
        }
    }

    /// Records the end of a session when its last connection has left it.
    fn count_session(&mut self, session: SessionId, joins: bool) {
        let count = self.joins.entry(session).or_default();
        *count = if joins { *count + 1 } else { count.saturating_sub(1) };
        if *count == 0 {
            self.joins.remove(&session);
            self.history.borrow_mut().end_session(session);
        }
    }

    /// Notifies other servers of what a batch made available.
    fn notify_others(&mut self, by: Option<ConnectionId>, effects: &Effects) {
        let tubes = effects.ready.iter().chain(&effects.room).map(|(tube, _)| tube);
        let changed: Vec<TubeName> = tubes.cloned().collect();
        let is_new = !changed.is_empty() || effects.events != NewEvents::Nothing;
        for (id, connection) in &self.connections {
            let Some(watcher) = connection.watcher.as_ref().filter(|_| Some(*id) != by) else {
                continue;
            };
            if is_on(&self.lost_notifications, connection.server) {
                let is_alive = !connection.is_declared_dead;
                count_effects(FaultName::LoseNotifications, (is_alive && is_new).into());
                continue;
            }
            changed.iter().for_each(|tube| watcher(RemoteChange::Tube(tube.clone())));
            if effects.events != NewEvents::Nothing {
                watcher(RemoteChange::Events);
            }
        }
    }

    /// Notes that the replies of an executed batch were lost: its deliveries to sessions, and the sessions that it
    /// joined, are reverted when the server is connected again.
    pub fn lose(&mut self, id: ConnectionId, sent: &[Command], executed: &Executed) {
        count_effect(FaultName::LoseReplies);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        for (command, reply) in sent.iter().zip(&executed.replies) {
            match (command, reply) {
                (Command::Take(take), Ok(Reply::Taken(tasks))) if take.session.is_some() => {
                    let finish = Finish::Release { delay: Span::ZERO, counted: false };
                    let item = |task: &taskyard_core::Task| {
                        let holder = Holder::Lease(task.lease?);
                        Some(FinishItem { id: task.id, holder, finish: finish.clone() })
                    };
                    let items = tasks.iter().filter_map(item).collect();
                    let tube = take.tube.clone();
                    connection.undo.push(Command::Finish { tube, items, show: false });
                }
                (Command::JoinSession { session, .. }, Ok(_)) => {
                    connection.undo.push(Command::LeaveSession { session: *session });
                }
                _ => {}
            }
        }
        if self.planted == Some(PlantedFault::KeepLostDeliveries) {
            connection.undo.clear();
        }
        // A server that connects again looks at everything.
        if let Some(watcher) = &connection.watcher {
            watcher(RemoteChange::Anything);
        }
    }

    fn undo_unacknowledged(&mut self, id: ConnectionId) {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let undo = std::mem::take(&mut connection.undo);
        if undo.is_empty() {
            return;
        }
        for command in undo {
            let left = match &command {
                Command::LeaveSession { session } => Some(*session),
                _ => None,
            };
            // A session that another server ended meanwhile, or a delivery that is over.
            let reply = self.machine.apply(now, command);
            if let (Some(session), Ok(_)) = (left, reply) {
                self.note_session(id, session, false);
            }
        }
    }

    /// Receives the heartbeat of a server, which also ends the sessions of dead servers.
    pub fn heartbeat(&mut self, server: usize) {
        if self.down > 0 || is_on(&self.refused, server) {
            return;
        }
        let now = self.now();
        // A server that starts again has a new connection; the old one gets no heartbeat.
        let latest = self.connections.iter().rev().find(|(_, known)| known.server == server);
        let latest = latest.filter(|(_, known)| !known.is_closed);
        let Some(id) = latest.map(|(id, _)| *id) else { return };
        self.undo_unacknowledged(id);
        let connection = self.connections.get_mut(&id).expect("it was found above");
        connection.last_heartbeat = now;
        let was_dead = std::mem::take(&mut connection.is_declared_dead);
        let mut ended = Vec::new();
        for known in self.connections.values_mut() {
            if self.planted == Some(PlantedFault::BelieveOldHeartbeat) {
                continue;
            }
            let timeout = match self.planted {
                Some(PlantedFault::ImpatientPresence) => Duration::from_millis(100),
                _ => HEARTBEAT_TIMEOUT,
            };
            if now.since(known.last_heartbeat) > Span::from(timeout) && !known.is_declared_dead {
                known.is_declared_dead = true;
                let sessions = std::mem::take(&mut known.sessions);
                ended.extend(
                    sessions.into_iter().flat_map(|(id, count)| (0..count).map(move |_| id)),
                );
            }
        }
        for session in &ended {
            self.leave(now, *session);
        }
        if !ended.is_empty() || was_dead {
            self.tell_all();
        }
    }

    /// Leaves a session for one connection. A client may have left it through another server.
    fn leave(&mut self, now: Timestamp, session: SessionId) {
        if self.machine.apply(now, Command::LeaveSession { session }).is_ok() {
            self.count_session(session, false);
        }
    }

    /// Closes the connection of a server that has stopped, which ends its sessions.
    pub fn disconnect(&mut self, id: ConnectionId) {
        let now = self.now();
        self.undo_unacknowledged(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        (connection.is_closed, connection.is_declared_dead) = (true, true);
        let sessions = std::mem::take(&mut connection.sessions);
        for (session, count) in &sessions {
            (0..*count).for_each(|_| self.leave(now, *session));
        }
        if !sessions.is_empty() {
            self.tell_all();
        }
    }

    fn tell_all(&self) {
        for connection in self.connections.values() {
            if let Some(watcher) = &connection.watcher {
                watcher(RemoteChange::Anything);
            }
        }
    }

    /// Lets a fault begin or end.
    pub fn apply_fault(&mut self, kind: FaultKind, begins: bool) {
        match kind {
            FaultKind::CrashDatabase if begins => {
                self.down += 1;
                self.crashes += 1;
                if std::mem::take(&mut self.is_open_batch) {
                    self.machine.undo();
                }
            }
            FaultKind::CrashDatabase => {
                self.down -= 1;
                self.tell_all();
            }
            FaultKind::SlowDatabase if begins => self.slow += 1,
            FaultKind::SlowDatabase => self.slow -= 1,
            FaultKind::LoseReplies(server) => count(&mut self.lost_replies, server, begins),
            FaultKind::RefuseServer(server) => count(&mut self.refused, server, begins),
            FaultKind::LoseNotifications(server) => {
                count(&mut self.lost_notifications, server, begins);
            }
            // Of servers, their disks and their connections.
            FaultKind::CrashServer(_)
            | FaultKind::FreezeServer(_)
            | FaultKind::StepClock(..)
            | FaultKind::LosePower(_)
            | FaultKind::DiskErrors
            | FaultKind::FullDisk
            | FaultKind::ReadOnlyDisk
            | FaultKind::SlowDisk(_)
            | FaultKind::StopServer(_)
            | FaultKind::CutConnections(_)
            | FaultKind::SilenceConnections(_)
            | FaultKind::SlowConnections(_)
            | FaultKind::RefuseConnections(_)
            | FaultKind::CrashWorker(_)
            | FaultKind::StopWorker(_)
            | FaultKind::FreezeWorker(_) => {}
        }
    }

    /// Whether what was sent before so many crashes can still be answered.
    pub fn is_same_run(&self, crashes: u64) -> bool {
        self.down == 0 && self.crashes == crashes
    }
}

fn count(counts: &mut BTreeMap<usize, u32>, server: usize, begins: bool) {
    let count = counts.entry(server).or_default();
    *count = if begins { *count + 1 } else { *count - 1 };
}

fn is_on(counts: &BTreeMap<usize, u32>, server: usize) -> bool {
    counts.get(&server).is_some_and(|count| *count > 0)
}
