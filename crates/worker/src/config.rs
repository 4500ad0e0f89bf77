//! Reads the settings of workers from a YAML file and applies its changes while they run.
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
//!         run_max: 600             # seconds
//!         queue:
//!           1: {batch_size: 100, target_latency: 5}
//! ```
//!
//! An editor empties a file before it writes it. So a changed file is read again after a moment and applied only if both
//! readings are equal; a file that is empty, not YAML, or without an entry for the worker changes nothing.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use taskyard_core::limits::BATCH_TASKS_MAX;

use crate::metrics::count;
use crate::settings::{PROCESSORS_MAX, RUN_SECONDS_MAX, Settings, VISIBILITY_SECONDS_MAX};
use crate::worker::Worker;

/// How often the file is read.
const POLL_PERIOD: Duration = Duration::from_secs(1);
/// How soon a changed file is read again: it may not be written completely.
const RECHECK_PERIOD: Duration = Duration::from_millis(250);

/// The settings of a service's workers.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    service: String,
    /// The text that was last applied, or why it could not be read.
    applied: Option<FileText>,
    /// A different text that was read last and is not applied yet.
    pending: Option<FileText>,
    /// The settings of the worker before the first reading, valid for everything that the file does not set.
    base: Option<Settings>,
}

/// The text of a file, or why it cannot be read.
type FileText = Result<String, String>;

/// Any YAML value.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum YamlNode {
    Map(BTreeMap<YamlKey, YamlNode>),
    Number(i64),
    Other(serde::de::IgnoredAny),
}

/// A key as it is written; the number of a queue is a key too.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct YamlKey(String);

impl<'de> Deserialize<'de> for YamlKey {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(i64),
            Text(String),
        }
        Ok(match Written::deserialize(from)? {
            Written::Number(number) => YamlKey(number.to_string()),
            Written::Text(text) => YamlKey(text),
        })
    }
}

impl Borrow<str> for YamlKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl ConfigFile {
    /// The settings of this service in this file. Does not read the file yet.
    pub fn new(path: impl Into<PathBuf>, service: &str) -> Self {
        let (path, service) = (path.into(), service.into());
        ConfigFile { path, service, applied: None, pending: None, base: None }
    }

    /// Reads the file if it has changed and applies its settings of this worker; settings that it does not contain are as
    /// before the first reading. Invalid settings keep their value, are counted and returned as messages.
    pub fn load(&mut self, worker: &Worker) -> Vec<String> {
        let text = self.read();
        self.apply(text, worker)
    }

    /// Applies a change only if the next reading gives the same text: the file may not be written completely. The second
    /// result is whether to read again soon.
    fn poll(&mut self, worker: &Worker) -> (Vec<String>, bool) {
        let text = self.read();
        let stable = self.applied.as_ref() == Some(&text) || self.pending.as_ref() == Some(&text);
        if stable {
            return (self.apply(text, worker), false);
        }
        self.pending = Some(text);
        (Vec::new(), true)
    }

    fn read(&self) -> FileText {
        fs::read_to_string(&self.path).map_err(|error| error.to_string())
    }

    fn apply(&mut self, text: FileText, worker: &Worker) -> Vec<String> {
        self.pending = None;
        if self.applied.as_ref() == Some(&text) {
            // Reported once, not each second.
            return Vec::new();
        }
        let problems = match &text {
            Ok(text) => self.set(text, worker),
            Err(error) => vec![format!("cannot read {}: {error}", self.path.display())],
        };
        self.applied = Some(text);
        count(worker.metrics().config_errors(), problems.len());
        problems
    }

    fn set(&mut self, text: &str, worker: &Worker) -> Vec<String> {
        let now = worker.settings();
        let base = self.base.get_or_insert_with(|| now.clone());
        let target = SettingsTarget {
            service: &self.service,
            name: worker.name(),
            queues: &worker.queue_nums(),
        };
        let (settings, mut problems) = apply(text, &target, base, now);
        if let Err(error) = worker.reconfigure(settings) {
            problems.push(error.to_string());
        }
        problems
    }

    /// Reads the file each second until the worker has ended; problems go to the log.
    pub async fn follow(mut self, worker: Worker) {
        loop {
            let (problems, soon) = self.poll(&worker);
            for problem in problems {
                tracing::warn!(worker = worker.name(), "{problem}; keeping the last valid values");
            }
            let pause = if soon { RECHECK_PERIOD } else { POLL_PERIOD };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = worker.ended() => return,
            }
        }
    }
}

