//! The queue as handlers see it: put, done, retry, by the numbers of tasks.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taskyard_core::{
    Command, Counts, Error as Refusal, Execute, Finish, FinishItem, Holder, Lease, Outcome, Reply,
    Span, Timestamp, TubeName,
};

use crate::client::unexpected;
use crate::error::{Error, Result};

use super::hold::Hold;
use super::ledger::{Held, Ledger};
use super::metrics::{QueueMetrics, count};
use super::timer::{Boxed, Timer};

/// The first pause before what could not be settled is tried again; each one is twice as long as the one before.
const PAUSE_FIRST: Span = Span::from_micros(100_000);
/// The longest pause.
const PAUSE_MAX: Span = Span::from_secs(5);

/// The queue that a worker works on. Cheap to clone. It runs any command, and it ends deliveries that its
/// worker holds by nothing but the numbers of their tasks.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
    /// The batch that this was given out with.
    batch: Option<Arc<Own>>,
}

/// A batch as its handler's store knows it.
struct Own {
    /// Its deliveries by number, in order.
    deliveries: Vec<(u64, Lease)>,
    hold: Arc<Hold>,
}

/// What came of several finishes.
#[derive(Default)]
pub(super) struct Finished {
    pub settled: Settled,
    /// Those that are not held any more.
    pub lost: Vec<u64>,
    /// Those whose queue was away, and why.
    away: Vec<(u64, Finish)>,
    passing: Option<Error>,
    /// Why a queue refused what it will always refuse.
    refused: Option<Error>,
}

impl Finished {
    /// The first error, if there was any.
    pub fn answer(self) -> Result<Settled> {
        self.refused.or(self.passing).map_or(Ok(self.settled), Err)
    }
}

struct Shared {
    queue: Box<dyn Commands>,
    timer: Arc<dyn Timer>,
    ledger: Ledger,
    /// The tubes of the worker's queues, known when the worker begins.
    tubes: OnceLock<Vec<TubeName>>,
    /// Their numbers in the contract.
    queue_nums: Vec<u32>,
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
    /// Its number in the contract.
    pub queue_num: u32,
    /// The queue.
    pub name: TubeName,
    /// Its tasks: all are ready, taken, delayed or buried.
    pub tasks: Counts,
}

