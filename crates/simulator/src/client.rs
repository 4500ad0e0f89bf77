//! Runs one simulated client: draws its operations, calls its server, and records what it sees.

use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::{Command, Error, Reply, SessionId, TaskId, TubeName};
use taskyard_engine::Clock;

use crate::effects::{FaultName, count_effects};
use crate::history::{CallReply, OperationNumber};
use crate::operations::{HeldTask, Verb, fix_delays};
use crate::plan::Mask;
use crate::tubes::TubeRole;
use crate::world::World;

/// The most finished deliveries that a client remembers, to ack them late.
const OLD_MAX: usize = 8;

/// A client and what it holds.
pub struct Client {
    pub(super) world: Rc<World>,
    number: u32,
    pub(super) server: usize,
    held: Vec<HeldTask>,
    pub(super) old: Vec<HeldTask>,
    put: Vec<(TubeName, TaskId)>,
    session: Option<SessionId>,
    /// The server process that it began the session with.
    incarnation: u64,
    sessions: u8,
}

impl Client {
    /// A client of this number.
    pub fn new(world: Rc<World>, number: u32) -> Self {
        let server = number as usize % world.plan.servers;
        let (held, old, put) = (Vec::new(), Vec::new(), Vec::new());
        Client { world, number, server, held, old, put, session: None, incarnation: 0, sessions: 0 }
    }

    /// Runs all its operations that the mask does not leave out, then ends its session.
    pub async fn run(mut self, mask: Rc<Mask>) {
        let has_sessions = !self.world.plan.http_clients.contains(&self.number);
        if self.world.plan.weights.sessions && has_sessions {
            self.begin_session((self.number, 0)).await;
        }
        for index in 0..self.world.plan.operations {
            let operation = (self.number, index);
            let mut rng = self.world.plan.operation_rng(operation);
            let most = self.world.plan.pause_max.as_millis() as u64;
            if most > 0 {
                // Also before an operation that is left out: the others keep their times.
                tokio::time::sleep(Duration::from_millis(rng.u64(0..=most))).await;
            }
            if !mask.operations.contains(&operation) {
                self.operate(operation, &mut rng).await;
            }
        }
        let last = (self.number, self.world.plan.operations);
        self.show_deliveries(last).await;
        if self.world.can_vanish() && self.world.plan.operation_rng(last).bool() {
            self.vanish(last);
        } else {
            self.leave_session(last).await;
        }
    }

    /// Ends without leaving its session, as a process that is killed: the server must end the session with the connection.
    fn vanish(&mut self, operation: OperationNumber) {
        if let Some(session) = self.session.take() {
            let mut history = self.world.history.borrow_mut();
            let leave = history.begin(operation, self.server, Command::LeaveSession { session });
            history.end(leave, CallReply::Unknown, None);
        }
        self.world.drop_connection(self.number, self.server);
    }

    async fn operate(&mut self, operation: OperationNumber, rng: &mut Rng) {
        self.replace_lost_session(operation).await;
        let world = self.world.clone();
        let weights = &world.plan.weights;
        let role = world.plan.tubes[rng.usize(0..world.plan.tubes.len())];
        let verb = weights.verb(rng);
        match verb {
            Verb::Put => {
                let command = weights.put(role, operation, rng);
                self.put(operation, command, weights.patience(rng)).await;
            }
            Verb::Take => {
                let command = weights.take(role, self.session, rng);
                self.take(operation, role, command, weights.patience(rng)).await;
            }
            Verb::Ack | Verb::Release | Verb::Fail | Verb::Bury | Verb::Touch => {
                self.finish(operation, verb, rng).await;
            }
            Verb::LateAck => {
                if !self.old.is_empty() {
                    let old = self.old[rng.usize(0..self.old.len())].clone();
                    self.call(operation, old.finish(Verb::Ack, rng)).await;
                }
            }
            Verb::Forget => {
                if !self.held.is_empty() {
                    let index = rng.usize(0..self.held.len());
                    self.retire(index);
                }
            }
            Verb::Kick => {
                let command = Command::Kick { tube: role.tube(), count: rng.u64(1..4) };
                self.call(operation, command).await;
            }
            Verb::Delete => {
                if !self.put.is_empty() {
                    let (tube, id) = self.put.swap_remove(rng.usize(0..self.put.len()));
                    let command = Command::Delete { tube, ids: vec![id], show: false };
                    self.call(operation, command).await;
                }
            }
            Verb::Truncate => {
                if rng.u8(0..4) == 0 {
                    self.call(operation, Command::Truncate { tube: role.tube() }).await;
                }
            }
            Verb::Session => {
                if self.session.is_some() {
                    self.leave_session(operation).await;
                    self.begin_session(operation).await;
                }
            }
            Verb::Alter => self.alter(operation, role, rng).await,
            Verb::Choose => self.choose(operation, role, rng).await,
            Verb::Show => self.show_done(operation).await,
            Verb::Scratch => self.use_scratch_tube(operation, rng).await,
        }
    }

    async fn put(
        &mut self,
        operation: OperationNumber,
        command: Command,
        patience: Option<Duration>,
    ) {
        let Command::Put { tube, .. } = &command else { return };
        let tube = tube.clone();
        let added = |reply: &CallReply| match reply {
            CallReply::Replied(Reply::Put(placed)) => {
                let added = placed.iter().filter(|placed| !placed.existing);
                added.map(|placed| (tube.clone(), placed.id)).collect()
            }
            _ => Vec::new(),
        };
        let added = self.world.read_call(operation, self.server, command, patience, added).await;
        self.put.extend(added);
    }

