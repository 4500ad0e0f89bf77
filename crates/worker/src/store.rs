//! The queue as handlers see it: put, done, retry, bury, by task numbers.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use taskyard_core::{
    AfterFailure, Command, Counts, DynExecute, Error, Execute, Finish, FinishItem, Holder, Lease,
    Outcome, Reply, Result, Span, Timestamp, TubeName,
};

use crate::batch_lease::BatchLease;
use crate::delivery_registry::{DeliveryRegistry, HeldDelivery};
use crate::metrics::{QueueMetrics, count};
use crate::timer::Timer;

/// The pause before the first retry of a settlement that failed; each further one is twice as long.
const RETRY_PAUSE_MIN: Span = Span::from_micros(100_000);
/// The longest pause between such retries.
const RETRY_PAUSE_MAX: Span = Span::from_secs(5);

/// The queue that a worker works on. Cheap to clone. It executes any command, and it settles deliveries that its
/// worker holds by the numbers of their tasks alone.
#[derive(Clone)]
pub struct Store {
    shared: Arc<StoreShared>,
    /// The batch whose handler this store was made for.
    batch: Option<Arc<BatchScope>>,
}

/// The deliveries that the store of a handler may settle.
struct BatchScope {
    /// Sorted by task number.
    deliveries: Vec<(u64, Lease)>,
    batch_lease: Arc<BatchLease>,
}

/// The result of several finishes.
#[derive(Default)]
pub(crate) struct FinishReport {
    pub settled: SettledCount,
    /// Tasks that the worker no longer holds.
    pub lost: Vec<u64>,
    /// Finishes whose queue was unavailable, and the first such error.
    unavailable: Vec<(u64, Finish)>,
    unavailable_error: Option<Error>,
    /// The deliveries whose finish was refused, and the first such error.
    refused: Vec<(u64, Lease)>,
    refused_error: Option<Error>,
}

impl FinishReport {
    /// The counts, or the first error.
    pub fn into_result(self) -> Result<SettledCount> {
        self.refused_error.or(self.unavailable_error).map_or(Ok(self.settled), Err)
    }
}

struct StoreShared {
    queue: Box<dyn DynExecute>,
    timer: Arc<dyn Timer>,
    deliveries: DeliveryRegistry,
    /// The tubes of the worker's queues, set when the worker starts.
    tubes: OnceLock<Vec<TubeName>>,
    /// The numbers of the queues in the contract.
    queue_nums: Vec<u32>,
    /// The metrics of each queue.
    metrics: Vec<Arc<QueueMetrics>>,
}

/// A task to be tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The number of the task.
    pub task_id: u64,
    /// The earliest start of the next attempt; a time in the past means at once.
    pub next_start_time: Timestamp,
}

/// How many tasks were settled as requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettledCount {
    /// Settled as requested.
    pub done: usize,
    /// Not or no longer held by this worker: delivered again meanwhile, or removed.
    pub lost: usize,
}

/// The number of tasks of a queue in each state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStat {
    /// Its number in the contract.
    pub queue_num: u32,
    /// Its name.
    pub name: TubeName,
    /// Its tasks: all are ready, taken, delayed or buried.
    pub tasks: Counts,
}

impl Store {
    pub(crate) fn new(
        queue: Box<dyn DynExecute>,
        timer: Arc<dyn Timer>,
        counted: Vec<(u32, Arc<QueueMetrics>)>,
    ) -> Self {
        let (deliveries, tubes) = (DeliveryRegistry::default(), OnceLock::new());
        let (queue_nums, metrics) = counted.into_iter().unzip();
        let shared = Arc::new(StoreShared { queue, timer, deliveries, tubes, queue_nums, metrics });
        Store { shared, batch: None }
    }

    /// A store for the handler of one batch: a task that was delivered to another batch meanwhile is not settled by it.
    pub(crate) fn for_batch(
        &self,
        deliveries: &[(u64, Lease)],
        batch_lease: &Arc<BatchLease>,
    ) -> Self {
        let mut deliveries = deliveries.to_vec();
        deliveries.sort_unstable();
        let scope = BatchScope { deliveries, batch_lease: batch_lease.clone() };
        Store { shared: self.shared.clone(), batch: Some(Arc::new(scope)) }
    }

    /// The held deliveries of these tasks; for a handler with the leases of its own batch.
    pub(crate) fn held(
        &self,
        task_ids: impl Iterator<Item = u64> + Clone,
    ) -> Vec<Option<HeldDelivery>> {
        let mut found = self.deliveries().find(task_ids.clone());
        let Some(batch) = &self.batch else { return found };
        for (task_id, held) in task_ids.zip(&mut found) {
            let own = batch.deliveries.binary_search_by_key(&task_id, |own| own.0);
            if let (Some(held), Ok(own)) = (held, own) {
                held.lease = batch.deliveries[own].1;
            }
        }
        found
    }