impl Store {
    pub(super) fn new<E: Execute + 'static>(
        queue: E,
        timer: Arc<dyn Timer>,
        counted: Vec<(u32, Arc<QueueMetrics>)>,
    ) -> Self {
        let (ledger, tubes) = (Ledger::default(), OnceLock::new());
        let (queue_nums, metrics) = counted.into_iter().unzip();
        let queue = Box::new(queue);
        let shared = Arc::new(Shared { queue, timer, ledger, tubes, queue_nums, metrics });
        Store { shared, batch: None }
    }

    /// The same for the handler of one batch: a task that was given to another batch meanwhile is not its.
    pub(super) fn for_batch(&self, deliveries: &[(u64, Lease)], hold: &Arc<Hold>) -> Self {
        let mut deliveries = deliveries.to_vec();
        deliveries.sort_unstable();
        let own = Own { deliveries, hold: hold.clone() };
        Store { shared: self.shared.clone(), batch: Some(Arc::new(own)) }
    }

    /// What is held of these, as the holder of this store knows it.
    fn held(&self, task_ids: impl Iterator<Item = u64> + Clone) -> Vec<Option<Held>> {
        let mut found = self.ledger().find(task_ids.clone());
        let Some(batch) = &self.batch else { return found };
        for (task_id, held) in task_ids.zip(&mut found) {
            let own = batch.deliveries.binary_search_by_key(&task_id, |own| own.0);
            if let (Some(held), Ok(own)) = (held, own) {
                held.lease = batch.deliveries[own].1;
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
        for (queue_num, reply) in self.shared.queue_nums.iter().zip(self.execute(asked).await) {
            let Reply::Tubes(tubes) = reply? else { return Err(unexpected("tubes").into()) };
            stats.extend(tubes.into_iter().map(|tube| QueueStat {
                queue_num: *queue_num,
                name: tube.name,
                tasks: tube.stats.tasks,
            }));
        }
        Ok(stats)
    }

    /// Asks the queues what they have and notes it for whoever reads the metrics.
    pub(super) async fn observe(&self) -> Result<()> {
        let asked = self.tubes().iter();
        let asked = asked.map(|tube| Command::Tubes { tube: Some(tube.clone()) }).collect();
        for (metrics, reply) in self.shared.metrics.iter().zip(self.execute(asked).await) {
            let Reply::Tubes(tubes) = reply? else { return Err(unexpected("tubes").into()) };
            tubes.iter().for_each(|tube| metrics.observe(tube, self.now()));
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

    /// Ends deliveries as their handler decided. While queues are away they are asked again, as long as the batch is
    /// the handler's: what is done shall not be done again because an answer was lost.
    pub(super) async fn settle(&self, mut finishes: Vec<(u64, Finish)>) -> Result<Settled> {
        let (mut settled, mut refused) = (Settled::default(), None);
        let (mut pause, mut again) = (PAUSE_FIRST, false);
        loop {
            let finished = self.finish_all(finishes, again).await;
            settled.done += finished.settled.done;
            settled.lost += finished.settled.lost;
            refused = refused.or(finished.refused);
            let Some(passing) = finished.passing else { break };
            tracing::warn!(tasks = finished.away.len(), error = %passing, "not settled; trying again");
            if !self.rest(pause).await {
                refused = refused.or(Some(passing));
                break;
            }
            finishes = finished.away;
            pause = Span::from_micros(pause.as_micros() * 2).min(PAUSE_MAX);
            again = true;
        }
        refused.map_or(Ok(settled), Err)
    }

    /// Waits a moment, if the batch is still its handler's afterwards.
    async fn rest(&self, pause: Span) -> bool {
        let Some(Own { hold, .. }) = self.batch.as_deref() else { return false };
        let until = self.now() + pause;
        if hold.is_cancelled() || until >= hold.deadline() {
            return false;
        }
        tokio::select! {
            () = self.timer().sleep_until(until) => true,
            () = hold.cancelled() => false,
        }
    }

    /// The same one time only.
    pub(super) async fn finish(&self, finishes: Vec<(u64, Finish)>) -> Result<Settled> {
        self.finish_all(finishes, false).await.answer()
    }

    /// One command for each queue, all in one go. What one queue refuses changes nothing for the others. What is
    /// asked `again` may have been done before, only that its answer was lost.
    pub(super) async fn finish_all(&self, finishes: Vec<(u64, Finish)>, again: bool) -> Finished {
        let found = self.held(finishes.iter().map(|finish| finish.0));
        let mut by_queue: BTreeMap<usize, Vec<(u64, Held, Finish)>> = BTreeMap::new();
        let mut finished = Finished::default();
        for ((task_id, finish), held) in finishes.into_iter().zip(found) {
            match held {
                Some(held) => by_queue.entry(held.queue).or_default().push((task_id, held, finish)),
                None => finished.settled.lost += 1,
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
            match reply {
                Ok(Reply::Finished(outcomes)) => self.note(items, &outcomes, again, &mut finished),
                Err(error) if error.is_passing() => {
                    finished.away.extend(items.iter().map(|(id, _, finish)| (*id, *finish)));
                    finished.passing.get_or_insert(error.into());
                }
                Ok(_) => drop(finished.refused.get_or_insert(unexpected("finish").into())),
                Err(error) => drop(finished.refused.get_or_insert(error.into())),
            }
        }
        if let Some(Own { hold, .. }) = self.batch.as_deref() {
            hold.lose(&finished.lost);
        }
        finished
    }

    fn note(
        &self,
        items: &[(u64, Held, Finish)],
        outcomes: &[Outcome],
        again: bool,
        finished: &mut Finished,
    ) {
        let mut ended = Vec::new();
        for ((task_id, held, finish), outcome) in items.iter().zip(outcomes) {
            let before = again && *finish == Finish::Ack && *outcome == Outcome::Missing;
            let done = before || matches!(outcome, Outcome::Done(_));
            if let Some(word) = outcome_of(*finish, done) {
                self.ledger().close(*task_id, held.lease, word);
            }
            // What was prolonged is still ours.
            if !matches!(finish, Finish::Touch(_)) || !done {
                ended.push((*task_id, held.lease));
            }
            if done {
                finished.settled.done += 1;
                continue;
            }
            finished.settled.lost += 1;
            finished.lost.push(*task_id);
            if let Some(metrics) = self.shared.metrics.get(held.queue) {
                count(&metrics.fenced, 1);
            }
        }
        self.ledger().remove(ended.into_iter());
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