/// The worker that the settings are for.
struct SettingsTarget<'a> {
    service: &'a str,
    name: &'a str,
    queues: &'a [u32],
}

/// The new settings, and the problems of the text. A setting that is missing is taken from `base`, an invalid one from
/// `now`; a text without an entry for the worker changes nothing.
fn apply(
    text: &str,
    target: &SettingsTarget<'_>,
    base: &Settings,
    now: Settings,
) -> (Settings, Vec<String>) {
    let SettingsTarget { service, name, .. } = *target;
    let root: YamlNode = match serde_saphyr::from_str(text) {
        _ if text.trim().is_empty() => {
            return (now, vec!["the settings file is empty".into()]);
        }
        Ok(root) => root,
        Err(error) => return (now, vec![format!("the settings file is not YAML: {error}")]),
    };
    let path = format!("{service}/worker/queue/{name}");
    let worker = [service, "worker", "queue", name].into_iter().try_fold(&root, YamlNode::child);
    let Some(worker) = worker else {
        return (now, vec![format!("the settings file has no {path}")]);
    };
    let mut reading = SettingsReader { queues: target.queues, problems: Vec::new() };
    let settings = reading.worker(worker, &path, base, &now);
    (settings, reading.problems)
}

/// Reads the settings of one worker.
struct SettingsReader<'a> {
    /// The queues that the worker has.
    queues: &'a [u32],
    problems: Vec<String>,
}

impl SettingsReader<'_> {
    fn worker(&mut self, node: &YamlNode, path: &str, base: &Settings, now: &Settings) -> Settings {
        if !self.keys(node, path, &["max_processors", "visibility_timeout", "run_max", "queue"]) {
            return now.clone();
        }
        let mut settings = base.clone();
        match self.number(node, "max_processors", path, PROCESSORS_MAX) {
            Setting::Missing => {}
            Setting::Valid(most) => settings.max_processors = most,
            Setting::Invalid => settings.max_processors = now.max_processors,
        }
        match self.seconds(node, "visibility_timeout", path, VISIBILITY_SECONDS_MAX) {
            Setting::Missing => {}
            Setting::Valid(timeout) => settings.visibility_timeout = timeout,
            Setting::Invalid => settings.visibility_timeout = now.visibility_timeout,
        }
        match self.seconds(node, "run_max", path, RUN_SECONDS_MAX) {
            Setting::Missing => {}
            Setting::Valid(run_max) => settings.run_max = Some(run_max),
            Setting::Invalid => settings.run_max = now.run_max,
        }
        match node.child("queue") {
            None => {}
            Some(YamlNode::Map(queues)) => {
                for (YamlKey(num), queue) in queues {
                    let path = format!("{path}/queue/{num}");
                    match num.parse() {
                        Ok(num) => self.queue(num, queue, &path, now, &mut settings),
                        Err(_) => self.problems.push(format!("{path} is not a queue number")),
                    }
                }
            }
            Some(_) => {
                self.problems.push(format!("{path}/queue must be a map of queue numbers"));
                settings.batch_sizes.clone_from(&now.batch_sizes);
                settings.target_latencies.clone_from(&now.target_latencies);
            }
        }
        settings
    }

    fn queue(
        &mut self,
        num: u32,
        node: &YamlNode,
        path: &str,
        now: &Settings,
        settings: &mut Settings,
    ) {
        if !self.queues.contains(&num) {
            let known: Vec<_> = self.queues.iter().map(u32::to_string).collect();
            let known = known.join(", ");
            self.problems
                .push(format!("{path}: the worker has no queue {num}; its queues are {known}"));
            return;
        }
        let readable = self.keys(node, path, &["batch_size", "target_latency"]);
        let size = match self.number(node, "batch_size", path, BATCH_TASKS_MAX) {
            Setting::Missing if readable => None,
            Setting::Valid(size) => Some(size),
            Setting::Missing | Setting::Invalid => now.batch_sizes.get(&num).copied(),
        };
        settings.batch_sizes.extend(size.map(|size| (num, size)));
        let target = match self.seconds(node, "target_latency", path, VISIBILITY_SECONDS_MAX) {
            Setting::Missing if readable => None,
            Setting::Valid(target) => Some(target),
            Setting::Missing | Setting::Invalid => now.target_latencies.get(&num).copied(),
        };
        settings.target_latencies.extend(target.map(|target| (num, target)));
    }

    /// Reports unknown keys: a misspelt one would be ignored silently. Returns whether the node is a map.
    fn keys(&mut self, node: &YamlNode, path: &str, known: &[&str]) -> bool {
        let YamlNode::Map(map) = node else {
            self.problems.push(format!("{path} must be a map with {}", known.join(", ")));
            return false;
        };
        for YamlKey(key) in map.keys().filter(|YamlKey(key)| !known.contains(&key.as_str())) {
            let known = known.join(", ");
            self.problems.push(format!("{path}/{key} is not a setting; use {known}"));
        }
        true
    }

    fn number(&mut self, node: &YamlNode, key: &str, path: &str, max: usize) -> Setting<usize> {
        let Some(value) = node.child(key) else { return Setting::Missing };
        if let Some(good) = value.number().filter(|number| (1..=max).contains(number)) {
            return Setting::Valid(good);
        }
        self.problems.push(format!("{path}/{key} must be a whole number from 1 to {max}"));
        Setting::Invalid
    }

    fn seconds(&mut self, node: &YamlNode, key: &str, path: &str, max: u64) -> Setting<Duration> {
        match self.number(node, key, path, max as usize) {
            Setting::Valid(seconds) => Setting::Valid(Duration::from_secs(seconds as u64)),
            Setting::Missing => Setting::Missing,
            Setting::Invalid => Setting::Invalid,
        }
    }
}

