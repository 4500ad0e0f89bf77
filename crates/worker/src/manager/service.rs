//! Runs the manager of all workers of a store as a service of a server.
//!
//! Every server may run one: the one that holds the leader task is the active manager, the others are standbys. When the
//! active manager fails, its lease ends after fifteen seconds; meanwhile workers keep their last plan.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};
use taskyard_core::{Execute, Result, Span, Timestamp};
use taskyard_wire::http::Shares;
use tokio::sync::watch;

use super::PERIOD;
use super::leadership::{Acquisition, Leadership};
use crate::timer::{SystemTimer, Timer};

/// How often a standby tries to become the active manager.
const STANDBY_PERIOD: Span = Span::from_secs(1);
/// How long a manager that stops waits for its resignation.
const RESIGN_TIMEOUT: Span = Span::from_secs(1);

/// Plans for all workers that report to a store, wherever they run.
pub struct ManagerService {
    status: Arc<Mutex<ManagerStatus>>,
    timer: Arc<dyn Timer>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

/// The state that metrics and status show.
#[derive(Clone, Debug, Default)]
struct ManagerStatus {
    leads: bool,
    standby: Standby,
    workers: usize,
    version: Option<u64>,
    /// When the plan was made.
    planned_at: Option<Timestamp>,
    processors: Shares,
    plans: u64,
    error: Option<String>,
}

/// Why it is not the active manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standby {
    /// It has not tried yet.
    #[default]
    Starting,
    NoReports,
    OtherManager,
}

impl ManagerService {
    /// Starts a manager on this queue; `name` is the author of its plans. Must be called within a Tokio runtime.
    pub fn start<E: Execute + 'static>(queue: E, name: &str) -> Self {
        ManagerService::start_by(queue, name, Arc::new(SystemTimer))
    }

    /// Starts a manager with another timer than the system's, for tests.
    pub fn start_by<E: Execute + 'static>(queue: E, name: &str, timer: Arc<dyn Timer>) -> Self {
        let status = Arc::new(Mutex::new(ManagerStatus::default()));
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let mut manager_loop = ManagerLoop {
            queue,
            name: name.into(),
            timer: timer.clone(),
            status: status.clone(),
            leadership: None,
        };
        tokio::spawn(async move {
            manager_loop.run(stopped).await;
            // The service may have been dropped.
            let _ = ending.send(true);
        });
        ManagerService { status, timer, stop, ended }
    }

    /// Whether it is the active manager.
    pub fn leads(&self) -> bool {
        lock(&self.status).leads
    }
}

struct ManagerLoop<E> {
    queue: E,
    name: String,
    timer: Arc<dyn Timer>,
    status: Arc<Mutex<ManagerStatus>>,
    leadership: Option<Leadership>,
}

impl<E: Execute> ManagerLoop<E> {
    async fn run(&mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let began = self.timer.now();
            if let Err(error) = self.step().await {
                let known = lock(&self.status).error.replace(error.to_string());
                if known.is_none() {
                    tracing::warn!(%error, "cannot plan; workers keep their last plan");
                }
            }
            let pause = if self.leadership.is_some() { PERIOD } else { STANDBY_PERIOD };
            tokio::select! {
                biased;
                // An error means that the service was dropped.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = self.timer.sleep_until(began + pause) => {}
            }
        }
        if let Some(leadership) = self.leadership.take() {
            let deadline = self.timer.now() + RESIGN_TIMEOUT;
            tokio::select! {
                biased;
                // Leases that are not released end by themselves.
                _ = leadership.resign(&self.queue) => {}
                () = self.timer.sleep_until(deadline) => {}
            }
        }
        *lock(&self.status) = ManagerStatus::default();
    }

    async fn step(&mut self) -> Result<()> {
        let now = self.timer.now();
        let mut standby = Standby::OtherManager;
        if self.leadership.is_none() {
            match Leadership::acquire(&self.queue, now, &self.name).await? {
                Acquisition::Acquired(leadership) => self.leadership = Some(*leadership),
                Acquisition::NoReports => standby = Standby::NoReports,
                Acquisition::OtherManager => {}
            }
        }
        if let Some(leadership) = &mut self.leadership {
            let leads = leadership.evaluate(&self.queue, now).await?;
            if !leads {
                tracing::warn!("another server is the active manager now");
                self.leadership = None;
            }
        }
        let mut status = lock(&self.status);
        status.error = None;
        status.leads = self.leadership.is_some();
        status.standby = standby;
        status.workers = self.leadership.as_ref().map_or(0, Leadership::workers);
        status.processors =
            self.leadership.as_ref().map(Leadership::processors).unwrap_or_default();
        let version = self.leadership.as_ref().and_then(Leadership::version);
        status.plans += u64::from(version.is_some() && version != status.version);
        status.version = version;
        status.planned_at = self.leadership.as_ref().map(Leadership::planned_at);
        Ok(())
    }
}

