//! Reports a worker to the manager of its store and fetches the plan. Both are messages in tubes of the store, so that
//! they work over every transport.

use std::hash::{BuildHasher, Hasher, RandomState};

use taskyard_core::{Command, Error as Refusal, Execute, Reply, Span, TaskId};
use taskyard_wire::http::{PLANS_TUBE, PlanMessage, QueueLoad, REPORTS_TUBE, WorkerReport};

use crate::manager::{PERIOD, create_message_tube, is_plausible, message_of, put_message, tube};
use crate::queue_selector::Plan;
use crate::store::unexpected;
use crate::worker::{PlanError, Worker};

/// How long a report waits for a manager; after that it is out of date.
const REPORT_TTL: Span = Span::from_secs(15);
/// How long a worker that stops waits for the removal of its report.
const WITHDRAW_TIMEOUT: Span = Span::from_secs(1);
/// How many plans may exist at once while a new one replaces the old.
const PLANS_MAX: usize = 16;

/// A random identifier of a worker.
pub(crate) fn new_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}", random())
}

/// Reports and applies plans until the worker stops.
pub(crate) async fn run(worker: Worker) {
    let store = worker.store();
    let mut reporter = Reporter { worker: &worker, last: None, failing: false };
    loop {
        let next = store.now() + PERIOD;
        let outcome = tokio::select! {
            biased;
            () = worker.stopped() => break,
            outcome = reporter.exchange() => outcome,
        };
        reporter.log(outcome);
        tokio::select! {
            biased;
            () = worker.stopped() => break,
            () = store.timer().sleep_until(next) => {}
        }
    }
    let deadline = store.now() + WITHDRAW_TIMEOUT;
    tokio::select! {
        biased;
        () = reporter.withdraw() => {}
        () = store.timer().sleep_until(deadline) => {}
    }
}

struct Reporter<'a> {
    worker: &'a Worker,
    /// The last report.
    last: Option<TaskId>,
    /// Whether the last exchange failed.
    failing: bool,
}

impl Reporter<'_> {
    /// Puts a report and reads the plans.
    async fn exchange(&mut self) -> Result<(), Refusal> {
        let report = create_message_tube(REPORTS_TUBE, None)?;
        let put = put_message(REPORTS_TUBE, &self.report(), Some(REPORT_TTL))?;
        let plans = Command::Deliveries { tube: tube(PLANS_TUBE)?, count: PLANS_MAX };
        let mut replies = self.worker.store().execute(vec![report, put, plans]).await.into_iter();
        let mut next = || replies.next().unwrap_or(Err(Refusal::ShuttingDown));
        next()?;
        match next()? {
            Reply::Put(placed) => self.last = placed.first().map(|placed| placed.id),
            _ => return Err(unexpected("put")),
        }
        match next() {
            Ok(Reply::Tasks(tasks)) if tasks.is_empty() => Ok(()),
            Ok(Reply::Tasks(tasks)) => {
                self.apply_newest(tasks.iter().map(|task| task.id).collect()).await
            }
            // The store has no manager.
            Err(Refusal::TubeNotFound(_)) => Ok(()),
            Ok(_) => Err(unexpected("deliveries")),
            Err(error) => Err(error),
        }
    }

    /// Applies the newest of these plans.
    async fn apply_newest(&self, ids: Vec<TaskId>) -> Result<(), Refusal> {
        let peek = Command::Peek { tube: tube(PLANS_TUBE)?, ids };
        let reply = self.worker.store().execute(vec![peek]).await.pop();
        let tasks = match reply.unwrap_or(Err(Refusal::ShuttingDown))? {
            Reply::Tasks(tasks) => tasks,
            _ => return Err(unexpected("peek")),
        };
        let now = self.worker.store().now();
        let plans = tasks.iter().filter_map(message_of::<PlanMessage>);
        let plans = plans.filter(|plan| is_plausible(plan.version, now));
        let Some(newest) = plans.max_by_key(|plan| plan.version) else { return Ok(()) };
        let Some(shares) = newest.workers.get(self.worker.id()) else { return Ok(()) };
        let share = shares.iter().map(|(num, count)| (*num, *count as usize)).collect();
        match self.worker.apply(Plan { version: newest.version, share }) {
            Ok(()) | Err(PlanError::Outdated) => {}
            Err(error) => tracing::warn!(worker = self.worker.name(), %error, "ignoring a plan"),
        }
        Ok(())
    }

    /// Removes the last report, so that the manager does not plan for a worker that has ended.
    async fn withdraw(&self) {
        let (Some(last), Ok(tube)) = (self.last, tube(REPORTS_TUBE)) else { return };
        let delete = Command::Delete { tube, ids: vec![last], show: false };
        self.worker.store().execute(vec![delete]).await;
    }

    fn report(&self) -> WorkerReport {
        let settings = self.worker.settings();
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let tubes = self.worker.store().tubes();
        let queues = self.worker.report().into_iter().zip(tubes).map(|(report, tube)| QueueLoad {
            queue_num: report.queue_num,
            tube: tube.to_string(),
            seconds_per_task: report.seconds_per_task,
            target_latency: settings.target_latency_of(report.queue_num).as_secs_f64(),
            errors: report.errors,
            busy: small(report.busy),
        });
        WorkerReport {
            worker: self.worker.id().into(),
            name: self.worker.name().into(),
            max_processors: small(settings.max_processors),
            version: self.worker.plan_version(),
            queues: queues.collect(),
        }
    }

    /// Logs the first failure in a row, not each of them.
    fn log(&mut self, outcome: Result<(), Refusal>) {
        let worker = self.worker.name();
        match outcome {
            Ok(()) => self.failing = false,
            Err(error) if !self.failing => {
                self.failing = true;
                tracing::warn!(worker, %error, "cannot report to the manager; keeping the last plan");
            }
            Err(_) => {}
        }
    }
}