/// One setting in the file.
enum Setting<T> {
    Missing,
    Valid(T),
    Invalid,
}

impl YamlNode {
    fn child(&self, key: &str) -> Option<&YamlNode> {
        match self {
            YamlNode::Map(map) => map.get(key),
            _ => None,
        }
    }

    fn number(&self) -> Option<usize> {
        match self {
            YamlNode::Number(number) => usize::try_from(*number).ok(),
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

    const MAILER: SettingsTarget<'_> =
        SettingsTarget { service: "shop", name: "mailer", queues: &[1, 2, 3] };

    fn applied(text: &str) -> (Settings, Vec<String>) {
        let default = Settings::default();
        apply(text, &MAILER, &default, default.clone())
    }

    #[test]
    fn the_file_nests_the_segments_of_the_path() {
        let (settings, problems) = applied(GOOD);
        assert_eq!(problems, [""; 0]);
        assert_eq!(
            (settings.max_processors, settings.batch_size_of(1), settings.batch_size_of(2)),
            (4, 100, 5)
        );
        assert_eq!(settings.visibility_timeout, Duration::from_secs(30));
        assert_eq!(settings.batch_size_of(3), 10);
    }

    /// A misspelt name or key was ignored silently.
    #[test]
    fn unknown_names_and_keys_are_reported() {
        let default = Settings::default();
        for (service, name) in [("other", "mailer"), ("shop", "mailr")] {
            let target = SettingsTarget { service, name, ..MAILER };
            let (settings, problems) = apply(GOOD, &target, &default, default.clone());
            assert_eq!(settings, default);
            let wanted = format!("the settings file has no {service}/worker/queue/{name}");
            assert_eq!(problems, [wanted]);
        }
        for (good, bad, wanted) in [
            ("max_processors", "max_procesors", "mailer/max_procesors is not a setting; use max"),
            ("{batch_size: 100}", "{batchsize: 100}", "queue/1/batchsize is not a setting; use"),
            ("1: {", "one: {", "queue/one is not a queue number"),
            ("{batch_size: 100}", "7", "queue/1 must be a map with batch_size, target_latency"),
        ] {
            let problems = applied(&GOOD.replace(good, bad)).1;
            assert_eq!(problems.len(), 1, "{problems:?}");
            assert!(problems[0].contains(wanted), "{problems:?}");
        }
        let none = "shop: {worker: {queue: {mailer: {queue: 7}}}}";
        assert!(applied(none).1[0].contains("queue must be a map of queue numbers"));
    }

    /// A value that was removed from the file stayed valid until the next restart.
    #[test]
    fn a_removed_setting_returns_to_its_first_value() {
        let now = applied(GOOD).0;
        let text =
            "shop: {worker: {queue: {mailer: {max_processors: x, queue: {2: {batch_size: 0}}}}}}";
        let (settings, problems) = apply(text, &MAILER, &Settings::default(), now);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(
            (settings.max_processors, settings.batch_size_of(2)),
            (4, 5),
            "the last valid ones"
        );
        assert_eq!(settings.visibility_timeout, Settings::default().visibility_timeout);
        assert_eq!(settings.batch_size_of(1), 10);
    }

    #[test]
    fn an_invalid_value_keeps_the_last_valid_one_and_is_reported() {
        for bad in ["0", "-1", "many", "1.5", "[]", "9999999", "~"] {
            let text = GOOD.replace("max_processors: 4", &format!("max_processors: {bad}"));
            let (settings, problems) = applied(&text);
            assert_eq!((settings.max_processors, settings.batch_size_of(1)), (1, 100), "{bad}");
            assert_eq!(problems.len(), 1, "{bad}");
            let path = "shop/worker/queue/mailer/max_processors must be a whole number";
            assert!(problems[0].starts_with(path), "{problems:?}");
        }
        let (settings, problems) = applied("shop: [");
        assert_eq!(settings, Settings::default());
        assert!(problems[0].contains("not YAML"), "{problems:?}");
        let text = GOOD.replace("batch_size: 100", "batch_size: x");
        assert!(applied(&text).1[0].contains("queue/1/batch_size"));
    }

    /// The number of a queue that the worker does not have was accepted silently, and no batch size changed.
    #[test]
    fn an_unknown_queue_is_reported() {
        let (settings, problems) = applied(&GOOD.replace("2: {", "7: {"));
        let wanted =
            "shop/worker/queue/mailer/queue/7: the worker has no queue 7; its queues are 1, 2, 3";
        assert_eq!(problems, [wanted]);
        assert_eq!((settings.batch_size_of(1), settings.batch_size_of(7)), (100, 10));
    }

    #[test]
    fn run_max_is_a_setting() {
        let text = GOOD.replace("visibility_timeout: 30", "run_max: 90");
        let (settings, problems) = applied(&text);
        assert_eq!(problems, [""; 0]);
        assert_eq!(settings.run_max, Some(Duration::from_secs(90)));
        assert_eq!(applied(GOOD).0.run_max, None, "ten times the visibility timeout");
        assert_eq!(applied(&text.replace("90", "0")).1.len(), 1);
    }

    /// An editor empties a file before it writes it: the empty file reset a running worker to the values of its code, and
    /// the log said that the last valid values were kept.
    #[test]
    fn an_incomplete_file_changes_nothing() {
        let now = applied(GOOD).0;
        let cuts =
            ["", "\n", "# settings\n", "shop:", "shop:\n  worker:\n    queue:\n      mailer:\n"];
        for text in cuts {
            let (settings, problems) = apply(text, &MAILER, &Settings::default(), now.clone());
            assert_eq!(settings, now, "{text:?}");
            assert_eq!(problems.len(), 1, "{text:?}: {problems:?}");
        }
        let empty = "shop: {worker: {queue: {mailer: {}}}}";
        let (settings, problems) = apply(empty, &MAILER, &Settings::default(), now.clone());
        assert_eq!((settings, problems), (Settings::default(), vec![]), "emptied on purpose");
        let cut = "shop: {worker: {queue: {mailer: {queue: {1: }}}}}";
        let (settings, problems) = apply(cut, &MAILER, &Settings::default(), now);
        assert_eq!((settings.batch_size_of(1), problems.len()), (100, 1), "{problems:?}");
    }

    /// A file that was written in two parts: the settings of the second part were reset until it was written.
    #[cfg(feature = "testing")]
    #[test]
    fn a_changed_file_is_applied_after_two_equal_readings() {
        use crate::testing::TestKit;
        use crate::{Dispatcher, Handler, HandlerStats, RawTask};
        let idle = Handler::raw(|_, _, _: Vec<RawTask>| async { Ok(HandlerStats::default()) });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let kit = TestKit::new();
        let worker = kit.worker(Dispatcher::new([]).with_queue(1, "mail", idle)).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yaml");
        let mut config = ConfigFile::new(&path, "shop");
        let whole = GOOD.replace("mailer", "test").replace("          2: {batch_size: 5}\n", "");
        let (half, _) = whole.split_once("        queue:\n").unwrap();
        let mut poll = |text: &str| {
            fs::write(&path, text).unwrap();
            let (problems, again) = config.poll(&worker);
            (problems.len(), again, worker.settings().batch_size_of(1))
        };
        assert_eq!(poll(&whole), (0, true, 10), "it may not be written completely");
        assert_eq!(poll(&whole), (0, false, 100));
        for cut in ["", half] {
            assert_eq!(poll(cut), (0, true, 100), "{cut:?}");
            assert_eq!(poll(&whole), (0, false, 100), "{cut:?}");
        }
        assert_eq!(poll(half), (0, true, 100));
        assert_eq!(poll(half), (0, false, 10), "removed on purpose");
        assert_eq!(poll(""), (0, true, 10));
        assert_eq!(poll(""), (1, false, 10), "reported once");
        assert_eq!(poll(""), (0, false, 10));
    }
}
