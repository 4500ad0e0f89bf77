//! Settings of workers in one YAML file, read again when it changes.
//!
//! The file nests the segments of the settings' paths:
//!
//! ```yaml
//! shop:                        # {service}/worker/queue/{name}/…
//!   worker:
//!     queue:
//!       mailer:
//!         max_processors: 4
//!         visibility_timeout: 60   # seconds
//!         queue:
//!           1: {batch_size: 100, target_latency: 5}
//! ```

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use taskyard_core::limits::BATCH_TASKS_MAX;

use super::metrics::count;
use super::settings::{PROCESSORS_MAX, Settings, VISIBILITY_SECONDS_MAX};
use super::worker::Worker;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The settings of a service's workers.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    service: String,
    /// What the file said when it was last read.
    seen: Option<String>,
    /// What holds for what the file does not say: the settings that the worker had before.
    unsaid: Option<Settings>,
}

/// Anything that YAML can say.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Node {
    Map(BTreeMap<Key, Node>),
    Number(i64),
    Other(serde::de::IgnoredAny),
}

/// A key as it is written: a queue's number is one too.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(i64),
            Text(String),
        }
        Ok(match Written::deserialize(from)? {
            Written::Number(number) => Key(number.to_string()),
            Written::Text(text) => Key(text),
        })
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl ConfigFile {
    /// The settings of this service in this file, not yet read.
    pub fn new(path: impl Into<PathBuf>, service: &str) -> Self {
        ConfigFile { path: path.into(), service: service.into(), seen: None, unsaid: None }
    }

    /// Reads the file if it has changed and sets what it says about this worker; what it does not say is as it was
    /// before the first reading. What is wrong is left as it was, counted and told.
    pub fn load(&mut self, worker: &Worker) -> Vec<String> {
        let complaints = self.read(worker);
        count(worker.metrics().config_errors(), complaints.len());
        complaints
    }

    fn read(&mut self, worker: &Worker) -> Vec<String> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) => {
                // Told once, not each second.
                let told = self.seen.replace(error.to_string());
                let again = told.is_some_and(|told| told == error.to_string());
                let complaint = format!("cannot read {}: {error}", self.path.display());
                return if again { Vec::new() } else { vec![complaint] };
            }
        };
        if self.seen.as_ref() == Some(&text) {
            return Vec::new();
        }
        let now = worker.settings();
        let unsaid = self.unsaid.get_or_insert_with(|| now.clone());
        let (settings, mut complaints) = apply(&text, &self.service, worker.name(), unsaid, now);
        self.seen = Some(text);
        if let Err(error) = worker.reconfigure(settings) {
            complaints.push(error.to_string());
        }
        complaints
    }

    /// Looks at the file each second until the worker has ended; what is wrong goes to the log.
    pub async fn follow(mut self, worker: Worker) {
        let mut looking = tokio::time::interval(LOOK_EVERY);
        loop {
            tokio::select! {
                _ = looking.tick() => {}
                () = worker.ended() => return,
            }
            for complaint in self.load(&worker) {
                tracing::warn!(worker = worker.name(), "{complaint}; the last good values stay");
            }
        }
    }
}

/// What the settings become, and what is wrong with the text. What the text does not say is `unsaid`'s, what it says
/// wrongly is as it is `now`.
fn apply(
    text: &str,
    service: &str,
    name: &str,
    unsaid: &Settings,
    now: Settings,
) -> (Settings, Vec<String>) {
    let root: Node = match serde_saphyr::from_str(text) {
        Ok(root) => root,
        Err(error) => return (now, vec![format!("the settings are no YAML: {error}")]),
    };
    let path = format!("{service}/worker/queue/{name}");
    let worker = [service, "worker", "queue", name].into_iter().try_fold(&root, Node::child);
    let Some(worker) = worker else {
        return (unsaid.clone(), vec![format!("nothing is said about {path}")]);
    };
    let mut reading = Reading { complaints: Vec::new() };
    let settings = reading.worker(worker, &path, unsaid, &now);
    (settings, reading.complaints)
}

/// Goes through the tree of one worker.
struct Reading {
    complaints: Vec<String>,
}

impl Reading {
    fn worker(&mut self, node: &Node, path: &str, unsaid: &Settings, now: &Settings) -> Settings {
        let mut settings = unsaid.clone();
        self.keys(node, path, &["max_processors", "visibility_timeout", "queue"]);
        match self.number(node, "max_processors", path, PROCESSORS_MAX) {
            Said::Nothing => {}
            Said::Good(most) => settings.max_processors = most,
            Said::Bad => settings.max_processors = now.max_processors,
        }
        let longest = VISIBILITY_SECONDS_MAX as usize;
        match self.number(node, "visibility_timeout", path, longest) {
            Said::Nothing => {}
            Said::Good(seconds) => {
                settings.visibility_timeout = Duration::from_secs(seconds as u64)
            }
            Said::Bad => settings.visibility_timeout = now.visibility_timeout,
        }
        match node.child("queue") {
            None => {}
            Some(Node::Map(queues)) => {
                for (Key(num), queue) in queues {
                    let path = format!("{path}/queue/{num}");
                    match num.parse() {
                        Ok(num) => self.queue(num, queue, &path, now, &mut settings),
                        Err(_) => self.complaints.push(format!("{path} is no number of a queue")),
                    }
                }
            }
            Some(_) => {
                self.complaints.push(format!("{path}/queue must have the numbers of queues"));
                settings.batch_sizes.clone_from(&now.batch_sizes);
                settings.target_latencies.clone_from(&now.target_latencies);
            }
        }
        settings
    }

