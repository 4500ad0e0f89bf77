//! What an operator sets, in one YAML file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use taskyard_core::Span;
use taskyard_core::classes::{Class, Limit, Policy, Rules, RulesError};

/// Most backends in one process.
const BACKENDS_MAX: u32 = 250;
/// Users below belong to the system.
const FIRST_UID_MIN: u32 = 1000;

/// Everything that can be set.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// How many programs may run at once.
    pub backends: u32,
    /// The classes, shortest first.
    pub classes: Vec<ClassConfig>,
    /// Who is lowered or halted when several could be: `random`, `youngest` or `oldest`.
    pub policy: String,
    /// Whether an interactive task is spared while a lowered one is about to end.
    pub patient: bool,
    /// Decides what chance decides; without it a new one each time.
    pub seed: Option<u64>,
    /// Most tasks that wait.
    pub queue_max: usize,
    /// How long a task may wait before it is turned away, in seconds; without it as long as it likes.
    pub wait_seconds_max: Option<f64>,
    /// Most tasks of one client, by its address, that wait or run; the rest wait outside. Without it any number.
    pub client_tasks_max: Option<usize>,
    /// The least time between two denied interactive tasks that each lower a default one, in seconds.
    pub denial_pause_seconds: f64,
    /// What may be run, by name.
    pub programs: BTreeMap<String, Program>,
    /// What a task may use.
    pub limits: Limits,
    /// How what is run is kept apart.
    pub isolation: Isolation,
    /// How long parts of a pool over Redis may be silent.
    pub leases: Leases,
}

/// How long parts of a pool over Redis may be silent before the others go on without them, in seconds. Each says a word
/// three times as often.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Leases {
    /// A gateway: then its tasks are gone.
    pub task_seconds: f64,
    /// A backend: then its task runs elsewhere, or is lost.
    pub backend_seconds: f64,
    /// The scheduler that leads: then another does.
    pub leader_seconds: f64,
}

impl Default for Leases {
    fn default() -> Self {
        Leases { task_seconds: 15.0, backend_seconds: 10.0, leader_seconds: 3.0 }
    }
}

impl Leases {
    /// How long a task lives without a word of its gateway.
    pub fn task(&self) -> Duration {
        Duration::try_from_secs_f64(self.task_seconds).unwrap_or_default()
    }

    /// How long a backend lives without a word.
    pub fn backend(&self) -> Duration {
        Duration::try_from_secs_f64(self.backend_seconds).unwrap_or_default()
    }

    /// How long the scheduler that leads does so without a word.
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

/// One class.
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

/// A count or a share.
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
    /// Its name.
    #[serde(skip)]
    pub name: String,
    /// The program and its arguments; `{main}`, `{format}` and `{result}` are replaced. No shell is
    /// involved.
    pub command: Vec<String>,
    /// The same for an interactive session; without it there is none.
    #[serde(default)]
    pub interactive: Vec<String>,
    /// What the names of input files end in, such as `.asy`.
    #[serde(default)]
    pub input: String,
    /// The result formats and their media types; the first by name is the usual one unless `format` says.
    #[serde(default)]
    pub formats: BTreeMap<String, String>,
    /// The format of those who ask for none.
    #[serde(default)]
    pub format: Option<String>,
    /// The file with the result; `{format}` is replaced.
    #[serde(default)]
    pub result: Option<String>,
    /// Arguments to add for each level of verbosity.
    #[serde(default)]
    pub verbosity: Vec<Vec<String>>,
    /// The whole environment of the program.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// What it may read beside `/usr`.
    #[serde(default)]
    pub read: Vec<PathBuf>,
    /// What the page shows to begin with.
    #[serde(default)]
    pub example: String,
}