    /// Acks the tasks, which removes them: one atomic step for each queue.
    pub async fn done(&self, task_ids: &[u64]) -> Result<SettledCount> {
        self.finish(task_ids.iter().map(|task_id| (*task_id, Finish::Ack)).collect()).await
    }

    /// Returns tasks to the queue for another attempt later.
    pub async fn retry(&self, retries: &[Retry]) -> Result<SettledCount> {
        let now = self.now();
        let release = |retry: &Retry| {
            let delay = retry.next_start_time.since(now);
            (retry.task_id, Finish::Release { delay, counted: true })
        };
        self.finish(retries.iter().map(release).collect()).await
    }

    /// Buries tasks until they are kicked.
    pub async fn bury(&self, task_ids: &[u64]) -> Result<SettledCount> {
        self.finish(task_ids.iter().map(|task_id| (*task_id, Finish::Bury)).collect()).await
    }

    /// Returns tasks to the queue at once, as if they had never been taken.
    pub async fn give_back(&self, task_ids: &[u64]) -> Result<SettledCount> {
        let release = Finish::Release { delay: Span::ZERO, counted: false };
        self.finish(task_ids.iter().map(|task_id| (*task_id, release.clone())).collect()).await
    }

    /// Extends the lease of tasks. The worker does this by itself while a handler runs.
    pub async fn extend(&self, task_ids: &[u64], more: Duration) -> Result<SettledCount> {
        let more = Finish::Touch(more.into());
        self.finish(task_ids.iter().map(|task_id| (*task_id, more.clone())).collect()).await
    }

    /// The number of tasks in each of the worker's queues.
    pub async fn stats(&self) -> Result<Vec<QueueStat>> {
        let tubes = self.tubes().iter();
        let commands = tubes.map(|tube| Command::Tubes { tube: Some(tube.clone()) }).collect();
        let mut stats = Vec::new();
        for (queue_num, reply) in self.shared.queue_nums.iter().zip(self.execute(commands).await) {
            let Reply::Tubes(tubes) = reply? else { return Err(unexpected("tubes")) };
            stats.extend(tubes.into_iter().map(|tube| QueueStat {
                queue_num: *queue_num,
                name: tube.name,
                tasks: tube.stats.tasks,
            }));
        }
        Ok(stats)
    }

    /// Reads the state of the queues and records it in the metrics.
    pub(crate) async fn observe(&self) -> Result<()> {
        let tubes = self.tubes().iter();
        let commands = tubes.map(|tube| Command::Tubes { tube: Some(tube.clone()) }).collect();
        for (metrics, reply) in self.shared.metrics.iter().zip(self.execute(commands).await) {
            let Reply::Tubes(tubes) = reply? else { return Err(unexpected("tubes")) };
            tubes.iter().for_each(|tube| metrics.observe(tube, self.now()));
        }
        Ok(())
    }

    /// The time of the worker's timer.
    pub fn now(&self) -> Timestamp {
        self.shared.timer.now()
    }

    pub(crate) fn timer(&self) -> &dyn Timer {
        &*self.shared.timer
    }

    pub(crate) fn deliveries(&self) -> &DeliveryRegistry {
        &self.shared.deliveries
    }

