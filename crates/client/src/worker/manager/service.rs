//! The manager of all workers of a store, as something that runs beside a queue.
//!
//! Every server may run one: the one that holds the seat leads, the others wait for it to become free. When
//! a leader dies, its seat is free after fifteen seconds, and workers go on as they did meanwhile.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use taskyard_core::service::{Health, Line, Metric, Service, Stopping};
use taskyard_core::{Execute, Result, Span};
use taskyard_wire::http::Shares;
use tokio::sync::watch;

use crate::worker::timer::{SystemTimer, Timer};

use super::PERIOD;
use super::term::Term;

/// How often one that does not lead looks whether it could.
const LOOK: Span = Span::from_secs(1);
/// How long one that stops waits for the queue to hear of it.
const FAREWELL: Span = Span::from_secs(1);

/// Plans for the workers of a store that report in, wherever they run.
pub struct ManagerService {
    seen: Arc<Mutex<Seen>>,
    stop: watch::Sender<bool>,
    ended: watch::Receiver<bool>,
}

/// What can be told about it.
#[derive(Clone, Debug, Default)]
struct Seen {
    leads: bool,
    workers: usize,
    version: Option<u64>,
    processors: Shares,
    plans: u64,
    trouble: Option<String>,
}

impl ManagerService {
    /// Runs beside this queue from now on; `name` is whose plans they will be. Needs a running runtime.
    pub fn start<E: Execute + 'static>(queue: E, name: &str) -> Self {
        ManagerService::start_by(queue, name, Arc::new(SystemTimer))
    }

    /// The same by another time than the machine's, for tests.
    pub fn start_by<E: Execute + 'static>(queue: E, name: &str, timer: Arc<dyn Timer>) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let (stop, stopped) = watch::channel(false);
        let (ending, ended) = watch::channel(false);
        let mut office = Office { queue, name: name.into(), timer, seen: seen.clone(), term: None };
        tokio::spawn(async move {
            office.run(stopped).await;
            // Nobody may be left to hear it.
            let _ = ending.send(true);
        });
        ManagerService { seen, stop, ended }
    }

    /// Whether it leads now.
    pub fn leads(&self) -> bool {
        look(&self.seen).leads
    }
}

struct Office<E> {
    queue: E,
    name: String,
    timer: Arc<dyn Timer>,
    seen: Arc<Mutex<Seen>>,
    term: Option<Term>,
}

impl<E: Execute> Office<E> {
    async fn run(&mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            let began = self.timer.now();
            if let Err(error) = self.turn().await {
                let known = look(&self.seen).trouble.replace(error.to_string());
                if known.is_none() {
                    tracing::warn!(%error, "cannot plan; workers keep their last plan");
                }
            }
            let pause = if self.term.is_some() { PERIOD } else { LOOK };
            tokio::select! {
                biased;
                // An error is a service that was dropped.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = self.timer.sleep_until(began + pause) => {}
            }
        }
        if let Some(term) = self.term.take() {
            let patience = self.timer.now() + FAREWELL;
            tokio::select! {
                // What is not given back is free when its time is over.
                _ = term.resign(&self.queue) => {}
                () = self.timer.sleep_until(patience) => {}
            }
        }
        *look(&self.seen) = Seen::default();
    }

    async fn turn(&mut self) -> Result<()> {
        let now = self.timer.now();
        if self.term.is_none() {
            self.term = Term::begin(&self.queue, now, &self.name).await?;
        }
        if let Some(term) = &mut self.term {
            let leads = term.evaluate(&self.queue, now).await?;
            if !leads {
                tracing::warn!("another server is the active manager now");
                self.term = None;
            }
        }
        let mut seen = look(&self.seen);
        seen.trouble = None;
        seen.leads = self.term.is_some();
        seen.workers = self.term.as_ref().map_or(0, Term::workers);
        seen.processors = self.term.as_ref().map(Term::processors).unwrap_or_default();
        let version = self.term.as_ref().and_then(Term::version);
        seen.plans += u64::from(version.is_some() && version != seen.version);
        seen.version = version;
        Ok(())
    }
}

impl Service for ManagerService {
    fn name(&self) -> &'static str {
        "manager"
    }

    fn health(&self) -> Health {
        match look(&self.seen).trouble.clone() {
            Some(trouble) => Health::Troubled(trouble),
            // Whoever plans says so when it ends, unless it was a panic.
            None if self.ended.has_changed().is_err() && !*self.ended.borrow() => {
                Health::Troubled("the manager stopped unexpectedly; restart the server".into())
            }
            None => Health::Well,
        }
    }

    fn metrics(&self) -> Vec<Metric> {
        let seen = look(&self.seen).clone();
        let one = |name, about, grows, value| Metric {
            name,
            about,
            grows,
            values: vec![(Vec::new(), value)],
        };
        let leads = u8::from(seen.leads).into();
        let leader = "Whether this server plans for the workers of the store.";
        let workers = "Workers that this server plans for.";
        let plans = "Plans that this server made.";
        let label = |num: &u32| vec![("queue_num", num.to_string())];
        let processors = seen.processors.iter().map(|(num, count)| (label(num), (*count).into()));
        vec![
            one("taskyard_manager_leader", leader, false, leads),
            one("taskyard_manager_workers", workers, false, seen.workers as f64),
            one("taskyard_manager_plans_total", plans, true, seen.plans as f64),
            Metric {
                name: "taskyard_manager_processors",
                about: "Job processors that the plan of this server gives to a queue.",
                grows: false,
                values: processors.collect(),
            },
        ]
    }

    fn status(&self) -> Vec<Line> {
        let seen = look(&self.seen).clone();
        let workers = match seen.workers {
            1 => "1 worker".into(),
            count => format!("{count} workers"),
        };
        let words = match (seen.trouble, seen.leads, seen.version) {
            (Some(trouble), ..) => format!("cannot plan: {trouble}; workers keep their last plan"),
            (None, true, Some(plan)) => format!("active: plan {plan} for {workers}"),
            (None, true, None) => format!("active: {workers} reported, no plan yet"),
            (None, false, _) => {
                "standby: no worker has reported, or another server is the active manager".into()
            }
        };
        vec![Line { part: "this server".into(), words }]
    }

    fn stop(&self) -> Stopping<'_> {
        self.stop.send_replace(true);
        let mut ended = self.ended.clone();
        Box::pin(async move {
            // An error is one that has ended in another way.
            let _ = ended.wait_for(|ended| *ended).await;
        })
    }
}

impl fmt::Debug for ManagerService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerService").field("seen", &self.seen).finish_non_exhaustive()
    }
}

fn look(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}