    fn queue(
        &mut self,
        num: u32,
        node: &Node,
        path: &str,
        now: &Settings,
        settings: &mut Settings,
    ) {
        self.keys(node, path, &["batch_size", "target_latency"]);
        let size = match self.number(node, "batch_size", path, BATCH_TASKS_MAX) {
            Said::Nothing => None,
            Said::Good(size) => Some(size),
            Said::Bad => now.batch_sizes.get(&num).copied(),
        };
        settings.batch_sizes.extend(size.map(|size| (num, size)));
        let longest = VISIBILITY_SECONDS_MAX as usize;
        let target = match self.number(node, "target_latency", path, longest) {
            Said::Nothing => None,
            Said::Good(seconds) => Some(Duration::from_secs(seconds as u64)),
            Said::Bad => now.target_latencies.get(&num).copied(),
        };
        settings.target_latencies.extend(target.map(|target| (num, target)));
    }

    /// Complains of keys that mean nothing: a misspelt one would be passed over for ever.
    fn keys(&mut self, node: &Node, path: &str, known: &[&str]) {
        let Node::Map(map) = node else {
            self.complaints.push(format!("{path} must have {}", known.join(", ")));
            return;
        };
        for Key(key) in map.keys().filter(|Key(key)| !known.contains(&key.as_str())) {
            let known = known.join(", ");
            self.complaints.push(format!("{path}/{key} is no setting; there are {known}"));
        }
    }

    fn number(&mut self, node: &Node, key: &str, path: &str, most: usize) -> Said {
        let Some(value) = node.child(key) else { return Said::Nothing };
        if let Some(good) = value.number().filter(|number| (1..=most).contains(number)) {
            return Said::Good(good);
        }
        self.complaints.push(format!("{path}/{key} must be a whole number from 1 to {most}"));
        Said::Bad
    }
}

/// What the file says about a setting.
enum Said {
    Nothing,
    Good(usize),
    Bad,
}

impl Node {
    fn child(&self, key: &str) -> Option<&Node> {
        match self {
            Node::Map(map) => map.get(key),
            _ => None,
        }
    }

    fn number(&self) -> Option<usize> {
        match self {
            Node::Number(number) => usize::try_from(*number).ok(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "shop:\n  worker:\n    queue:\n      mailer:\n        max_processors: 4\n\
                        \x20       visibility_timeout: 30\n        queue:\n          1: {batch_size: 100}\n\
                        \x20         2: {batch_size: 5}\n";

    fn applied(text: &str) -> (Settings, Vec<String>) {
        let default = Settings::default();
        apply(text, "shop", "mailer", &default, default.clone())
    }

    #[test]
    fn the_tree_is_the_path_of_the_settings() {
        let (settings, complaints) = applied(GOOD);
        assert_eq!(complaints, [""; 0]);
        assert_eq!(
            (settings.max_processors, settings.batch_of(1), settings.batch_of(2)),
            (4, 100, 5)
        );
        assert_eq!(settings.visibility_timeout, Duration::from_secs(30));
        assert_eq!(settings.batch_of(3), 10);
    }

    /// A misspelt name or key was passed over without a word.
    #[test]
    fn what_means_nothing_is_told() {
        let default = Settings::default();
        for (service, name) in [("other", "mailer"), ("shop", "mailr")] {
            let (settings, complaints) = apply(GOOD, service, name, &default, default.clone());
            assert_eq!(settings, default);
            let wanted = format!("nothing is said about {service}/worker/queue/{name}");
            assert_eq!(complaints, [wanted]);
        }
        for (good, bad, wanted) in [
            (
                "max_processors",
                "max_procesors",
                "mailer/max_procesors is no setting; there are max",
            ),
            ("{batch_size: 100}", "{batchsize: 100}", "queue/1/batchsize is no setting; there are"),
            ("1: {", "one: {", "queue/one is no number of a queue"),
            ("{batch_size: 100}", "7", "queue/1 must have batch_size, target_latency"),
        ] {
            let complaints = applied(&GOOD.replace(good, bad)).1;
            assert_eq!(complaints.len(), 1, "{complaints:?}");
            assert!(complaints[0].contains(wanted), "{complaints:?}");
        }
        let none = "shop: {worker: {queue: {mailer: {queue: 7}}}}";
        assert!(applied(none).1[0].contains("queue must have the numbers of queues"));
    }

    /// A value that was removed from the file held until the next restart, and no longer then.
    #[test]
    fn what_is_no_longer_said_is_as_before() {
        let now = applied(GOOD).0;
        let text =
            "shop: {worker: {queue: {mailer: {max_processors: x, queue: {2: {batch_size: 0}}}}}}";
        let (settings, complaints) = apply(text, "shop", "mailer", &Settings::default(), now);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert_eq!((settings.max_processors, settings.batch_of(2)), (4, 5), "the last good ones");
        assert_eq!(settings.visibility_timeout, Settings::default().visibility_timeout);
        assert_eq!(settings.batch_of(1), 10);
    }

    #[test]
    fn a_bad_value_keeps_the_last_good_one_and_says_so() {
        for bad in ["0", "-1", "many", "1.5", "[]", "9999999", "~"] {
            let text = GOOD.replace("max_processors: 4", &format!("max_processors: {bad}"));
            let (settings, complaints) = applied(&text);
            assert_eq!((settings.max_processors, settings.batch_of(1)), (1, 100), "{bad}");
            assert_eq!(complaints.len(), 1, "{bad}");
            let path = "shop/worker/queue/mailer/max_processors must be a whole number";
            assert!(complaints[0].starts_with(path), "{complaints:?}");
        }
        let (settings, complaints) = applied("shop: [");
        assert_eq!(settings, Settings::default());
        assert!(complaints[0].contains("no YAML"), "{complaints:?}");
        let text = GOOD.replace("batch_size: 100", "batch_size: x");
        assert!(applied(&text).1[0].contains("queue/1/batch_size"));
    }
}
