//! Clients that put, take and finish, and write down what they saw.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use taskyard::{Http, Iproto};
use taskyard_conformance::audit::{Operation, Recorder};
use taskyard_core::{
    Body, Command, Error, Execute, Finish, FinishItem, Holder, Lease, NewTask, Outcome, Reply,
    SessionId, Span, State, Take, TaskId, TubeName,
};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::yard::{LANES, PLAIN, ROOM, Server, tube};

/// Longer than any storm, so that no lease runs out.
const LEASE: Span = Span::from_secs(300);
/// How many tasks a client holds at a time.
const HELD_MAX: usize = 3;

/// What a task carries.
pub type Payload = Vec<u8>;

/// What all clients of a storm share.
pub struct Load {
    pub recorder: Recorder,
    /// Tasks whose put was answered, with what they carry.
    pub known: Mutex<HashMap<(TubeName, TaskId), Payload>>,
    /// What tasks carried that were taken.
    pub carried: Mutex<HashMap<(TubeName, TaskId), Payload>>,
    /// What puts carried that were not answered; any of it may be there, once.
    pub unsure: Mutex<HashSet<(TubeName, Payload)>>,
    /// Each task of a storm carries a number of its own.
    next: AtomicU64,
    /// Leases that somebody was told.
    pub told: Mutex<HashSet<Lease>>,
    steps: watch::Sender<usize>,
    stop: AtomicBool,
    clients: Mutex<JoinSet<()>>,
    seed: u64,
}

/// What is known of a client's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It lives on, and so do the sessions of its clients.
    Lives,
    /// It will be killed, or taken for dead: what its clients' sessions hold may be given back.
    Goes,
}

/// How a client speaks.
enum Queue {
    Http(Http),
    Iproto(Iproto, SessionId),
}

struct Client {
    load: Arc<Load>,
    queue: Queue,
    fate: Fate,
    rng: Rng,
    held: Vec<(TubeName, TaskId, Lease)>,
}

/// What came of a question.
enum Asked {
    Answered(Reply),
    Refused,
    Unknown,
}

/// A number in the environment: the seed of a storm, or how much more it does than usual.
fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

impl Load {
    pub fn new() -> Arc<Self> {
        let seed = number("TASKYARD_SEED").unwrap_or_else(|| fastrand::u64(..));
        println!("TASKYARD_SEED={seed}");
        Arc::new(Load {
            recorder: Recorder::default(),
            known: Mutex::default(),
            carried: Mutex::default(),
            unsure: Mutex::default(),
            next: AtomicU64::new(0),
            told: Mutex::default(),
            steps: watch::channel(0).0,
            stop: AtomicBool::new(false),
            clients: Mutex::default(),
            seed,
        })
    }

    /// Starts clients of a server: one over HTTP and two sessions over iproto.
    pub async fn begin(self: &Arc<Self>, server: &Server, fate: Fate) {
        self.spawn(Queue::Http(server.http.clone()), fate);
        for _ in 0..2 {
            let iproto = server.iproto();
            let session = iproto.identify().await.expect("a session begins");
            self.spawn(Queue::Iproto(iproto, session), fate);
        }
    }

    fn spawn(self: &Arc<Self>, queue: Queue, fate: Fate) {
        let mut clients = self.clients.lock().expect("no client failed");
        let rng = Rng::with_seed(self.seed ^ clients.len() as u64);
        let client = Client { load: self.clone(), queue, fate, rng, held: Vec::new() };
        clients.spawn(client.run());
    }

    /// Waits until so many more questions are answered.
    pub async fn answers(&self, more: usize) {
        let mut steps = self.steps.subscribe();
        let runs = number("TASKYARD_RUNS").map_or(1, |runs| runs as usize);
        let wanted = *steps.borrow() + more * runs;
        steps.wait_for(|steps| *steps >= wanted).await.expect("clients are under way");
    }

