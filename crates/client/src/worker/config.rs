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
        ConfigFile { path: path.into(), service: service.into(), seen: None }
    }

    /// Reads the file if it has changed and sets what it says about this worker. What is wrong is left as it
    /// was, and told.
    pub fn load(&mut self, worker: &Worker) -> Vec<String> {
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
        let (settings, mut complaints) =
            apply(&text, &self.service, worker.name(), worker.settings());
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
                tracing::warn!(worker = worker.name(), "{complaint}; the last good value stays");
            }
        }
    }
}

/// What the settings become, and what is wrong with the text.
fn apply(text: &str, service: &str, name: &str, mut settings: Settings) -> (Settings, Vec<String>) {
    let root: Node = match serde_saphyr::from_str(text) {
        Ok(root) => root,
        Err(error) => return (settings, vec![format!("the settings are no YAML: {error}")]),
    };
    let mut complaints = Vec::new();
    let worker = [service, "worker", "queue", name].into_iter().try_fold(&root, Node::child);
    let Some(worker) = worker else { return (settings, complaints) };
    let path = format!("{service}/worker/queue/{name}");
    let mut read = |node: &Node, key: &str, path: &str, most: usize| {
        let value = node.child(key)?;
        let good = value.number().filter(|number| (1..=most).contains(number));
        if good.is_none() {
            complaints.push(format!("{path}/{key} must be a whole number from 1 to {most}"));
        }
        good
    };
    if let Some(most) = read(worker, "max_processors", &path, PROCESSORS_MAX) {
        settings.max_processors = most;
    }
    let longest = VISIBILITY_SECONDS_MAX as usize;
    if let Some(seconds) = read(worker, "visibility_timeout", &path, longest) {
        settings.visibility_timeout = Duration::from_secs(seconds as u64);
    }
    let Some(Node::Map(queues)) = worker.child("queue") else { return (settings, complaints) };
    for (Key(id), queue) in queues {
        let path = format!("{path}/queue/{id}");
        let size = read(queue, "batch_size", &path, BATCH_TASKS_MAX);
        let target = read(queue, "target_latency", &path, longest);
        let Ok(id) = id.parse() else { continue };
        if let Some(size) = size {
            settings.batch_sizes.insert(id, size);
        }
        if let Some(seconds) = target {
            settings.target_latencies.insert(id, Duration::from_secs(seconds as u64));
        }
    }
    (settings, complaints)
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
        apply(text, "shop", "mailer", Settings::default())
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
        assert_eq!(apply(GOOD, "other", "mailer", Settings::default()).0, Settings::default());
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
