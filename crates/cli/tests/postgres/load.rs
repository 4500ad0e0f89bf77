//! Runs clients that put, take and finish tasks, and records their calls.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use taskyard::{Http, Iproto};
use taskyard_conformance::audit::{Operation, Recorder};
use taskyard_conformance::random::{new_seed, runs};
use taskyard_core::{
    Body, Command, Error, Execute, Finish, FinishItem, Holder, Lease, NewTask, Outcome, Reply,
    SessionId, Span, State, Take, TaskId, TubeName,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::fixture::{LANES, PLAIN, ROOM, StormServer, tube};

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

/// The protocol of a client.
enum Connection {
    Http(Http),
    Iproto(Iproto, SessionId),
}

struct Client {
    load: Arc<StormLoad>,
    queue: Connection,
    fate: ServerFate,
    rng: Rng,
    held: Vec<(TubeName, TaskId, Lease)>,
}

/// The outcome of a call.
enum CallOutcome {
    Replied(Reply),
    Refused,
    Unknown,
}

impl StormLoad {
    pub fn new() -> Arc<Self> {
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
            seed: new_seed(),
        })
    }

    /// Starts clients of a server: one over HTTP and two sessions over iproto.
    pub async fn begin(self: &Arc<Self>, server: &StormServer, fate: ServerFate) {
        self.spawn(Connection::Http(server.http.clone()), fate);
        for _ in 0..2 {
            let iproto = server.iproto();
            let session = iproto.identify().await.expect("a session begins");
            self.spawn(Connection::Iproto(iproto, session), fate);
        }
    }

    fn spawn(self: &Arc<Self>, queue: Connection, fate: ServerFate) {
        let mut clients = self.clients.lock().expect("no client failed");
        let rng = Rng::with_seed(self.seed ^ clients.len() as u64);
        let client = Client { load: self.clone(), queue, fate, rng, held: Vec::new() };
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

    /// A number that no other task has, as MessagePack.
    fn payload(&self) -> Payload {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        [&[0xcf][..], &number.to_be_bytes()].concat()
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl Client {
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
        let reply = match &self.queue {
            Connection::Http(http) => http.execute(vec![command]).await,
            Connection::Iproto(iproto, _) => iproto.execute(vec![command]).await,
        };
        match reply.into_iter().next().expect("each command has a reply") {
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
        let (session, lease) = match &self.queue {
            Connection::Http(_) => (None, Some(LEASE)),
            Connection::Iproto(_, session) => (Some(*session), None),
        };
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

    /// Finishes the task that it holds longest: repeats the call until it has a reply, unless its server stops.
    async fn finish(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (tube, id, lease) = self.held.remove(0);
        let holder = match &self.queue {
            Connection::Iproto(_, session) if self.rng.bool() => Holder::Session(*session),
            _ => Holder::Lease(lease),
        };
        let (finish, operation) = match self.rng.u8(..10) {
            0 => {
                let fail = Finish::fail("the storm", Some(Span::ZERO));
                (fail, Operation::Release(lease, State::Ready))
            }
            1 => (Finish::Bury, Operation::Bury(Some(lease))),
            _ => (Finish::Ack, Operation::Ack(lease)),
        };
        let mut unacknowledged = false;
        loop {
            let begin = self.load.recorder.begin();
            let items = vec![FinishItem { id, holder, finish: finish.clone() }];
            let command = Command::Finish { tube: tube.clone(), items, show: false };
            match self.call(command).await {
                CallOutcome::Replied(Reply::Finished(outcomes)) => {
                    if matches!(outcomes[0], Outcome::Done(_)) {
                        self.load.recorder.end(begin, &tube, id, operation);
                    } else {
                        let lost = unacknowledged || self.fate == ServerFate::Stops;
                        assert!(lost, "{id} of '{tube}' was held: {outcomes:?}");
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
