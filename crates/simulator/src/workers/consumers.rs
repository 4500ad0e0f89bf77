//! Consumers of a priority semaphore: they run while they hold a grant, and stop when a better one waits.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use taskyard::Client;
use taskyard_core::{EventKind, Grant, GrantFinish, GrantItem, SemaphoreEvent, TaskId};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use crate::plan::stream;

/// The semaphore.
const KEY: &str = "consumers";
/// The pause after an error of the network.
const RETRY: Duration = Duration::from_millis(500);
/// How long one request for events waits.
const EVENTS_WAIT: Duration = Duration::from_secs(5);
/// How long a consumer that is asked to release goes on at most.
const STOP_MAX_MILLIS: u64 = 1_000;
/// The consumers of the end have numbers from here on, and run until they are asked to release.
const LAST: u64 = 1_000;
/// How soon the best of them run: an event that was lost several times is sent again after ten minutes.
const BEST_MAX: Duration = Duration::from_secs(1_200);

/// The consumers of a run.
pub struct Consumers {
    client: Client,
    limit: usize,
    seed: u64,
    count: u64,
    running: RefCell<BTreeMap<TaskId, Rc<Notify>>>,
    seen: RefCell<BTreeSet<(TaskId, Grant)>>,
    /// The most that ran at the same time.
    most: Cell<usize>,
    is_over: Cell<bool>,
}

impl Consumers {
    /// Starts the consumers of a seed.
    pub fn start(client: Client, seed: u64, limit: usize) -> Rc<Self> {
        let count = stream(seed, u64::MAX, 11).u64(4..=16);
        let consumers = Rc::new(Consumers {
            client,
            limit,
            seed,
            count,
            running: RefCell::default(),
            seen: RefCell::default(),
            most: Cell::new(0),
            is_over: Cell::new(false),
        });
        tokio::task::spawn_local(consumers.clone().listen());
        tokio::task::spawn_local(consumers.clone().enqueue());
        consumers
    }

    /// What is wrong with how many ran at the same time.
    pub fn excess(&self) -> Option<String> {
        let (most, limit) = (self.most.get(), self.limit);
        (most > limit)
            .then(|| format!("{most} consumers ran at the same time, the semaphore allows {limit}"))
    }

    fn rng(&self, task: TaskId, purpose: u64) -> Rng {
        stream(self.seed, task.0 + (1 << 32), purpose)
    }

    /// Repeats a call until it is answered.
    async fn repeat<T, F: Future<Output = Result<T, taskyard::Error>>>(call: impl Fn() -> F) -> T {
        loop {
            match call().await {
                Ok(answer) => return answer,
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    async fn enqueue(self: Rc<Self>) {
        let limit = self.limit as i64;
        Self::repeat(|| async { self.client.semaphores().update(KEY, limit, limit).await }).await;
        let mut rng = self.rng(TaskId(0), 1);
        for task in 0..self.count {
            sleep(Duration::from_millis(rng.u64(0..3_000))).await;
            self.enqueue_one(TaskId(task), f64::from(rng.u32(0..5))).await;
        }
    }

    async fn enqueue_one(&self, task: TaskId, priority: f64) {
        let call = || async { self.client.semaphores().named(KEY)?.enqueue(task, priority).await };
        Self::repeat(call).await;
    }

    /// Receives the events of all consumers.
    async fn listen(self: Rc<Self>) {
        while !self.is_over.get() {
            let event = match self.client.semaphores().named(KEY) {
                Ok(semaphore) => semaphore.events().next_within(EVENTS_WAIT).await,
                Err(error) => Err(error),
            };
            match event {
                Ok(Some(event)) => {
                    self.apply(&event);
                    // One that is not acknowledged comes again.
                    let _ = self.client.semaphores().acknowledge(&[event.id]).await;
                }
                Ok(None) => {}
                Err(_) => sleep(RETRY).await,
            }
        }
    }

    fn apply(self: &Rc<Self>, event: &SemaphoreEvent) {
        let SemaphoreEvent { task, grant, kind, .. } = *event;
        match kind {
            EventKind::Acquired if self.seen.borrow_mut().insert((task, grant)) => {
                let asked = Rc::new(Notify::new());
                let mut running = self.running.borrow_mut();
                running.insert(task, asked.clone());
                self.most.set(self.most.get().max(running.len()));
                tokio::task::spawn_local(self.clone().run(task, grant, asked));
            }
            EventKind::TryRelease => {
                if let Some(asked) = self.running.borrow().get(&task) {
                    asked.notify_one();
                }
            }
            _ => {}
        }
    }

    /// Runs a consumer until it is done, or asked to release.
    async fn run(self: Rc<Self>, task: TaskId, grant: Grant, asked: Rc<Notify>) {
        let mut rng = self.rng(task, grant.0 + 2);
        let work = Duration::from_millis(rng.u64(0..8_000));
        let done = async {
            match task.0 < LAST {
                true => sleep(work).await,
                false => std::future::pending().await,
            }
        };
        let finish = tokio::select! {
            biased;
            () = done => GrantFinish::Release,
            () = asked.notified() => {
                sleep(Duration::from_millis(rng.u64(0..STOP_MAX_MILLIS))).await;
                GrantFinish::Yield
            }
        };
        self.running.borrow_mut().remove(&task);
        let item = GrantItem { task, grant: Some(grant), finish };
        let call = || async { self.client.semaphores().named(KEY)?.finish_many(&[item]).await };
        Self::repeat(call).await;
    }

    /// Enqueues consumers of which each is better than the one before, and waits until the best of them run.
    pub async fn end(&self) -> Result<(), String> {
        let count = 2 * self.limit as u64;
        for index in 0..count {
            self.enqueue_one(TaskId(LAST + index), 100.0 + index as f64).await;
        }
        let best: Vec<_> = (count / 2..count).map(|index| TaskId(LAST + index)).collect();
        let begun = Instant::now();
        while !self.running.borrow().keys().eq(&best) {
            if begun.elapsed() > BEST_MAX {
                let running: Vec<_> = self.running.borrow().keys().copied().collect();
                return Err(format!(
                    "consumers {running:?} run, and the best are {best:?} since {} s",
                    begun.elapsed().as_secs()
                ));
            }
            sleep(RETRY).await;
        }
        self.is_over.set(true);
        Ok(())
    }
}
