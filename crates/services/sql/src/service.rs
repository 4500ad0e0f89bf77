//! Runs one scheduler for each table of a configuration, as one service.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use taskyard_core::service::{Health, Metric, PartStatus, Service, StopFuture, TablesFuture};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::config::{Config, TableConfig};
use crate::scheduler::{RunState, Scheduler, Settings};
use crate::status::SchedulerStatus;
use crate::status_report::StatusReport;
use taskyard_postgres::Conninfo;

/// How often the configuration file is checked for changes.
const FILE_POLL: Duration = Duration::from_secs(1);

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, which may change.
    File(PathBuf),
    /// A configuration that does not change.
    Inline(Config),
}

/// All schedulers of a configuration.
#[derive(Clone)]
pub struct SqlTasks(Arc<ServiceState>);

struct ServiceState {
    database: Conninfo,
    source: Source,
    /// How long running tasks may continue when the service stops.
    patience: Duration,
    running: Mutex<Vec<RunningScheduler>>,
    /// Schedulers whose row was removed and whose tasks still run.
    retired: Mutex<Vec<RunningScheduler>>,
    /// Why the newest configuration is not used.
    config_problem: Mutex<Option<String>>,
    watching: Mutex<Option<JoinHandle<()>>>,
}

struct RunningScheduler {
    row: TableConfig,
    settings: watch::Sender<Settings>,
    run_state: watch::Sender<RunState>,
    status: Arc<SchedulerStatus>,
    report: Arc<StatusReport>,
    /// Whether it has decided to end, so that it cannot be resumed.
    ending: Arc<Mutex<bool>>,
    task: JoinHandle<()>,
}

/// Why the service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: std::io::Error,
    },
    /// The file contains a password, and every user of the machine can open it.
    #[error(
        "every user of this machine can open {shown}, which contains a password; restrict it to its owner: chmod 600 {shown}",
        shown = path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
    },
    /// The configuration is invalid.
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
}

impl Source {
    /// Reads the current configuration.
    pub fn read(&self) -> Result<Config, StartError> {
        match self {
            Source::Inline(config) => Ok(config.clone()),
            Source::File(path) => {
                let failed = |source| StartError::File { path: path.clone(), source };
                let mut file = File::open(path).map_err(failed)?;
                let about = file.metadata().map_err(failed)?;
                let mut text = String::new();
                file.read_to_string(&mut text).map_err(failed)?;
                let config = Config::parse(&text)?;
                // A pipe has no name by which other users could read it.
                let is_open = about.is_file() && about.permissions().mode() & 0o007 != 0;
                if is_open && config.rows.iter().any(|row| row.password().is_some()) {
                    return Err(StartError::Exposed { path: path.clone() });
                }
                Ok(config)
            }
        }
    }

    /// The time of modification and the size of the file, by which a change is noticed.
    fn stamp(&self) -> Option<(SystemTime, u64)> {
        let Source::File(path) = self else { return None };
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len()))
    }
}

impl SqlTasks {
    /// Starts a scheduler for each row, on the current runtime. `database` says how to connect; when the service stops,
    /// running tasks may continue for `patience`.
    pub fn start(
        database: Conninfo,
        source: Source,
        patience: Duration,
    ) -> Result<Self, StartError> {
        let stamp = source.stamp();
        let config = source.read()?;
        let tasks = SqlTasks(Arc::new(ServiceState {
            database,
            source,
            patience,
            running: Mutex::default(),
            retired: Mutex::default(),
            config_problem: Mutex::default(),
            watching: Mutex::default(),
        }));
        tasks.apply(config);
        if let Source::File(_) = tasks.0.source {
            let watching = tokio::spawn(watch_file(Arc::downgrade(&tasks.0), stamp));
            *lock(&tasks.0.watching) = Some(watching);
        }
        Ok(tasks)
    }

    /// Reads the configuration again. An invalid one is reported and the old one stays in use.
    pub fn reload(&self) {
        self.0.reload();
    }