    /// The tubes of the worker's queues; none before the worker starts.
    pub(crate) fn tubes(&self) -> &[TubeName] {
        self.shared.tubes.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn set_tubes(&self, tubes: Vec<TubeName>) {
        // A second `init` sets the same tubes.
        let _ = self.shared.tubes.set(tubes);
    }

    /// Settles deliveries as their handler decided. While a queue is unavailable the request is repeated until the lease
    /// of the batch ends: finished work must not be repeated because a reply was lost. Deliveries that cannot be settled are
    /// not held any longer, so that their leases are not extended.
    pub(crate) async fn finish_with_retries(
        &self,
        mut finishes: Vec<(u64, Finish)>,
    ) -> Result<SettledCount> {
        let (mut settled, mut refused) = (SettledCount::default(), None);
        let (mut pause, mut repeated) = (RETRY_PAUSE_MIN, false);
        loop {
            let finished = self.finish_all(finishes, repeated).await;
            settled.done += finished.settled.done;
            settled.lost += finished.settled.lost;
            refused = refused.or(finished.refused_error);
            self.deliveries().remove(finished.refused.into_iter());
            let Some(error) = finished.unavailable_error else { break };
            let tasks = finished.unavailable.len();
            tracing::warn!(tasks, %error, "cannot settle tasks; retrying");
            if !self.pause_within_lease(pause).await {
                refused = refused.or(Some(error));
                let given_up = finished.unavailable.iter().map(|finish| finish.0);
                let held = self.held(given_up.clone()).into_iter().zip(given_up);
                let held = held.filter_map(|(held, task_id)| Some((task_id, held?.lease)));
                self.deliveries().remove(held);
                break;
            }
            finishes = finished.unavailable;
            pause = Span::from_micros(pause.as_micros() * 2).min(RETRY_PAUSE_MAX);
            repeated = true;
        }
        refused.map_or(Ok(settled), Err)
    }

    /// Waits, and returns whether the lease of the batch still holds afterwards.
    async fn pause_within_lease(&self, pause: Span) -> bool {
        let Some(BatchScope { batch_lease, .. }) = self.batch.as_deref() else { return false };
        let until = self.now() + pause;
        if batch_lease.is_cancelled() || until >= batch_lease.deadline() {
            return false;
        }
        tokio::select! {
            biased;
            () = batch_lease.cancelled() => false,
            () = self.timer().sleep_until(until) => true,
        }
    }

    /// Settles deliveries with a single request.
    pub(crate) async fn finish(&self, finishes: Vec<(u64, Finish)>) -> Result<SettledCount> {
        self.finish_all(finishes, false).await.into_result()
    }

    /// Sends one command for each queue in one request. The refusal of one queue does not affect the others. A `repeated`
    /// request may have been executed before, with its reply lost.
    pub(crate) async fn finish_all(
        &self,
        finishes: Vec<(u64, Finish)>,
        repeated: bool,
    ) -> FinishReport {
        let found = self.held(finishes.iter().map(|finish| finish.0));
        let mut by_queue: BTreeMap<usize, Vec<(u64, HeldDelivery, Finish)>> = BTreeMap::new();
        let mut finished = FinishReport::default();
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
                finish: finish.clone(),
            });
            let tube = self.tubes().get(*queue)?.clone();
            Some(Command::Finish { tube, items: items.collect(), show: false })
        });
        let replies = self.execute(commands.collect()).await;
        for (items, reply) in by_queue.values().zip(replies) {
            match reply {
                Ok(Reply::Finished(outcomes)) => {
                    self.record(items, &outcomes, repeated, &mut finished);
                }
                Err(error) if error.is_temporary() => {
                    let items = items.iter().map(|(id, _, finish)| (*id, finish.clone()));
                    finished.unavailable.extend(items);
                    finished.unavailable_error.get_or_insert(error);
                }
                refused => {
                    let error = refused.err().unwrap_or_else(|| unexpected("finish"));
                    finished.refused.extend(items.iter().map(|(id, held, _)| (*id, held.lease)));
                    finished.refused_error.get_or_insert(error);
                }
            }
        }
        if let Some(BatchScope { batch_lease, .. }) = self.batch.as_deref() {
            batch_lease.mark_lost(&finished.lost);
        }
        finished
    }

    fn record(
        &self,
        items: &[(u64, HeldDelivery, Finish)],
        outcomes: &[Outcome],
        repeated: bool,
        finished: &mut FinishReport,
    ) {
        let mut ended = Vec::new();
        for ((task_id, held, finish), outcome) in items.iter().zip(outcomes) {
            let before =
                repeated && outcome_of(finish, true) == Some("ack") && *outcome == Outcome::Missing;
            let done = before || matches!(outcome, Outcome::Done(_));
            if let Some(word) = outcome_of(finish, done) {
                self.deliveries().close_span(*task_id, held.lease, word);
            }
            // A task whose lease was extended is still held.
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
        self.deliveries().remove(ended.into_iter());
    }
}

/// The outcome that the span of a delivery records; `None` while the delivery continues.
fn outcome_of(finish: &Finish, done: bool) -> Option<&'static str> {
    match finish {
        _ if !done => Some("lost"),
        Finish::Ack | Finish::AckWithResult(_) => Some("ack"),
        Finish::Release { .. } => Some("release"),
        Finish::Bury => Some("bury"),
        Finish::Fail(fail) if fail.then == AfterFailure::Bury => Some("bury"),
        Finish::Fail(_) => Some("fail"),
        Finish::Touch(_) => None,
    }
}

/// The error for a reply of another kind than the command expects.
pub(crate) fn unexpected(verb: &str) -> Error {
    Error::Store(format!("unexpected reply to {verb}"))
}

impl Execute for Store {
    async fn execute(&self, commands: Vec<Command>) -> Vec<Result<Reply>> {
        self.shared.queue.execute_boxed(commands).await
    }
}

impl Retry {
    /// Retries the task after this delay.
    pub fn after(store: &Store, task_id: u64, delay: Duration) -> Self {
        Retry { task_id, next_start_time: store.now() + Span::from(delay) }
    }
}
