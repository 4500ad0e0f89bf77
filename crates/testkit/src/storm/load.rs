//! Runs clients that put, take and finish tasks of three tubes, and records their calls. Clients of servers and of stores are the same.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use taskyard_conformance::audit::{Operation, Recorder};
use taskyard_conformance::random::{new_seed, runs};
use taskyard_core::{
    Body, Command, Error, Execute, Finish, FinishItem, Holder, Kind, Lease, NewTask, Outcome,
    Reply, SemaphoreKey, SessionId, Span, State, Take, TaskId, TubeName, TubeOptions,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// The tubes of a storm: plain tasks, sub-queues, and a small capacity.
pub const PLAIN: &str = "plain";
/// Tasks with sub-queues.
pub const LANES: &str = "lanes";
/// At most [`CAPACITY`] tasks.
pub const ROOM: &str = "room";
/// All of them.
pub const TUBES: [&str; 3] = [PLAIN, LANES, ROOM];
/// The capacity of [`ROOM`].
pub const CAPACITY: u64 = 30;

/// Longer than any storm, so that no lease ends.
const LEASE: Span = Span::from_secs(300);
/// How many tasks a client holds at a time.
const HELD_MAX: usize = 3;

/// A task of a tube.
pub type TaskKey = (TubeName, TaskId);

/// The payload of a task.
pub type Payload = Vec<u8>;

/// The state that all clients of a storm share.
pub struct StormLoad {
    /// The calls.
    pub recorder: Recorder,
    /// Tasks whose put had a reply, with their payloads.
    pub acknowledged: Mutex<HashMap<TaskKey, Payload>>,
    /// The payloads of taken tasks.
    pub payloads: Mutex<HashMap<TaskKey, Payload>>,
    /// The payloads of puts without a reply; each can exist once.
    pub unacknowledged: Mutex<HashSet<(TubeName, Payload)>>,
    /// The next payload: each task of a storm has a unique number.
    next: AtomicU64,
    /// Leases that a client received.
    pub received: Mutex<HashSet<Lease>>,
    steps: watch::Sender<usize>,
    stop: AtomicBool,
    clients: Mutex<JoinSet<()>>,
    finishes: Finishes,
    seed: u64,
}

/// What happens to the server of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerFate {
    /// It stays alive, and so do the sessions of its clients.
    Stays,
    /// It is killed or declared dead: the tasks of its clients' sessions can be released.
    Stops,
}

/// How the clients of a storm finish tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finishes {
    /// They ack most of them; some fail, and some are buried.
    Any,
    /// They ack all. A task of a semaphore that fails waits for a grant again, and no client records when it gets it.
    Acks,
}

struct StormClient<E> {
    load: Arc<StormLoad>,
    queue: E,
    session: Option<SessionId>,
    fate: ServerFate,
    rng: Rng,
    held: Vec<(TubeName, TaskId, Lease)>,
}

/// A tube of this name.
pub fn tube(name: &str) -> TubeName {
    TubeName::new(name).expect("a name")
}

/// Creates the tubes, which may have a semaphore.
pub async fn create_tubes(queue: &impl Execute, semaphore: Option<&SemaphoreKey>) {
    let capacities = [
        (PLAIN, Kind::FifoTtl, None),
        (LANES, Kind::Utube, None),
        (ROOM, Kind::FifoTtl, Some(CAPACITY)),
    ];
    for (name, kind, capacity) in capacities {
        let options =
            TubeOptions { capacity, semaphore: semaphore.cloned(), ..TubeOptions::new(kind) };
        let create = Command::CreateTube { tube: tube(name), options, if_not_exists: false };
        queue.execute(vec![create]).await.remove(0).expect("the tube is created");
    }
}

/// The outcome of a call.
enum CallOutcome {
    Replied(Reply),
    Refused,
    Unknown,
}