    /// Lets the clients finish what they hold and go.
    pub async fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut clients = std::mem::take(&mut *self.clients.lock().expect("no client failed"));
        while let Some(ended) = clients.join_next().await {
            ended.expect("no client failed");
        }
    }

    /// A number that no other task carries, as MessagePack.
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

    async fn ask(&self, command: Command) -> Asked {
        let reply = match &self.queue {
            Queue::Http(http) => http.execute(vec![command]).await,
            Queue::Iproto(iproto, _) => iproto.execute(vec![command]).await,
        };
        match reply.into_iter().next().expect("each command is answered") {
            Ok(reply) => {
                self.load.steps.send_modify(|steps| *steps += 1);
                Asked::Answered(reply)
            }
            Err(Error::OutcomeUnknown(_) | Error::Store(_)) => {
                self.pause().await;
                Asked::Unknown
            }
            Err(Error::StoreUnavailable(_) | Error::TubeFull { .. } | Error::SessionUnknown(_)) => {
                self.pause().await;
                Asked::Refused
            }
            Err(other) => panic!("{other}"),
        }
    }

    /// Waits until somebody else gets an answer, though not for long.
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
        match self.ask(put).await {
            Asked::Answered(Reply::Put(placed)) => {
                for (placed, payload) in placed.into_iter().zip(payloads) {
                    self.load.recorder.end(begin, &tube, placed.id, Operation::Put(placed.state));
                    let mut known = self.load.known.lock().expect("no client failed");
                    known.insert((tube.clone(), placed.id), payload);
                }
            }
            Asked::Answered(other) => panic!("a put places tasks, not {other:?}"),
            Asked::Refused => {}
            Asked::Unknown => {
                let payloads = payloads.into_iter().map(|payload| (tube.clone(), payload));
                self.load.unsure.lock().expect("no client failed").extend(payloads);
            }
        }
    }

    async fn take(&mut self) {
        let tube = self.any_tube();
        let (session, lease) = match &self.queue {
            Queue::Http(_) => (None, Some(LEASE)),
            Queue::Iproto(_, session) => (Some(*session), None),
        };
        let wait = if self.rng.bool() { Span::ZERO } else { Span::from_micros(5_000) };
        let begin = self.load.recorder.begin();
        let take = Take { tube: tube.clone(), count: 1, session, lease, wait };
        let Asked::Answered(Reply::Taken(tasks)) = self.ask(Command::Take(take)).await else {
            return;
        };
        for task in tasks {
            let lease = task.lease.expect("a taken task has a lease");
            let start = task.start.expect("and a beginning");
            let until = task.lease_until.unwrap_or(taskyard_core::Timestamp::NEVER);
            self.load.recorder.end(begin, &tube, task.id, Operation::Take { lease, start, until });
            if session.is_some() && self.fate == Fate::Goes {
                self.load.recorder.interrupt(begin, &tube, task.id, Operation::Disconnect(lease));
            }
            let payload = task.body.as_ref().map(|body| body.payload().to_vec());
            let payload = payload.expect("a taken task has a payload");
            let mut carried = self.load.carried.lock().expect("no client failed");
            carried.insert((tube.clone(), task.id), payload);
            drop(carried);
            self.load.told.lock().expect("no client failed").insert(lease);
            self.held.push((tube.clone(), task.id, lease));
        }
    }

    /// Finishes what it holds longest: asks until it is answered, unless its server goes.
    async fn finish(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let (tube, id, lease) = self.held.remove(0);
        let holder = match &self.queue {
            Queue::Iproto(_, session) if self.rng.bool() => Holder::Session(*session),
            _ => Holder::Lease(lease),
        };
        let (finish, operation) = match self.rng.u8(..10) {
            0 => {
                let release = Finish::Release { delay: Span::ZERO, counted: true };
                (release, Operation::Release(lease, State::Ready))
            }
            1 => (Finish::Bury, Operation::Bury(Some(lease))),
            _ => (Finish::Ack, Operation::Ack(lease)),
        };
        let mut unsure = false;
        loop {
            let begin = self.load.recorder.begin();
            let items = vec![FinishItem { id, holder, finish }];
            let command = Command::Finish { tube: tube.clone(), items, show: false };
            match self.ask(command).await {
                Asked::Answered(Reply::Finished(outcomes)) => {
                    if matches!(outcomes[0], Outcome::Done(_)) {
                        self.load.recorder.end(begin, &tube, id, operation);
                    } else {
                        let lost = unsure || self.fate == Fate::Goes;
                        assert!(lost, "{id} of '{tube}' was held: {outcomes:?}");
                    }
                    return;
                }
                Asked::Answered(other) => panic!("a finish has outcomes, not {other:?}"),
                Asked::Refused => {}
                Asked::Unknown => {
                    self.load.recorder.interrupt(begin, &tube, id, operation);
                    unsure = true;
                }
            }
            if self.fate == Fate::Goes {
                return;
            }
        }
    }
}
