//! All schedulers of a configuration, as one service.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use taskyard_core::service::{Health, Line, Metric, Service, Showing, Stopping};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::board::Board;
use crate::config::{Config, Row};
use crate::scheduler::{Going, Scheduler, Settings};
use crate::status::Status;
use taskyard_postgres::Conninfo;

/// How often a file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Where the configuration is.
#[derive(Clone, Debug)]
pub enum Source {
    /// In a file, which may change.
    File(PathBuf),
    /// Here.
    Given(Config),
}

/// All schedulers of a configuration.
#[derive(Clone)]
pub struct SqlTasks(Arc<Inner>);

struct Inner {
    database: Conninfo,
    source: Source,
    /// How long tasks may go on when all is stopped.
    patience: Duration,
    running: Mutex<Vec<Running>>,
    /// Those whose row is gone and whose tasks may go on.
    retired: Mutex<Vec<Running>>,
    /// Why the newest configuration is not used.
    trouble: Mutex<Option<String>>,
    watching: Mutex<Option<JoinHandle<()>>>,
}

struct Running {
    row: Row,
    settings: watch::Sender<Settings>,
    going: watch::Sender<Going>,
    status: Arc<Status>,
    board: Arc<Board>,
    /// Whether it has seen that it shall end, and does.
    over: Arc<Mutex<bool>>,
    ended: JoinHandle<()>,
}

/// Why nothing could be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// What is in it cannot be used.
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
}

impl Source {
    /// The configuration as it is now.
    pub fn read(&self) -> Result<Config, StartError> {
        match self {
            Source::Given(config) => Ok(config.clone()),
            Source::File(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|source| StartError::File { path: path.clone(), source })?;
                Ok(Config::parse(&text)?)
            }
        }
    }

    /// What changes when the file does.
    fn stamp(&self) -> Option<(SystemTime, u64)> {
        let Source::File(path) = self else { return None };
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len()))
    }
}

impl SqlTasks {
    /// Starts a scheduler for each row, on the runtime this is called on. `database` says how to connect; when all is
    /// stopped, running tasks may go on for `patience`.
    pub fn start(
        database: Conninfo,
        source: Source,
        patience: Duration,
    ) -> Result<Self, StartError> {
        let stamp = source.stamp();
        let config = source.read()?;
        let tasks = SqlTasks(Arc::new(Inner {
            database,
            source,
            patience,
            running: Mutex::default(),
            retired: Mutex::default(),
            trouble: Mutex::default(),
            watching: Mutex::default(),
        }));
        tasks.apply(config);
        if let Source::File(_) = tasks.0.source {
            let watching = tokio::spawn(watch_file(Arc::downgrade(&tasks.0), stamp));
            *lock(&tasks.0.watching) = Some(watching);
        }
        Ok(tasks)
    }

    /// Reads the configuration anew. A bad one is told and the old one stays.
    pub fn reload(&self) {
        self.0.reload();
    }

    fn apply(&self, config: Config) {
        self.0.apply(config);
    }

    /// What each scheduler tells.
    pub fn statuses(&self) -> Vec<(Row, Arc<Status>)> {
        let running = lock(&self.0.running);
        running.iter().map(|one| (one.row.clone(), one.status.clone())).collect()
    }
}

async fn watch_file(tasks: std::sync::Weak<Inner>, mut last: Option<(SystemTime, u64)>) {
    loop {
        sleep(LOOK).await;
        let Some(tasks) = tasks.upgrade() else { return };
        let stamp = tasks.source.stamp();
        if stamp != last {
            last = stamp;
            tasks.reload();
        }
    }
}

impl Inner {
    fn reload(&self) {
        match self.source.read() {
            Ok(config) => {
                *lock(&self.trouble) = None;
                self.apply(config);
            }
            Err(error) => {
                tracing::error!("the old configuration stays: {error}");
                *lock(&self.trouble) = Some(format!("the old configuration stays: {error}"));
            }
        }
    }

    fn apply(&self, config: Config) {
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let (mut running, mut retired) = (lock(&self.running), lock(&self.retired));
        let gone = |one: &mut Running| !config.rows.iter().any(|row| row.is_same(&one.row));
        for one in running.extract_if(.., gone) {
            // It ends by itself when its tasks have ended.
            one.going.send_replace(Going::AfterTasks);
            retired.push(one);
        }
        // One whose row is back goes on; another would wait until its tasks have ended.
        let back = |one: &mut Running| config.rows.iter().any(|row| row.is_same(&one.row));
        running.extend(retired.extract_if(.., back).filter(Running::goes_on));
        retired.retain(|one| !one.ended.is_finished());
        for row in config.rows {
            let settings = row.settings(&self.database);
            match running.iter_mut().find(|one| one.row.is_same(&row)) {
                Some(one) => {
                    one.settings.send_if_modified(|old| {
                        let changed = *old != settings;
                        *old = settings;
                        changed
                    });
                    one.row = row;
                }
                None => running.push(Running::start(row, settings, &self.database)),
            }
        }
    }
}