impl StormLoad {
    /// A load without clients.
    pub fn new(finishes: Finishes) -> Arc<Self> {
        Arc::new(StormLoad {
            recorder: Recorder::default(),
            acknowledged: Mutex::default(),
            payloads: Mutex::default(),
            unacknowledged: Mutex::default(),
            next: AtomicU64::new(0),
            received: Mutex::default(),
            steps: watch::channel(0).0,
            stop: AtomicBool::new(false),
            clients: Mutex::default(),
            finishes,
            seed: new_seed(),
        })
    }

    /// Starts a client, in a session or without one.
    pub fn spawn<E: Execute + 'static>(
        self: &Arc<Self>,
        queue: E,
        session: Option<SessionId>,
        fate: ServerFate,
    ) {
        let mut clients = self.clients.lock().expect("no client failed");
        let rng = Rng::with_seed(self.seed ^ clients.len() as u64);
        let load = self.clone();
        let client = StormClient { load, queue, session, fate, rng, held: Vec::new() };
        clients.spawn(client.run());
    }

    /// Waits for so many more replies, which `TASKYARD_RUNS` multiplies.
    pub async fn wait_for_replies(&self, more: usize) {
        let mut steps = self.steps.subscribe();
        let wanted = *steps.borrow() + more * runs();
        steps.wait_for(|steps| *steps >= wanted).await.expect("clients are running");
    }

    /// Lets the clients finish their tasks and waits for their end.
    pub async fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut clients = std::mem::take(&mut *self.clients.lock().expect("no client failed"));
        while let Some(ended) = clients.join_next().await {
            ended.expect("no client failed");
        }
    }

    /// How many calls had a reply.
    pub fn replies(&self) -> usize {
        *self.steps.borrow()
    }

    /// A number that no other task has, as MessagePack.
    fn payload(&self) -> Payload {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        [&[0xcf][..], &number.to_be_bytes()].concat()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl<E: Execute> StormClient<E> {
    async fn run(mut self) {
        while !self.load.is_over() {
            match self.rng.u8(..10) {
                0..4 => self.put().await,
                4..8 if self.held.len() < HELD_MAX => self.take().await,
                _ => self.finish().await,
            }
        }
        while !self.held.is_empty() {
            self.finish().await;
        }
    }

    async fn call(&self, command: Command) -> CallOutcome {
        match self.queue.execute(vec![command]).await.remove(0) {
            Ok(reply) => {
                self.load.steps.send_modify(|steps| *steps += 1);
                CallOutcome::Replied(reply)
            }
            Err(Error::OutcomeUnknown(_) | Error::Store(_)) => {
                self.pause().await;
                CallOutcome::Unknown
            }
            Err(Error::StoreUnavailable(_) | Error::TubeFull { .. } | Error::SessionUnknown(_)) => {
                self.pause().await;
                CallOutcome::Refused
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Waits until another client gets a reply, for a short time.
    async fn pause(&self) {
        let mut steps = self.load.steps.subscribe();
        let _ = timeout(Duration::from_millis(20), steps.changed()).await;
    }

    fn any_tube(&mut self) -> TubeName {
        tube([PLAIN, PLAIN, LANES, ROOM][self.rng.usize(..4)])
    }

    async fn put(&mut self) {
        let tube = self.any_tube();
        let lane = format!("lane {}", self.rng.u8(..5));
        let payloads: Vec<Payload> =
            (0..self.rng.usize(1..3)).map(|_| self.load.payload()).collect();
        let tasks = payloads.iter().map(|payload| NewTask {
            subqueue: (tube.as_str() == LANES).then(|| lane.as_str().into()),
            ..NewTask::new(Body::new(payload))
        });
        let tasks: Vec<NewTask> = tasks.collect();
        let begin = self.load.recorder.begin();
        let put = Command::Put { tube: tube.clone(), tasks, wait: Span::ZERO };
        match self.call(put).await {
            CallOutcome::Replied(Reply::Put(placed)) => {
                for (placed, payload) in placed.into_iter().zip(payloads) {
                    self.load.recorder.end(begin, &tube, placed.id, Operation::Put(placed.state));
                    let mut acknowledged = self.load.acknowledged.lock().expect("no client failed");
                    acknowledged.insert((tube.clone(), placed.id), payload);
                }
            }
            CallOutcome::Replied(other) => panic!("unexpected reply to a put: {other:?}"),
            CallOutcome::Refused => {}
            CallOutcome::Unknown => {
                let payloads = payloads.into_iter().map(|payload| (tube.clone(), payload));
                self.load.unacknowledged.lock().expect("no client failed").extend(payloads);
            }
        }
    }

    async fn take(&mut self) {
        let tube = self.any_tube();
        let (session, lease) = (self.session, self.session.is_none().then_some(LEASE));
        let wait = if self.rng.bool() { Span::ZERO } else { Span::from_micros(5_000) };
        let begin = self.load.recorder.begin();
        let take = Take { tube: tube.clone(), count: 1, session, lease, worker: None, wait };
        let CallOutcome::Replied(Reply::Taken(tasks)) = self.call(Command::Take(take)).await else {
            return;
        };
        for task in tasks {
            let lease = task.lease.expect("a taken task has a lease");
            let start = task.start.expect("a taken task has a start");
            let until = task.lease_until.unwrap_or(taskyard_core::Timestamp::NEVER);
            self.load.recorder.end(begin, &tube, task.id, Operation::Take { lease, start, until });
            if session.is_some() && self.fate == ServerFate::Stops {
                self.load.recorder.interrupt(begin, &tube, task.id, Operation::Disconnect(lease));
            }
            let payload = task.body.as_ref().map(|body| body.payload().to_vec());
            let payload = payload.expect("a taken task has a payload");
            let mut payloads = self.load.payloads.lock().expect("no client failed");
            payloads.insert((tube.clone(), task.id), payload);
            drop(payloads);
            self.load.received.lock().expect("no client failed").insert(lease);
            self.held.push((tube.clone(), task.id, lease));
        }
    }

    fn any_finish(&mut self, lease: Lease) -> (Finish, Operation) {
        match self.rng.u8(..10) {
            0 if self.load.finishes == Finishes::Any => {
                let fail = Finish::fail("the storm", Some(Span::ZERO));
                (fail, Operation::Release(lease, State::Ready))
            }
            1 if self.load.finishes == Finishes::Any => {
                (Finish::Bury, Operation::Bury(Some(lease)))
            }
            _ => (Finish::Ack, Operation::Ack(lease)),
        }
    }

    /// Finishes the task that it holds longest: repeats the call until it has a reply, unless its server stops.
    async fn finish(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (tube, id, lease) = self.held.remove(0);
        let holder = match self.session {
            Some(session) if self.rng.bool() => Holder::Session(session),
            _ => Holder::Lease(lease),
        };
        let (finish, operation) = self.any_finish(lease);
        let mut unacknowledged = false;
        loop {
            let begin = self.load.recorder.begin();
            let items = vec![FinishItem { id, holder, finish: finish.clone() }];
            let command = Command::Finish { tube: tube.clone(), items, show: false };
            match self.call(command).await {
                CallOutcome::Replied(Reply::Finished(outcomes)) => {
                    match &outcomes[0] {
                        Outcome::Done(_) => self.load.recorder.end(begin, &tube, id, operation),
                        // The session that held it can have ended.
                        _ if self.fate == ServerFate::Stops => {}
                        // An acked task is gone; one that failed can have another holder.
                        other => assert!(
                            unacknowledged && (finish != Finish::Ack || *other == Outcome::Missing),
                            "{id} of '{tube}' was held: {other:?}"
                        ),
                    }
                    return;
                }
                CallOutcome::Replied(other) => panic!("unexpected reply to a finish: {other:?}"),
                CallOutcome::Refused => {}
                CallOutcome::Unknown => {
                    self.load.recorder.interrupt(begin, &tube, id, operation);
                    unacknowledged = true;
                }
            }
            if self.fate == ServerFate::Stops {
                return;
            }
        }
    }
}