    async fn take(
        &mut self,
        operation: OperationNumber,
        role: TubeRole,
        command: Command,
        patience: Option<Duration>,
    ) {
        let read = |reply: &CallReply| {
            let held: Vec<HeldTask> = match reply {
                CallReply::Replied(Reply::Taken(tasks)) => {
                    let held = tasks.iter().filter_map(|task| {
                        Some(HeldTask { tube: role.tube(), id: task.id, lease: task.lease? })
                    });
                    held.collect()
                }
                _ => Vec::new(),
            };
            (held, is_session_unknown(reply))
        };
        let world = self.world.clone();
        let (held, is_session_over) =
            world.read_call(operation, self.server, command, patience, read).await;
        self.held.extend(held);
        if is_session_over {
            // The server was declared dead.
            self.session = None;
            self.begin_session(operation).await;
        }
    }

    async fn finish(&mut self, operation: OperationNumber, verb: Verb, rng: &mut Rng) {
        if self.held.is_empty() {
            return;
        }
        let index = rng.usize(0..self.held.len());
        let mut command = self.held[index].finish(verb, rng);
        if self.world.plan.http_clients.contains(&self.number) {
            fix_delays(&mut command);
        }
        self.call(operation, command).await;
        if verb != Verb::Touch {
            self.retire(index);
        }
    }

    /// Moves a held task to the old ones.
    fn retire(&mut self, index: usize) {
        if self.old.len() >= OLD_MAX {
            self.old.remove(0);
        }
        self.old.push(self.held.swap_remove(index));
    }

    /// Begins another session if the server crashed, which ends the one that it had.
    async fn replace_lost_session(&mut self, operation: OperationNumber) {
        if self.session.is_some() && !self.is_same_process() {
            self.session = None;
            self.begin_session(operation).await;
        }
    }

    fn is_same_process(&self) -> bool {
        let server = &self.world.servers[self.server];
        server.is_up() && server.incarnation() == self.incarnation
    }

    /// Lists what the session holds when the faults are over, for the judge of unknown deliveries.
    async fn show_deliveries(&mut self, operation: OperationNumber) {
        if self.session.is_none() {
            return;
        }
        while self.world.faults_left.get() > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        // Lost deliveries are reverted by now.
        tokio::time::sleep(Duration::from_secs(10)).await;
        if self.is_same_process() {
            for role in self.world.plan.tubes.clone() {
                let command = Command::Deliveries { tube: role.tube(), count: 1_000 };
                self.call(operation, command).await;
            }
        }
    }

    async fn begin_session(&mut self, operation: OperationNumber) {
        self.sessions = self.sessions.wrapping_add(1);
        let mut id = [0; 16];
        id[..4].copy_from_slice(&self.number.to_be_bytes());
        id[4..8].copy_from_slice(&operation.1.to_be_bytes());
        id[8] = self.sessions;
        let session = SessionId(id);
        self.incarnation = self.world.servers[self.server].incarnation();
        let command = Command::JoinSession { session, create: true };
        if self.call(operation, command).await {
            self.session = Some(session);
        }
    }

    /// Leaves the session, again and again until it surely has ended.
    async fn leave_session(&mut self, operation: OperationNumber) {
        let Some(session) = self.session.take() else { return };
        // The session ends with the process of the server.
        while self.is_same_process() {
            let is_over = |reply: &CallReply| {
                matches!(reply, CallReply::Replied(_)) || is_session_unknown(reply)
            };
            let (world, leave) = (self.world.clone(), Command::LeaveSession { session });
            if world.read_call(operation, self.server, leave, None, is_over).await {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Calls the server; returns whether the call was executed for sure.
    pub(super) async fn call(&mut self, operation: OperationNumber, command: Command) -> bool {
        let is_done = |reply: &CallReply| matches!(reply, CallReply::Replied(_));
        self.world.read_call(operation, self.server, command, None, is_done).await
    }
}

fn is_session_unknown(reply: &CallReply) -> bool {
    matches!(reply, CallReply::Refused(Error::SessionUnknown(_)))
}

impl World {
    /// Calls a server and records the call.
    pub async fn call(
        &self,
        operation: OperationNumber,
        server: usize,
        command: Command,
    ) -> CallReply {
        self.read_call(operation, server, command, None, CallReply::clone).await
    }

    /// The same; the client reads only a part of the reply, and may give up before it.
    pub async fn read_call<T>(
        &self,
        operation: OperationNumber,
        server: usize,
        command: Command,
        patience: Option<Duration>,
        read: impl FnOnce(&CallReply) -> T,
    ) -> T {
        let host = &self.servers[server];
        let ahead = host.clock.wall_ahead();
        count_effects(FaultName::StepClock, (ahead != 0).into());
        let index = self.history.borrow_mut().begin(operation, server, command.clone());
        let reply = self.execute(operation.0, server, command);
        let reply = match patience {
            Some(patience) => match tokio::time::timeout(patience, reply).await {
                Ok(reply) => reply,
                Err(_) => {
                    self.history.borrow_mut().give_up(index);
                    None
                }
            },
            None => reply.await,
        };
        let reply = reply.map_or(CallReply::Unknown, CallReply::from_result);
        let is_known = || host.clock.wall_ahead() == ahead && !self.may_show_old_times();
        let shown = match self.storage.shows_wall_time() {
            true => is_known().then_some(ahead),
            false => Some(0),
        };
        let part = read(&reply);
        self.history.borrow_mut().end(index, reply, shown);
        part
    }
}
