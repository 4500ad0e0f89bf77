//! Defines, reads and checks the YAML configuration of a pool.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use taskyard_core::Span;
use taskyard_core::classes::{Class, Limit, Policy, Rules, RulesError};

/// Highest number of backends in one process.
const BACKENDS_MAX: u32 = 250;
/// Weights that the kernel accepts.
const CPU_WEIGHTS: RangeInclusive<u32> = 1..=10_000;
/// Lower user ids belong to the system.
const FIRST_UID_MIN: u32 = 1000;

/// All settings.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How many programs may run at once.
    pub backends: u32,
    /// The classes, shortest first.
    pub classes: Vec<ClassConfig>,
    /// Which task is lowered or halted when several qualify: `random`, `youngest` or `oldest`.
    pub policy: String,
    /// Whether an interactive task is spared while a lowered one is about to end.
    pub patient: bool,
    /// Seed of the random choices; by default a new one for each start.
    pub seed: Option<u64>,
    /// Highest number of waiting tasks.
    pub queue_max: usize,
    /// How long a task may wait before it is denied, in seconds; by default without limit.
    pub wait_seconds_max: Option<f64>,
    /// Highest number of waiting and running tasks of one client address; further ones wait outside the queue.
    pub client_tasks_max: Option<usize>,
    /// Shortest time between two denied interactive tasks that each lower a default task, in seconds.
    pub denial_pause_seconds: f64,
    /// The programs, by name.
    pub programs: BTreeMap<String, Program>,
    /// Resource limits of tasks.
    pub limits: Limits,
    /// What surrounds programs. Without a working sandbox a pool runs programs only if this is `none`.
    pub sandbox: SandboxKind,
    /// How programs are isolated.
    pub isolation: IsolationConfig,
    /// How long the parts of a pool over Redis may be silent.
    pub leases: Leases,
}

/// How long the parts of a pool over Redis may be silent before they are considered dead, in seconds. Each part
/// renews its lease three times within that time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Leases {
    /// A gateway: then its tasks are removed.
    pub task_seconds: f64,
    /// A backend: then its task runs on another backend or is lost.
    pub backend_seconds: f64,
    /// The leading scheduler: then another one takes the lead.
    pub leader_seconds: f64,
}

impl Default for Leases {
    fn default() -> Self {
        Leases { task_seconds: 15.0, backend_seconds: 10.0, leader_seconds: 3.0 }
    }
}

impl Leases {
    /// How long a task exists without a renewal by its gateway.
    pub fn task(&self) -> Duration {
        Duration::try_from_secs_f64(self.task_seconds).unwrap_or_default()
    }

    /// How long a backend is considered alive without a heartbeat.
    pub fn backend(&self) -> Duration {
        Duration::try_from_secs_f64(self.backend_seconds).unwrap_or_default()
    }

    /// How long the lead lasts without a renewal.
    pub fn leader(&self) -> Duration {
        Duration::try_from_secs_f64(self.leader_seconds).unwrap_or_default()
    }

    fn check(&self) -> Result<(), ConfigError> {
        let all = [self.task_seconds, self.backend_seconds, self.leader_seconds];
        match all.iter().all(|lease| (0.1..=3600.0).contains(lease)) {
            true => Ok(()),
            false => Err(ConfigError::Value("leases must be 0.1 to 3600 seconds".into())),
        }
    }
}

/// One duration class.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// Its name.
    pub name: String,
    /// How long its tasks may run, in seconds.
    pub seconds: f64,
    /// A count such as `4`, or a share of the backends such as `50%`.
    pub limit: LimitConfig,
}

/// A count or a share of the backends.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum LimitConfig {
    /// A count.
    Count(u32),
    /// A share, such as `50%`.
    Share(String),
}

/// A program that clients may run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Its name; the key in the file.
    #[serde(skip)]
    pub name: String,
    /// The program and its arguments; `{main}`, `{format}` and `{result}` are replaced. No shell is involved.
    pub command: Vec<String>,
    /// The same for an interactive session; without it there are no sessions.
    #[serde(default)]
    pub interactive: Vec<String>,
    /// Suffix that names of input files must have, such as `.asy`.
    #[serde(default)]
    pub input: String,
    /// The result formats and their media types.
    #[serde(default)]
    pub formats: BTreeMap<String, String>,
    /// The default format; without it the first of `formats` by name.
    #[serde(default)]
    pub format: Option<String>,
    /// The file with the result; `{format}` is replaced.
    #[serde(default)]
    pub result: Option<String>,
    /// Arguments to add for each level of verbosity.
    #[serde(default)]
    pub verbosity: Vec<Vec<String>>,
    /// The whole environment of the program, beside `PATH`, `LANG`, `HOME` and `TMPDIR`.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Paths that the program may read beside `/usr`.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// The example code that the page shows first.
    #[serde(default)]
    pub example: String,
}

