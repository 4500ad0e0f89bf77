//! Puts tasks for steady consumers, and asks while nothing else happens when those that wait will start.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use taskyard_core::{
    Body, Command, Finish, FinishItem, Holder, NewTask, Reply, Span, Take, Task, TaskId,
};
use tokio::task::JoinHandle;

use crate::history::CallReply;
use crate::operations::payload;
use crate::plan::stream;
use crate::tubes::TubeRole;
use crate::world::World;

/// The number of the client that puts, and of the one that asks; consumers have smaller numbers.
const PRODUCER: u32 = 100;
const OBSERVER: u32 = 101;
/// How many tasks are asked for at once.
const ASKED_MAX: usize = 10;

/// How long tasks run.
#[derive(Clone, Copy, Debug)]
enum RunTime {
    /// All about as long.
    Even,
    /// Many short ones, few long ones.
    Exponential,
    /// Two kinds of tasks.
    Mixed,
}

/// The queue that is observed.
struct Observed {
    world: Rc<World>,
    consumers: u32,
    tasks: u32,
    mean: Duration,
    run_time: RunTime,
    has_priorities: bool,
    /// Which part of the consumers is busy on average.
    load: f64,
    acked: Cell<u32>,
    calls: Cell<u32>,
    /// Tasks that were not asked for yet.
    unasked: RefCell<Vec<TaskId>>,
}

/// Runs consumers, a producer and an observer until all tasks are done.
pub async fn observe(world: Rc<World>) {
    let mut rng = stream(world.plan.seed, u64::MAX, 6);
    let run_times = [RunTime::Even, RunTime::Exponential, RunTime::Mixed];
    let observed = Rc::new(Observed {
        consumers: rng.u32(1..=8),
        tasks: rng.u32(300..=600),
        mean: Duration::from_millis(rng.u64(100..=2_000)),
        run_time: run_times[rng.usize(0..run_times.len())],
        has_priorities: rng.u8(0..3) == 0,
        load: 0.75 + rng.f64() * 0.2,
        acked: Cell::new(0),
        calls: Cell::new(0),
        unasked: RefCell::default(),
        world,
    });
    let mut parts: Vec<JoinHandle<()>> = Vec::new();
    for number in 0..observed.consumers {
        parts.push(tokio::task::spawn_local(observed.clone().consume(number)));
    }
    parts.push(tokio::task::spawn_local(observed.clone().ask()));
    observed.produce().await;
    for part in parts {
        if let Err(error) = part.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

impl Observed {
    async fn call(&self, client: u32, command: Command) -> CallReply {
        self.calls.set(self.calls.get() + 1);
        self.world.call((client, self.calls.get()), 0, command).await
    }

    fn is_over(&self) -> bool {
        self.acked.get() >= self.tasks
    }

    /// How long a task runs.
    fn run_time(&self, rng: &mut Rng) -> Duration {
        let factor = match self.run_time {
            RunTime::Even => 0.9 + 0.2 * rng.f64(),
            RunTime::Exponential => -rng.f64().max(1e-6).ln(),
            RunTime::Mixed if rng.u8(0..5) == 0 => 3.0,
            RunTime::Mixed => 0.5,
        };
        Duration::from_micros((self.mean.as_micros() as f64 * factor) as u64)
    }

    /// Puts tasks as fast as the consumers can do them, on average, and sometimes many at once.
    async fn produce(&self) {
        let mut rng = stream(self.world.plan.seed, u64::MAX, 7);
        let pause = self.mean.as_secs_f64() / f64::from(self.consumers) / self.load;
        let mut added = 0;
        while added < self.tasks {
            let burst = rng.u8(0..40) == 0;
            let count = if burst { rng.u32(5..=40) } else { 1 }.min(self.tasks - added);
            let task = |index: u32| {
                let body = payload((PRODUCER, added + index), 0).to_be_bytes();
                let pri = self.has_priorities.then(|| rng.u64(0..3));
                NewTask { pri, ..NewTask::new(Body::new(&body)) }
            };
            let tasks = (0..count).map(task).collect();
            let put = Command::Put { tube: TubeRole::Plain.tube(), tasks, wait: Span::ZERO };
            if let CallReply::Replied(Reply::Put(placed)) = self.call(PRODUCER, put).await {
                self.unasked.borrow_mut().extend(placed.iter().map(|placed| placed.id));
            }
            added += count;
            let way = -rng.f64().max(1e-6).ln() * pause * f64::from(count);
            tokio::time::sleep(Duration::from_secs_f64(way)).await;
        }
    }

    /// Takes, works and acks, one task after the other.
    async fn consume(self: Rc<Self>, number: u32) {
        let mut rng = stream(self.world.plan.seed, u64::from(number), 8);
        while !self.is_over() {
            let (tube, lease) = (TubeRole::Plain.tube(), Some(Span::from_secs(3_600)));
            let wait = Span::from_secs(5);
            let take = Take { tube, count: 1, session: None, lease, worker: None, wait };
            let taken = self.call(number, Command::Take(take)).await;
            let CallReply::Replied(Reply::Taken(tasks)) = taken else { continue };
            for task in tasks {
                tokio::time::sleep(self.run_time(&mut rng)).await;
                self.call(number, ack(&task)).await;
                self.acked.set(self.acked.get() + 1);
            }
        }
    }

    /// Asks when some tasks will start, for each task once.
    async fn ask(self: Rc<Self>) {
        let mut rng = stream(self.world.plan.seed, u64::MAX, 9);
        while !self.is_over() {
            tokio::time::sleep(self.run_time(&mut rng) * 2).await;
            let ids: Vec<TaskId> = {
                let mut unasked = self.unasked.borrow_mut();
                rng.shuffle(&mut unasked);
                let rest = unasked.len().saturating_sub(ASKED_MAX);
                unasked.split_off(rest)
            };
            if !ids.is_empty() {
                let positions = Command::Positions { tube: TubeRole::Plain.tube(), ids };
                self.call(OBSERVER, positions).await;
            }
        }
    }
}

fn ack(task: &Task) -> Command {
    let holder = task.lease.map_or(Holder::Any, Holder::Lease);
    let items = vec![FinishItem { id: task.id, holder, finish: Finish::Ack }];
    Command::Finish { tube: TubeRole::Plain.tube(), items, show: false }
}