    fn apply(&self, config: Config) {
        self.0.apply(config);
    }

    /// The row and the status of each scheduler.
    pub fn statuses(&self) -> Vec<(TableConfig, Arc<SchedulerStatus>)> {
        let running = lock(&self.0.running);
        running.iter().map(|scheduler| (scheduler.row.clone(), scheduler.status.clone())).collect()
    }
}

async fn watch_file(tasks: std::sync::Weak<ServiceState>, mut last: Option<(SystemTime, u64)>) {
    loop {
        sleep(FILE_POLL).await;
        let Some(tasks) = tasks.upgrade() else { return };
        let stamp = tasks.source.stamp();
        if stamp != last {
            last = stamp;
            tasks.reload();
        }
    }
}

impl ServiceState {
    fn reload(&self) {
        match self.source.read() {
            Ok(config) => {
                *lock(&self.config_problem) = None;
                self.apply(config);
            }
            Err(error) => {
                let problem = format!("the old configuration stays in use: {error}");
                tracing::error!("{problem}");
                *lock(&self.config_problem) = Some(problem);
            }
        }
    }

    fn apply(&self, config: Config) {
        let (mut running, mut retired) = (lock(&self.running), lock(&self.retired));
        let is_configured = |row: &TableConfig| config.rows.iter().any(|new| new.is_same(row));
        for scheduler in running.extract_if(.., |scheduler| !is_configured(&scheduler.row)) {
            // It ends by itself when its tasks have ended.
            scheduler.run_state.send_replace(RunState::Draining);
            retired.push(scheduler);
        }
        // A scheduler whose row is back is resumed; a new one would wait until its tasks have ended.
        let back = retired.extract_if(.., |scheduler| is_configured(&scheduler.row));
        running.extend(back.filter(RunningScheduler::resume));
        retired.retain(|scheduler| !scheduler.task.is_finished());
        for row in config.rows {
            let settings = row.settings(&self.database);
            match running.iter_mut().find(|scheduler| scheduler.row.is_same(&row)) {
                Some(scheduler) => {
                    scheduler.settings.send_if_modified(|old| {
                        let changed = *old != settings;
                        *old = settings;
                        changed
                    });
                    scheduler.row = row;
                }
                None => running.push(RunningScheduler::start(row, settings, &self.database)),
            }
        }
    }
}

impl RunningScheduler {
    fn start(row: TableConfig, settings: Settings, database: &Conninfo) -> Self {
        let (settings, new_settings) = watch::channel(settings);
        let (run_state, new_state) = watch::channel(RunState::Running);
        let status = Arc::new(SchedulerStatus::default());
        let ending = Arc::<Mutex<bool>>::default();
        let (decided, own) = (ending.clone(), (status.clone(), row.clone(), database.clone()));
        let task = tokio::spawn(async move {
            loop {
                let (status, row, database) = own.clone();
                let (settings, run_state) = (new_settings.clone(), new_state.clone());
                Scheduler { settings, run_state, status, row, database }.run().await;
                // It may have been resumed at the last moment.
                let mut decided = lock(&decided);
                if *new_state.borrow() != RunState::Running || new_state.has_changed().is_err() {
                    *decided = true;
                    return;
                }
            }
        });
        RunningScheduler { row, settings, run_state, status, report: Arc::default(), ending, task }
    }

    /// Resumes a scheduler that drains; returns `false` if it is already ending.
    fn resume(&self) -> bool {
        let ending = lock(&self.ending);
        if !*ending {
            self.run_state.send_replace(RunState::Running);
        }
        !*ending
    }

    fn part(&self) -> String {
        format!("{} in {}", self.row.names.quoted(), self.row.data)
    }

    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("database", self.row.data.clone()), ("table", self.row.names.quoted())]
    }

    /// The state of the scheduler in one line.
    fn summary(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let status = &self.status;
        if let Some(problem) = status.problem() {
            return problem;
        }
        let role = match status.leads.load(Ordering::Relaxed) {
            true => "leader",
            false if status.connected.load(Ordering::Relaxed) => "standby: another scheduler leads",
            false => "connecting",
        };
        let (running, done) = (count(&status.running), count(&status.done));
        let limit = match count(&status.limit) {
            0 => String::new(),
            limit => format!("; limit reached ({limit} running)"),
        };
        format!("{role}; {running} running, {done} done, {} failed{limit}", count(&status.failed))
    }
}