/// Resource limits of tasks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Total size of the input files, in bytes.
    pub input_bytes_max: usize,
    /// Number of input files.
    pub input_files_max: usize,
    /// Size of one output stream, in bytes.
    pub output_bytes_max: usize,
    /// Size of the result, in bytes.
    pub result_bytes_max: u64,
    /// Memory of one process, in bytes.
    pub memory_bytes_max: u64,
    /// Processes and threads of a task.
    pub processes_max: u64,
    /// Size of one file that the program writes, in bytes.
    pub file_bytes_max: u64,
    /// Memory of all processes of a task together, in bytes.
    pub task_memory_bytes_max: u64,
    /// Share of the processors of a task where control groups are available, compared with other tasks and groups.
    pub cpu_weight: u32,
    /// Disk usage of a task, in bytes.
    pub task_disk_bytes_max: u64,
    /// Number of files of a task.
    pub task_files_max: usize,
    /// Memory of all tasks together, in bytes.
    pub pool_memory_bytes_max: Option<u64>,
    /// Disk usage of all tasks together, in bytes.
    pub pool_disk_bytes_max: Option<u64>,
    /// Total size of the input of all clients that wait or run, in bytes.
    pub held_bytes_max: usize,
    /// Size of the cache of received files, in bytes; 0 disables it.
    pub restore_bytes_max: usize,
    /// How long a program may take to end after SIGTERM, in seconds; then it is killed.
    pub kill_after_seconds: f64,
}

/// What surrounds programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxKind {
    /// Bubblewrap; a pool in which it does not work does not start.
    #[default]
    Bubblewrap,
    /// Nothing: programs can read the files and use the network of the machine.
    None,
}

/// How programs are isolated.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IsolationConfig {
    /// The executable of bubblewrap.
    pub bubblewrap: PathBuf,
    /// The first user id that programs run under when the pool runs as root.
    pub first_uid: u32,
}

impl Default for Config {
    fn default() -> Self {
        let class = |name: &str, seconds, share: &str| ClassConfig {
            name: name.into(),
            seconds,
            limit: LimitConfig::Share(share.into()),
        };
        Config {
            backends: 4,
            classes: vec![
                class("fast", 3.0, "100%"),
                class("medium", 10.0, "50%"),
                class("slow", 30.0, "25%"),
            ],
            policy: "random".into(),
            patient: false,
            seed: None,
            queue_max: taskyard_core::limits::POOL_QUEUE_MAX,
            wait_seconds_max: None,
            client_tasks_max: None,
            denial_pause_seconds: 0.0,
            programs: BTreeMap::new(),
            limits: Limits::default(),
            sandbox: SandboxKind::default(),
            isolation: IsolationConfig::default(),
            leases: Leases::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            input_bytes_max: 128 << 10,
            input_files_max: 16,
            output_bytes_max: 512 << 10,
            result_bytes_max: 16 << 20,
            memory_bytes_max: 1 << 30,
            processes_max: 64,
            file_bytes_max: 64 << 20,
            task_memory_bytes_max: 2 << 30,
            cpu_weight: 100,
            task_disk_bytes_max: 256 << 20,
            task_files_max: 10_000,
            pool_memory_bytes_max: None,
            pool_disk_bytes_max: None,
            held_bytes_max: 256 << 20,
            restore_bytes_max: 16 << 20,
            kill_after_seconds: 0.5,
        }
    }
}