/// What a task may use.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most bytes of all input files together.
    pub input_bytes_max: usize,
    /// Most input files.
    pub input_files_max: usize,
    /// Most bytes of one output stream.
    pub output_bytes_max: usize,
    /// Most bytes of the result.
    pub result_bytes_max: u64,
    /// Most memory of one process, in bytes.
    pub memory_bytes_max: u64,
    /// Most processes and threads of a task.
    pub processes_max: u64,
    /// Most bytes of one file that the program writes.
    pub file_bytes_max: u64,
    /// Most memory of all processes of a task together, in bytes.
    pub task_memory_bytes_max: u64,
    /// Most bytes on disk of a task.
    pub task_disk_bytes_max: u64,
    /// Most files of a task.
    pub task_files_max: usize,
    /// Most memory of all tasks together, in bytes.
    pub pool_memory_bytes_max: Option<u64>,
    /// Most bytes on disk of all tasks together.
    pub pool_disk_bytes_max: Option<u64>,
    /// Most bytes of input files that all clients together may keep waiting.
    pub held_bytes_max: usize,
    /// Most bytes of files that are kept so that clients need not send them again; 0 keeps none.
    pub restore_bytes_max: usize,
    /// How long a program may take to end when it is asked to, in seconds; then it is killed.
    pub kill_after_seconds: f64,
}

/// How what is run is kept apart.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Isolation {
    /// Use bubblewrap where it works.
    pub bubblewrap: bool,
    /// The first of the user numbers that programs run under when the pool runs as root.
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
            isolation: Isolation::default(),
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

impl Default for Isolation {
    fn default() -> Self {
        Isolation { bubblewrap: true, first_uid: 60_600 }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It is not the YAML that is wanted.
    #[error("{0}")]
    Yaml(String),
    /// The classes do not fit together.
    #[error("{0}")]
    Rules(#[from] RulesError),
    /// A value that makes no sense.
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
            return wrong("name at least one program under `programs`".into());
        }
        for (name, program) in &self.programs {
            program.check(name)?;
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
                let text = format!("policy {other:?} is none of random, youngest and oldest");
                return Err(ConfigError::Value(text));
            }
        };
        rules.patient = self.patient;
        rules.queue_max = self.queue_max;
        let wait = self.wait_seconds_max.map(|wait| seconds(wait, "wait_seconds_max"));
        rules.wait_max = wait.transpose()?.map(Span::from);
        Ok(rules)
    }

    /// How long a program may take to end when it is asked to.
    pub fn kill_after(&self) -> Duration {
        Duration::try_from_secs_f64(self.limits.kill_after_seconds).unwrap_or_default()
    }
}

impl Program {
    fn check(&self, name: &str) -> Result<(), ConfigError> {
        let wrong = |text: &str| Err(ConfigError::Value(format!("program {name:?}: {text}")));
        let plain = |char: char| char.is_ascii_alphanumeric() || char == '-' || char == '_';
        if name.is_empty() || !name.chars().all(plain) {
            return wrong("the name may have letters, digits, - and _ only");
        }
        for command in [&self.command, &self.interactive] {
            if command.first().is_some_and(|program| !program.starts_with('/')) {
                return wrong("give the whole path of the program to run");
            }
        }
        if self.command.is_empty() {
            return wrong("`command` is missing");
        }
        if self.result.as_ref().is_some_and(|result| result.contains('/')) {
            return wrong("the result is a file in the task's own folder, so a plain name");
        }
        if self.result.is_some() && self.formats.is_empty() {
            return wrong("`result` needs at least one of `formats`, or it is never sent");
        }
        match &self.format {
            Some(format) if !self.formats.contains_key(format) => {
                wrong("`format` is none of `formats`")
            }
            _ => Ok(()),
        }
    }

    /// The format of those who ask for none.
    pub fn usual_format(&self) -> Option<&str> {
        self.format.as_deref().or_else(|| self.formats.keys().next().map(String::as_str))
    }
}

impl LimitConfig {
    fn read(&self) -> Result<Limit, ConfigError> {
        match self {
            LimitConfig::Count(count) => Ok(Limit::Count(*count)),
            LimitConfig::Share(text) => {
                let number = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
                let wrong = || ConfigError::Value(format!("{text:?} is no limit; say 4 or 50%"));
                number.map(Limit::Percent).ok_or_else(wrong)
            }
        }
    }
}

fn seconds(value: f64, what: &str) -> Result<Duration, ConfigError> {
    let duration = Duration::try_from_secs_f64(value).ok();
    let fits = duration.filter(|duration| Span::from(*duration) < Span::FOREVER);
    fits.ok_or_else(|| ConfigError::Value(format!("{what}: {value} is no number of seconds")))
}