impl Service for SqlTasks {
    fn name(&self) -> &'static str {
        "sql"
    }

    fn health(&self) -> Health {
        let running = lock(&self.0.running);
        let config = lock(&self.0.config_problem).clone();
        let schedulers = running.iter().find_map(|scheduler| {
            let problem = scheduler.status.problem()?;
            Some(format!("{}: {problem}", scheduler.part()))
        });
        config.or(schedulers).map_or(Health::Healthy, Health::Unhealthy)
    }

    fn metrics(&self) -> Vec<Metric> {
        type Of = fn(&SchedulerStatus) -> u64;
        let families: [(&str, &str, bool, Of); 9] = [
            ("taskyard_sql_claimed_total", "Tasks that were claimed.", true, |s| {
                s.claimed.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_done_total", "Tasks that succeeded.", true, |s| {
                s.done.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_failed_total", "Tasks that ended with an error.", true, |s| {
                s.failed.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_expired_total", "Tasks that had expired when claimed.", true, |s| {
                s.expired.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_lost_total", "Tasks that lost their session.", true, |s| {
                s.lost.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_running", "Running tasks.", false, |s| {
                s.running.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_sessions", "Open sessions.", false, |s| {
                s.sessions.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_limit", "The limit that tasks wait for, or 0.", false, |s| {
                s.limit.load(Ordering::Relaxed)
            }),
            (
                "taskyard_sql_leader",
                "1 if this scheduler runs the tasks of its table.",
                false,
                |s| s.leads.load(Ordering::Relaxed).into(),
            ),
        ];
        let running = lock(&self.0.running);
        let metric = |(name, about, grows, of): (&'static str, &'static str, bool, Of)| Metric {
            name,
            about,
            grows,
            values: running
                .iter()
                .map(|scheduler| (scheduler.labels(), of(&scheduler.status) as f64))
                .collect(),
        };
        families.into_iter().map(metric).collect()
    }

    fn status(&self) -> Vec<PartStatus> {
        let running = lock(&self.0.running);
        let config = lock(&self.0.config_problem).clone();
        let config = config.map(|status| PartStatus { part: "configuration".into(), status });
        let lines = running
            .iter()
            .map(|scheduler| PartStatus { part: scheduler.part(), status: scheduler.summary() });
        config.into_iter().chain(lines).collect()
    }

    fn tables(&self) -> TablesFuture<'_> {
        Box::pin(async {
            let query = |scheduler: &RunningScheduler| {
                let Settings { names, conninfo, .. } = scheduler.settings.borrow().clone();
                tokio::spawn(scheduler.report.clone().sheets(conninfo, names, scheduler.part()))
            };
            let querying: Vec<_> = lock(&self.0.running).iter().map(query).collect();
            let mut sheets = Vec::new();
            for query in querying {
                // A failed query shows nothing; the status of its scheduler has the error.
                sheets.extend(query.await.unwrap_or_default());
            }
            sheets
        })
    }

    fn stop(&self) -> StopFuture<'_> {
        Box::pin(async {
            if let Some(watching) = lock(&self.0.watching).take() {
                watching.abort();
            }
            let mut running: Vec<RunningScheduler> = lock(&self.0.running).drain(..).collect();
            running.append(&mut lock(&self.0.retired));
            for scheduler in &running {
                scheduler.run_state.send_replace(RunState::DrainingFor(self.0.patience));
            }
            for scheduler in running {
                // A scheduler that panicked has ended too.
                let _ = scheduler.task.await;
            }
        })
    }
}

impl fmt::Debug for SqlTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SqlTasks({} tables)", lock(&self.0.running).len())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