impl Service for ManagerService {
    fn name(&self) -> &'static str {
        "manager"
    }

    fn health(&self) -> Health {
        match lock(&self.status).error.clone() {
            Some(error) => Health::Unhealthy(error),
            // The loop reports its end, unless it panicked.
            None if self.ended.has_changed().is_err() && !*self.ended.borrow() => {
                Health::Unhealthy("the manager stopped unexpectedly; restart the server".into())
            }
            None => Health::Healthy,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let status = lock(&self.status).clone();
        let one = |name, about, grows, value| Metric {
            name,
            about,
            grows,
            values: vec![(Vec::new(), value)],
        };
        let leads = u8::from(status.leads).into();
        let leader = "Whether this server plans for the workers of the store.";
        let workers = "Workers that this server plans for.";
        let plans = "Plans that this server made.";
        let label = |num: &u32| vec![("queue_num", num.to_string())];
        let processors = status.processors.iter().map(|(num, count)| (label(num), (*count).into()));
        vec![
            one("taskyard_manager_leader", leader, false, leads),
            one("taskyard_manager_workers", workers, false, status.workers as f64),
            one("taskyard_manager_plans_total", plans, true, status.plans as f64),
            Metric {
                name: "taskyard_manager_processors",
                about: "Job processors that the plan of this server gives to a queue.",
                grows: false,
                values: processors.collect(),
            },
        ]
    }

    fn status(&self) -> Vec<PartStatus> {
        let status = lock(&self.status).clone();
        let words = status.words(self.timer.now());
        vec![PartStatus { part: "this server".into(), status: words }]
    }

    fn stop(&self) -> StopFuture<'_> {
        self.stop.send_replace(true);
        let mut ended = self.ended.clone();
        Box::pin(async move {
            // An error means that the loop ended in another way.
            let _ = ended.wait_for(|ended| *ended).await;
        })
    }
}

impl ManagerStatus {
    /// The status for people.
    fn words(&self, now: Timestamp) -> String {
        let workers = counted(self.workers, "worker");
        match (&self.error, self.leads, self.version.and(self.planned_at)) {
            (Some(error), ..) => format!("cannot plan: {error}; workers keep their last plan"),
            (None, true, _) if self.workers == 0 => {
                "active: no worker has reported recently".into()
            }
            (None, true, Some(planned_at)) => {
                let queues = counted(self.processors.len(), "queue");
                let age = age(now.since(planned_at));
                format!("active: plan for {workers} and {queues}, made {age} ago")
            }
            (None, true, None) => format!("active: {workers} reported, no plan yet"),
            (None, false, _) => match self.standby {
                Standby::Starting => "starting: no evaluation yet".into(),
                Standby::NoReports => "standby: no worker has reported".into(),
                Standby::OtherManager => "standby: another server is the active manager".into(),
            },
        }
    }
}

/// A number of things: `1 worker`, `2 workers`.
fn counted(count: usize, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// A time span in its largest unit that is not too coarse.
fn age(span: Span) -> String {
    let seconds = span.as_secs_f64() as u64;
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

impl fmt::Debug for ManagerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerService").field("status", &self.status).finish_non_exhaustive()
    }
}

fn lock(status: &Mutex<ManagerStatus>) -> MutexGuard<'_, ManagerStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_shown_in_a_suitable_unit() {
        let shown = |seconds| age(Span::from_secs(seconds));
        assert_eq!([0, 119, 120].map(shown), ["0 s", "119 s", "2 min"]);
        assert_eq!([7199, 7200, 172_800].map(shown), ["119 min", "2 h", "2 days"]);
    }
}