impl Default for IsolationConfig {
    fn default() -> Self {
        IsolationConfig { bubblewrap: "/usr/bin/bwrap".into(), first_uid: 60_600 }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not valid YAML, or has unknown or missing fields.
    #[error("{0}")]
    Yaml(String),
    /// The classes are inconsistent.
    #[error("{0}")]
    Rules(#[from] RulesError),
    /// A value is out of range or inconsistent with another.
    #[error("{0}")]
    Value(String),
}

impl Config {
    /// Reads and checks a configuration.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let mut config: Config =
            serde_saphyr::from_str(text).map_err(|error| ConfigError::Yaml(error.to_string()))?;
        for (name, program) in &mut config.programs {
            program.name.clone_from(name);
        }
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |text: String| Err(ConfigError::Value(text));
        self.rules()?;
        if self.backends == 0 || self.backends > BACKENDS_MAX {
            return wrong(format!("backends must be 1 to {BACKENDS_MAX}"));
        }
        if self.client_tasks_max == Some(0) {
            return wrong("client_tasks_max must be at least 1".into());
        }
        if self.programs.is_empty() {
            return wrong("`programs` is empty: define at least one program".into());
        }
        for (name, program) in &self.programs {
            program.check(name)?;
        }
        if !CPU_WEIGHTS.contains(&self.limits.cpu_weight) {
            let (min, max) = (CPU_WEIGHTS.start(), CPU_WEIGHTS.end());
            return wrong(format!("limits.cpu_weight must be {min} to {max}"));
        }
        if !self.isolation.bubblewrap.is_absolute() {
            return wrong("isolation.bubblewrap must be the absolute path of bubblewrap".into());
        }
        if self.isolation.first_uid < FIRST_UID_MIN {
            return wrong(format!(
                "isolation.first_uid must be at least {FIRST_UID_MIN}: every process of these users is killed"
            ));
        }
        self.leases.check()?;
        seconds(self.limits.kill_after_seconds, "kill_after_seconds")?;
        seconds(self.denial_pause_seconds, "denial_pause_seconds")?;
        Ok(())
    }

    /// The rules for the core.
    pub fn rules(&self) -> Result<Rules, ConfigError> {
        let mut classes = Vec::new();
        for class in &self.classes {
            let duration = seconds(class.seconds, &class.name)?;
            classes.push(Class::new(&class.name, duration.into(), class.limit.read()?));
        }
        let mut rules = Rules::new(classes)?;
        rules.policy = match self.policy.as_str() {
            "random" => Policy::Random,
            "youngest" => Policy::Youngest,
            "oldest" => Policy::Oldest,
            other => {
                let text = format!("unknown policy {other:?}: use random, youngest or oldest");
                return Err(ConfigError::Value(text));
            }
        };
        rules.patient = self.patient;
        rules.queue_max = self.queue_max;
        let wait = self.wait_seconds_max.map(|wait| seconds(wait, "wait_seconds_max"));
        rules.wait_max = wait.transpose()?.map(Span::from);
        Ok(rules)
    }

    /// How long a program may take to end after SIGTERM.
    pub fn kill_after(&self) -> Duration {
        Duration::try_from_secs_f64(self.limits.kill_after_seconds).unwrap_or_default()
    }
}

impl Program {
    fn check(&self, name: &str) -> Result<(), ConfigError> {
        let wrong = |text: &str| Err(ConfigError::Value(format!("program {name:?}: {text}")));
        let plain = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return wrong("the name may contain only letters, digits, - and _");
        }
        for command in [&self.command, &self.interactive] {
            if command.first().is_some_and(|program| !program.starts_with('/')) {
                return wrong("give the absolute path of the program");
            }
        }
        if self.command.is_empty() {
            return wrong("`command` is missing");
        }
        if self.result.as_ref().is_some_and(|result| result.contains('/')) {
            return wrong("`result` must be a plain file name in the folder of the task");
        }
        if self.result.is_some() && self.formats.is_empty() {
            return wrong("`result` needs at least one entry in `formats`");
        }
        match &self.format {
            Some(format) if !self.formats.contains_key(format) => {
                wrong("`format` is not one of `formats`")
            }
            _ => Ok(()),
        }
    }

    /// The format of tasks that do not ask for one.
    pub fn default_format(&self) -> Option<&str> {
        self.format.as_deref().or_else(|| self.formats.keys().next().map(String::as_str))
    }
}

impl LimitConfig {
    fn read(&self) -> Result<Limit, ConfigError> {
        match self {
            LimitConfig::Count(count) => Ok(Limit::Count(*count)),
            LimitConfig::Share(text) => {
                let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
                let wrong = || ConfigError::Value(format!("invalid limit {text:?}: use 4 or 50%"));
                number.map(Limit::Percent).ok_or_else(wrong)
            }
        }
    }
}

fn seconds(value: f64, what: &str) -> Result<Duration, ConfigError> {
    let duration = Duration::try_from_secs_f64(value).ok();
    let fits = duration.filter(|duration| Span::from(*duration) < Span::FOREVER);
    fits.ok_or_else(|| ConfigError::Value(format!("{what}: {value} is not a number of seconds")))
}
