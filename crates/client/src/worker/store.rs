//! The queue as handlers see it: put, done, retry, by the numbers of tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taskyard_core::{
    Command, Counts, Error as Refusal, Execute, Finish, FinishItem, Holder, Lease, Outcome, Reply,
    Span, Timestamp, TubeName,
};

use crate::client::unexpected;
use crate::error::Result;

use super::ledger::{Held, Ledger};
use super::metrics::{QueueMetrics, count};
use super::timer::{Boxed, Timer};

/// The queue that a worker works on. Cheap to clone. It runs any command, and it ends deliveries that its
/// worker holds by nothing but the numbers of their tasks.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    /// The deliveries of the batch that this was given out with, by number.
    own: Arc<[(u64, Lease)]>,
}

struct Shared {
    queue: Box<dyn Commands>,
    timer: Arc<dyn Timer>,
    ledger: Ledger,
    /// The tubes of the worker's queues, known when the worker begins.
    tubes: OnceLock<Vec<TubeName>>,
    /// What is counted for each of them.
    metrics: Vec<Arc<QueueMetrics>>,
}

/// [`Execute`] without its type.
trait Commands: Send + Sync {
    fn run(&self, commands: Vec<Command>) -> Boxed<'_, Vec<Result<Reply, Refusal>>>;
}

impl<E: Execute> Commands for E {
    fn run(&self, commands: Vec<Command>) -> Boxed<'_, Vec<Result<Reply, Refusal>>> {
        Box::pin(self.execute(commands))
    }
}

/// A task to be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Which task.
    pub task_id: u64,
    /// Not before this moment; one that has passed means at once.
    pub next_start_time: Timestamp,
}

/// What became of tasks that were to be ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Ended as asked.
    pub done: usize,
    /// Not held by this worker, or no longer: given to somebody else meanwhile, or gone.
    pub lost: usize,
}

/// How many tasks of a queue stand where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStat {
    /// The queue.
    pub name: TubeName,
    /// Its tasks: all are ready, taken, delayed or buried.
    pub tasks: Counts,
}

