//! What a worker tells the manager of its store, and how it learns the plan: both through its own queue, so it
//! works on every way to one.

use std::hash::{BuildHasher, Hasher, RandomState};

use taskyard_core::{Command, Error as Refusal, Execute, Reply, Span, TaskId};
use taskyard_wire::http::{PLANS_TUBE, PlanLetter, QueueLoad, REPORTS_TUBE, WorkerReport};

use crate::client::unexpected;

use super::manager::{PERIOD, carried, is_plausible, letters_tube, put_letter, tube};
use super::roster::Plan;
use super::worker::{PlanError, Worker};

/// How long a report waits for a manager; after that it says nothing any more.
const REPORT_TTL: Span = Span::from_secs(15);
/// How long a worker that stops waits until its report is taken back.
const FAREWELL: Span = Span::from_secs(1);
/// How many plans may lie there for a moment while one follows the other.
const PLANS: usize = 16;

/// A name that no other worker has.
pub(super) fn new_id() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("{:016x}", random())
}

/// Reports and follows the plan until the worker stops.
pub(super) async fn run(worker: Worker) {
    let store = worker.store();
    let mut reporter = Reporter { worker: &worker, last: None, troubled: false };
    loop {
        let next = store.now() + PERIOD;
        let outcome = tokio::select! {
            outcome = reporter.turn() => outcome,
            () = worker.stopped() => break,
        };
        reporter.note(outcome);
        tokio::select! {
            () = store.timer().sleep_until(next) => {}
            () = worker.stopped() => break,
        }
    }
    let patience = store.now() + FAREWELL;
    tokio::select! {
        () = reporter.leave() => {}
        () = store.timer().sleep_until(patience) => {}
    }
}

struct Reporter<'a> {
    worker: &'a Worker,
    /// The report that was put last.
    last: Option<TaskId>,
    /// Whether the queue could not be asked the last time.
    troubled: bool,
}

impl Reporter<'_> {
    async fn turn(&mut self) -> Result<(), Refusal> {
        let report = letters_tube(REPORTS_TUBE, None)?;
        let put = put_letter(REPORTS_TUBE, &self.report(), Some(REPORT_TTL))?;
        let plans = Command::Deliveries { tube: tube(PLANS_TUBE)?, count: PLANS };
        let mut replies = self.worker.store().execute(vec![report, put, plans]).await.into_iter();
        let mut next = || replies.next().unwrap_or(Err(Refusal::ShuttingDown));
        next()?;
        match next()? {
            Reply::Put(placed) => self.last = placed.first().map(|placed| placed.id),
            _ => return Err(unexpected("put")),
        }
        match next() {
            Ok(Reply::Tasks(tasks)) if tasks.is_empty() => Ok(()),
            Ok(Reply::Tasks(tasks)) => self.read(tasks.iter().map(|task| task.id).collect()).await,
            // Nobody plans here.
            Err(Refusal::TubeNotFound(_)) => Ok(()),
            Ok(_) => Err(unexpected("deliveries")),
            Err(error) => Err(error),
        }
    }

    /// Follows the newest of these plans.
    async fn read(&self, ids: Vec<TaskId>) -> Result<(), Refusal> {
        let peek = Command::Peek { tube: tube(PLANS_TUBE)?, ids };
        let reply = self.worker.store().execute(vec![peek]).await.pop();
        let tasks = match reply.unwrap_or(Err(Refusal::ShuttingDown))? {
            Reply::Tasks(tasks) => tasks,
            _ => return Err(unexpected("peek")),
        };
        let now = self.worker.store().now();
        let plans = tasks.iter().filter_map(carried::<PlanLetter>);
        let plans = plans.filter(|plan| is_plausible(plan.version, now));
        let Some(newest) = plans.max_by_key(|plan| plan.version) else { return Ok(()) };
        let Some(shares) = newest.workers.get(self.worker.id()) else { return Ok(()) };
        let share = shares.iter().map(|(num, count)| (*num, *count as usize)).collect();
        match self.worker.apply(Plan { version: newest.version, share }) {
            Ok(()) | Err(PlanError::Old) => {}
            Err(error) => tracing::warn!(worker = self.worker.name(), %error, "a plan was refused"),
        }
        Ok(())
    }

    /// Takes the last report back, so that nobody plans for a worker that is gone.
    async fn leave(&self) {
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
            target_latency: settings.target_of(report.queue_num).as_secs_f64(),
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

    /// Told once, not every five seconds.
    fn note(&mut self, outcome: Result<(), Refusal>) {
        let worker = self.worker.name();
        match outcome {
            Ok(()) => self.troubled = false,
            Err(error) if !self.troubled => {
                self.troubled = true;
                tracing::warn!(worker, %error, "cannot reach the manager; going on as before");
            }
            Err(_) => {}
        }
    }
}