impl Running {
    fn start(row: Row, settings: Settings, database: &Conninfo) -> Self {
        let (settings, given) = watch::channel(settings);
        let (going, told) = watch::channel(Going::On);
        let status = Arc::new(Status::default());
        let over = Arc::<Mutex<bool>>::default();
        let (ends, own) = (over.clone(), (status.clone(), row.clone(), database.clone()));
        let ended = tokio::spawn(async move {
            loop {
                let (status, row, database) = own.clone();
                let (settings, going) = (given.clone(), told.clone());
                Scheduler { settings, going, status, row, database }.run().await;
                // It may have been told to go on at the last moment.
                let mut ends = lock(&ends);
                if *told.borrow() != Going::On || told.has_changed().is_err() {
                    *ends = true;
                    return;
                }
            }
        });
        Running { row, settings, going, status, board: Arc::default(), over, ended }
    }

    /// Tells one that was to end that it goes on, unless it is too late for that.
    fn goes_on(&self) -> bool {
        let over = lock(&self.over);
        if !*over {
            self.going.send_replace(Going::On);
        }
        !*over
    }

    fn part(&self) -> String {
        format!("{} in {}", self.row.names.quoted(), self.row.data)
    }

    fn labels(&self) -> Vec<(&'static str, String)> {
        vec![("database", self.row.data.clone()), ("table", self.row.names.quoted())]
    }

    fn words(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let status = &self.status;
        if let Some(why) = status.why() {
            return why;
        }
        let role = match status.leads.load(Ordering::Relaxed) {
            true => "leads",
            false if status.connected.load(Ordering::Relaxed) => {
                "waits for the scheduler that leads"
            }
            false => "connects",
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
        let own = lock(&self.0.trouble).clone();
        let theirs = running.iter().find_map(|one| {
            let why = one.status.why()?;
            Some(format!("{}: {why}", one.part()))
        });
        own.or(theirs).map_or(Health::Well, Health::Troubled)
    }

    fn metrics(&self) -> Vec<Metric> {
        type Of = fn(&Status) -> u64;
        let families: [(&str, &str, bool, Of); 9] = [
            ("taskyard_sql_claimed_total", "Tasks that were claimed.", true, |s| {
                s.claimed.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_done_total", "Tasks that ended well.", true, |s| {
                s.done.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_failed_total", "Tasks that ended with an error.", true, |s| {
                s.failed.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_expired_total", "Tasks that were too late.", true, |s| {
                s.expired.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_lost_total", "Tasks that lost their session.", true, |s| {
                s.lost.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_running", "Tasks that run.", false, |s| {
                s.running.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_sessions", "Sessions that are open.", false, |s| {
                s.sessions.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_limit", "The limit that keeps tasks waiting, or 0.", false, |s| {
                s.limit.load(Ordering::Relaxed)
            }),
            ("taskyard_sql_leads", "Whether it runs the tasks of its table.", false, |s| {
                s.leads.load(Ordering::Relaxed).into()
            }),
        ];
        let running = lock(&self.0.running);
        let metric = |(name, about, grows, of): (&'static str, &'static str, bool, Of)| Metric {
            name,
            about,
            grows,
            values: running.iter().map(|one| (one.labels(), of(&one.status) as f64)).collect(),
        };
        families.into_iter().map(metric).collect()
    }

    fn status(&self) -> Vec<Line> {
        let running = lock(&self.0.running);
        let own = lock(&self.0.trouble).clone();
        let own = own.map(|words| Line { part: "configuration".into(), words });
        let lines = running.iter().map(|one| Line { part: one.part(), words: one.words() });
        own.into_iter().chain(lines).collect()
    }

    fn sheets(&self) -> Showing<'_> {
        Box::pin(async {
            let look = |one: &Running| {
                let Settings { names, conninfo, .. } = one.settings.borrow().clone();
                tokio::spawn(one.board.clone().sheets(conninfo, names, one.part()))
            };
            let looking: Vec<_> = lock(&self.0.running).iter().map(look).collect();
            let mut sheets = Vec::new();
            for look in looking {
                // One that failed shows nothing; its status says why.
                sheets.extend(look.await.unwrap_or_default());
            }
            sheets
        })
    }

    fn stop(&self) -> Stopping<'_> {
        Box::pin(async {
            if let Some(watching) = lock(&self.0.watching).take() {
                watching.abort();
            }
            let mut running: Vec<Running> = lock(&self.0.running).drain(..).collect();
            running.append(&mut lock(&self.0.retired));
            for one in &running {
                one.going.send_replace(Going::Within(self.0.patience));
            }
            for one in running {
                // One that failed has ended too.
                let _ = one.ended.await;
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