impl Store {
    pub(super) fn new<E: Execute + 'static>(
        queue: E,
        timer: Arc<dyn Timer>,
        metrics: Vec<Arc<QueueMetrics>>,
    ) -> Self {
        let (ledger, tubes) = (Ledger::default(), OnceLock::new());
        let queue = Box::new(queue);
        let shared = Arc::new(Shared { queue, timer, ledger, tubes, metrics });
        Store { shared, own: Arc::new([]) }
    }

    /// The same for the handler of one batch: a task that was given to another batch meanwhile is not its.
    pub(super) fn for_batch(&self, deliveries: &[(u64, Lease)]) -> Self {
        let mut own = deliveries.to_vec();
        own.sort_unstable();
        Store { shared: self.shared.clone(), own: own.into() }
    }

    /// What is held of these, as the holder of this store knows it.
    fn held(&self, task_ids: impl Iterator<Item = u64> + Clone) -> Vec<Option<Held>> {
        let mut found = self.ledger().find(task_ids.clone());
        for (task_id, held) in task_ids.zip(&mut found) {
            let own = self.own.binary_search_by_key(&task_id, |own| own.0);
            if let (Some(held), Ok(own)) = (held, own) {
                held.lease = self.own[own].1;
            }
        }
        found
    }

    /// Done: removes the tasks, of one queue in one step.
    pub async fn done(&self, task_ids: &[u64]) -> Result<Settled> {
        self.finish(task_ids.iter().map(|task_id| (*task_id, Finish::Ack)).collect()).await
    }

    /// Gives tasks back to be taken again later; each counts as an attempt.
    pub async fn retry(&self, retries: &[Retry]) -> Result<Settled> {
        let now = self.now();
        let release = |retry: &Retry| {
            let delay = retry.next_start_time.since(now);
            (retry.task_id, Finish::Release { delay, counted: true })
        };
        self.finish(retries.iter().map(release).collect()).await
    }

    /// Puts tasks aside until somebody kicks them.
    pub async fn bury(&self, task_ids: &[u64]) -> Result<Settled> {
        self.finish(task_ids.iter().map(|task_id| (*task_id, Finish::Bury)).collect()).await
    }

    /// Gives tasks back as if they had never been taken, to be taken again at once.
    pub async fn give_back(&self, task_ids: &[u64]) -> Result<Settled> {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        self.finish(task_ids.iter().map(|task_id| (*task_id, release)).collect()).await
    }

    /// Asks for more time. The worker does this by itself while a handler runs.
    pub async fn extend(&self, task_ids: &[u64], more: Duration) -> Result<Settled> {
        let more = Finish::Touch(more.into());
        self.finish(task_ids.iter().map(|task_id| (*task_id, more)).collect()).await
    }

    /// How many tasks the worker's queues have.
    pub async fn stats(&self) -> Result<Vec<QueueStat>> {
        let asked = self.tubes().iter();
        let asked = asked.map(|tube| Command::Tubes { tube: Some(tube.clone()) }).collect();
        let mut stats = Vec::new();
        for reply in self.execute(asked).await {
            let Reply::Tubes(tubes) = reply? else { return Err(unexpected("tubes").into()) };
            stats.extend(
                tubes
                    .into_iter()
                    .map(|tube| QueueStat { name: tube.name, tasks: tube.stats.tasks }),
            );
        }
        Ok(stats)
    }

    /// Asks the queues what they have and notes it for whoever reads the metrics.
    pub(super) async fn observe(&self) -> Result<()> {
        let asked = self.tubes().iter();
        let asked = asked.map(|tube| Command::Tubes { tube: Some(tube.clone()) }).collect();
        for (metrics, reply) in self.shared.metrics.iter().zip(self.execute(asked).await) {
            let Reply::Tubes(tubes) = reply? else { return Err(unexpected("tubes").into()) };
            tubes.iter().for_each(|tube| metrics.observe(&tube.stats));
        }
        Ok(())
    }

    /// The worker's time.
    pub fn now(&self) -> Timestamp {
        self.shared.timer.now()
    }

    pub(super) fn timer(&self) -> &dyn Timer {
        &*self.shared.timer
    }

    pub(super) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// The tubes of the worker's queues; none before it begins.
    pub(super) fn tubes(&self) -> &[TubeName] {
        self.shared.tubes.get().map_or(&[], Vec::as_slice)
    }

    pub(super) fn know_tubes(&self, tubes: Vec<TubeName>) {
        // A worker that begins twice has the same queues.
        let _ = self.shared.tubes.set(tubes);
    }

    /// One command for each queue, all in one go.
    pub(super) async fn finish(&self, finishes: Vec<(u64, Finish)>) -> Result<Settled> {
        let found = self.held(finishes.iter().map(|finish| finish.0));
        let mut by_queue: BTreeMap<usize, Vec<(u64, Held, Finish)>> = BTreeMap::new();
        let mut settled = Settled::default();
        for ((task_id, finish), held) in finishes.into_iter().zip(found) {
            match held {
                Some(held) => by_queue.entry(held.queue).or_default().push((task_id, held, finish)),
                None => settled.lost += 1,
            }
        }
        let commands = by_queue.iter().filter_map(|(queue, items)| {
            let items = items.iter().map(|(_, held, finish)| FinishItem {
                id: held.id,
                holder: Holder::Lease(held.lease),
                finish: *finish,
            });
            let tube = self.tubes().get(*queue)?.clone();
            Some(Command::Finish { tube, items: items.collect(), show: false })
        });
        let replies = self.execute(commands.collect()).await;
        for (items, reply) in by_queue.values().zip(replies) {
            self.note(items, reply?, &mut settled)?;
        }
        Ok(settled)
    }

    fn note(
        &self,
        items: &[(u64, Held, Finish)],
        reply: Reply,
        settled: &mut Settled,
    ) -> Result<()> {
        let Reply::Finished(outcomes) = reply else { return Err(unexpected("finish").into()) };
        for ((task_id, held, finish), outcome) in items.iter().zip(&outcomes) {
            let done = matches!(outcome, Outcome::Done(_));
            if let Some(word) = outcome_of(*finish, done) {
                self.ledger().close(*task_id, held.lease, word);
            }
            if done {
                settled.done += 1;
                continue;
            }
            settled.lost += 1;
            if let Some(metrics) = self.shared.metrics.get(held.queue) {
                count(&metrics.fenced, 1);
            }
        }
        // What was prolonged is still ours.
        let ended = items.iter().zip(&outcomes).filter(|((_, _, finish), outcome)| {
            !matches!(finish, Finish::Touch(_)) || !matches!(outcome, Outcome::Done(_))
        });
        self.ledger().remove(ended.map(|((task_id, held, _), _)| (*task_id, held.lease)));
        Ok(())
    }
}

/// What a span says when a delivery has ended so; nothing while it goes on.
fn outcome_of(finish: Finish, done: bool) -> Option<&'static str> {
    match finish {
        _ if !done => Some("lost"),
        Finish::Ack => Some("ack"),
        Finish::Release { .. } => Some("release"),
        Finish::Bury => Some("bury"),
        Finish::Touch(_) => None,
    }
}

impl Execute for Store {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply, Refusal>> {
        self.shared.queue.run(commands).await
    }
}

impl Retry {
    /// Again after this long.
    pub fn after(store: &Store, task_id: u64, delay: Duration) -> Self {
        Retry { task_id, next_start_time: store.now() + Span::from(delay) }
    }
}
