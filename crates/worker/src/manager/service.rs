//! Runs the manager of all workers of a store as a service of a server.
//!
//! Every server may run one: the one that holds the leader task is the active manager, the others are standbys. When the
//! active manager fails, its lease ends after fifteen seconds; meanwhile workers keep their last plan.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture};
use taskyard_core::{Execute, Result, Span};
use taskyard_wire::http::Shares;
use tokio::sync::watch;

use super::PERIOD;
use super::leadership::Leadership;
use crate::timer::{SystemTimer, Timer};

/// How often a standby tries to become the active manager.
const STANDBY_PERIOD: Span = Span::from_secs(1);
/// How long a manager that stops waits for its resignation.
const RESIGN_TIMEOUT: Span = Span::from_secs(1);

/// Plans for all workers that report to a store, wherever they run.
pub struct ManagerService {
    status: Arc<Mutex<ManagerStatus>>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

/// The state that metrics and status show.
#[derive(Clone, Debug, Default)]
struct ManagerStatus {
    leads: bool,
    workers: usize,
    version: Option<u64>,
    processors: Shares,
    plans: u64,
    error: Option<String>,
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
            timer,
            status: status.clone(),
            leadership: None,
        };
        tokio::spawn(async move {
            manager_loop.run(stopped).await;
            // The service may have been dropped.
            let _ = ending.send(true);
        });
        ManagerService { status, stop, ended }
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
                // Leases that are not released end by themselves.
                _ = leadership.resign(&self.queue) => {}
                () = self.timer.sleep_until(deadline) => {}
            }
        }
        *lock(&self.status) = ManagerStatus::default();
    }

    async fn step(&mut self) -> Result<()> {
        let now = self.timer.now();
        if self.leadership.is_none() {
            self.leadership = Leadership::acquire(&self.queue, now, &self.name).await?;
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
        status.workers = self.leadership.as_ref().map_or(0, Leadership::workers);
        status.processors =
            self.leadership.as_ref().map(Leadership::processors).unwrap_or_default();
        let version = self.leadership.as_ref().and_then(Leadership::version);
        status.plans += u64::from(version.is_some() && version != status.version);
        status.version = version;
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
        let workers = match status.workers {
            1 => "1 worker".into(),
            count => format!("{count} workers"),
        };
        let words = match (status.error, status.leads, status.version) {
            (Some(error), ..) => format!("cannot plan: {error}; workers keep their last plan"),
            (None, true, Some(plan)) => format!("active: plan {plan} for {workers}"),
            (None, true, None) => format!("active: {workers} reported, no plan yet"),
            (None, false, _) => {
                "standby: no worker has reported, or another server is the active manager".into()
            }
        };
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

impl fmt::Debug for ManagerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerService").field("status", &self.status).finish_non_exhaustive()
    }
}

fn lock(status: &Mutex<ManagerStatus>) -> MutexGuard<'_, ManagerStatus> {
    status.lock().unwrap_or_else(PoisonError::into_inner)
}
