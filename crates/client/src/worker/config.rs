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
//!         run_max: 600             # seconds
//!         queue:
//!           1: {batch_size: 100, target_latency: 5}
//! ```
//!
//! An editor empties a file before it writes it. So a file that follows a running worker is read again after a moment, and
//! only what it says twice counts; one that is empty, no YAML, or without the worker changes nothing.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use taskyard_core::limits::BATCH_TASKS_MAX;

use super::metrics::count;
use super::settings::{PROCESSORS_MAX, RUN_SECONDS_MAX, Settings, VISIBILITY_SECONDS_MAX};
use super::worker::Worker;

/// How often the file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How soon a file that has changed is looked at again: it may still be written.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// The settings of a service's workers.
#[derive(Debug)]
pub struct ConfigFile {
    path: PathBuf,
    service: String,
    /// What the file said when it was last applied, or why it could not be read.
    seen: Option<Text>,
    /// What it said at the latest look, if that was something else.
    changing: Option<Text>,
    /// What holds for what the file does not say: the settings that the worker had before.
    unsaid: Option<Settings>,
}

/// What a file says, or why it cannot be read.
type Text = Result<String, String>;

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
        let (path, service) = (path.into(), service.into());
        ConfigFile { path, service, seen: None, changing: None, unsaid: None }
    }

    /// Reads the file if it has changed and sets what it says about this worker; what it does not say is as it was
    /// before the first reading. What is wrong is left as it was, counted and told.
    pub fn load(&mut self, worker: &Worker) -> Vec<String> {
        let text = self.read();
        self.apply(text, worker)
    }

    /// The same, but a change counts only when the file says the same at the next look: it may still be written. The second
    /// answer is whether to look again soon.
    fn look(&mut self, worker: &Worker) -> (Vec<String>, bool) {
        let text = self.read();
        let stable = self.seen.as_ref() == Some(&text) || self.changing.as_ref() == Some(&text);
        if stable {
            return (self.apply(text, worker), false);
        }
        self.changing = Some(text);
        (Vec::new(), true)
    }

    fn read(&self) -> Text {
        fs::read_to_string(&self.path).map_err(|error| error.to_string())
    }

    fn apply(&mut self, text: Text, worker: &Worker) -> Vec<String> {
        self.changing = None;
        if self.seen.as_ref() == Some(&text) {
            // Told once, not each second.
            return Vec::new();
        }
        let complaints = match &text {
            Ok(text) => self.set(text, worker),
            Err(error) => vec![format!("cannot read {}: {error}", self.path.display())],
        };
        self.seen = Some(text);
        count(worker.metrics().config_errors(), complaints.len());
        complaints
    }

    fn set(&mut self, text: &str, worker: &Worker) -> Vec<String> {
        let now = worker.settings();
        let unsaid = self.unsaid.get_or_insert_with(|| now.clone());
        let told =
            Told { service: &self.service, name: worker.name(), queues: &worker.queue_nums() };
        let (settings, mut complaints) = apply(text, &told, unsaid, now);
        if let Err(error) = worker.reconfigure(settings) {
            complaints.push(error.to_string());
        }
        complaints
    }

    /// Looks at the file each second until the worker has ended; what is wrong goes to the log.
    pub async fn follow(mut self, worker: Worker) {
        loop {
            let (complaints, soon) = self.look(&worker);
            for complaint in complaints {
                tracing::warn!(worker = worker.name(), "{complaint}; the last good values stay");
            }
            let pause = if soon { LOOK_AGAIN } else { LOOK_EVERY };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = worker.ended() => return,
            }
        }
    }
}

/// Whom the settings are for.
struct Told<'a> {
    service: &'a str,
    name: &'a str,
    queues: &'a [u32],
}

/// What the settings become, and what is wrong with the text. What the text does not say is `unsaid`'s, what it says
/// wrongly is as it is `now`, and so is everything where it says nothing about the worker at all.
fn apply(text: &str, told: &Told<'_>, unsaid: &Settings, now: Settings) -> (Settings, Vec<String>) {
    let Told { service, name, .. } = *told;
    let root: Node = match serde_saphyr::from_str(text) {
        _ if text.trim().is_empty() => {
            return (now, vec!["the settings file is empty".into()]);
        }
        Ok(root) => root,
        Err(error) => return (now, vec![format!("the settings are no YAML: {error}")]),
    };
    let path = format!("{service}/worker/queue/{name}");
    let worker = [service, "worker", "queue", name].into_iter().try_fold(&root, Node::child);
    let Some(worker) = worker else {
        return (now, vec![format!("nothing is said about {path}")]);
    };
    let mut reading = Reading { queues: told.queues, complaints: Vec::new() };
    let settings = reading.worker(worker, &path, unsaid, &now);
    (settings, reading.complaints)
}

/// Goes through the tree of one worker.
struct Reading<'a> {
    /// The queues that the worker has.
    queues: &'a [u32],
    complaints: Vec<String>,
}

impl Reading<'_> {
    fn worker(&mut self, node: &Node, path: &str, unsaid: &Settings, now: &Settings) -> Settings {
        if !self.keys(node, path, &["max_processors", "visibility_timeout", "run_max", "queue"]) {
            return now.clone();
        }
        let mut settings = unsaid.clone();
        match self.number(node, "max_processors", path, PROCESSORS_MAX) {
            Said::Nothing => {}
            Said::Good(most) => settings.max_processors = most,
            Said::Bad => settings.max_processors = now.max_processors,
        }
        match self.seconds(node, "visibility_timeout", path, VISIBILITY_SECONDS_MAX) {
            Said::Nothing => {}
            Said::Good(timeout) => settings.visibility_timeout = timeout,
            Said::Bad => settings.visibility_timeout = now.visibility_timeout,
        }
        match self.seconds(node, "run_max", path, RUN_SECONDS_MAX) {
            Said::Nothing => {}
            Said::Good(run_max) => settings.run_max = Some(run_max),
            Said::Bad => settings.run_max = now.run_max,
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
        if !self.queues.contains(&num) {
            let known: Vec<_> = self.queues.iter().map(u32::to_string).collect();
            let known = known.join(", ");
            self.complaints
                .push(format!("{path}: the worker has no queue {num}; its queues are {known}"));
            return;
        }
        let readable = self.keys(node, path, &["batch_size", "target_latency"]);
        let size = match self.number(node, "batch_size", path, BATCH_TASKS_MAX) {
            Said::Nothing if readable => None,
            Said::Good(size) => Some(size),
            Said::Nothing | Said::Bad => now.batch_sizes.get(&num).copied(),
        };
        settings.batch_sizes.extend(size.map(|size| (num, size)));
        let target = match self.seconds(node, "target_latency", path, VISIBILITY_SECONDS_MAX) {
            Said::Nothing if readable => None,
            Said::Good(target) => Some(target),
            Said::Nothing | Said::Bad => now.target_latencies.get(&num).copied(),
        };
        settings.target_latencies.extend(target.map(|target| (num, target)));
    }

    /// Complains of keys that mean nothing: a misspelt one would be passed over for ever. Answers whether there can be keys.
    fn keys(&mut self, node: &Node, path: &str, known: &[&str]) -> bool {
        let Node::Map(map) = node else {
            self.complaints.push(format!("{path} must have {}", known.join(", ")));
            return false;
        };
        for Key(key) in map.keys().filter(|Key(key)| !known.contains(&key.as_str())) {
            let known = known.join(", ");
            self.complaints.push(format!("{path}/{key} is no setting; there are {known}"));
        }
        true
    }

    fn number(&mut self, node: &Node, key: &str, path: &str, most: usize) -> Said<usize> {
        let Some(value) = node.child(key) else { return Said::Nothing };
        if let Some(good) = value.number().filter(|number| (1..=most).contains(number)) {
            return Said::Good(good);
        }
        self.complaints.push(format!("{path}/{key} must be a whole number from 1 to {most}"));
        Said::Bad
    }

    fn seconds(&mut self, node: &Node, key: &str, path: &str, most: u64) -> Said<Duration> {
        match self.number(node, key, path, most as usize) {
            Said::Good(seconds) => Said::Good(Duration::from_secs(seconds as u64)),
            Said::Nothing => Said::Nothing,
            Said::Bad => Said::Bad,
        }
    }
}

/// What the file says about a setting.
enum Said<T> {
    Nothing,
    Good(T),
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

    const MAILER: Told<'_> = Told { service: "shop", name: "mailer", queues: &[1, 2, 3] };

    fn applied(text: &str) -> (Settings, Vec<String>) {
        let default = Settings::default();
        apply(text, &MAILER, &default, default.clone())
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
            let told = Told { service, name, ..MAILER };
            let (settings, complaints) = apply(GOOD, &told, &default, default.clone());
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
        let (settings, complaints) = apply(text, &MAILER, &Settings::default(), now);
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
    /// A number of a queue that the worker does not have was taken without a word, and its batches stayed as they were.
    #[test]
    fn a_queue_that_the_worker_lacks_is_told() {
        let (settings, complaints) = applied(&GOOD.replace("2: {", "7: {"));
        let wanted =
            "shop/worker/queue/mailer/queue/7: the worker has no queue 7; its queues are 1, 2, 3";
        assert_eq!(complaints, [wanted]);
        assert_eq!((settings.batch_of(1), settings.batch_of(7)), (100, 10));
    }

    #[test]
    fn the_longest_run_is_a_setting() {
        let text = GOOD.replace("visibility_timeout: 30", "run_max: 90");
        let (settings, complaints) = applied(&text);
        assert_eq!(complaints, [""; 0]);
        assert_eq!(settings.run_max, Some(Duration::from_secs(90)));
        assert_eq!(applied(GOOD).0.run_max, None, "ten times the visibility timeout");
        assert_eq!(applied(&text.replace("90", "0")).1.len(), 1);
    }

    /// An editor empties a file before it writes it: what was there in between reset a running worker to the values of its
    /// code, and the log said that the last good values stay.
    #[test]
    fn a_file_that_says_nothing_yet_changes_nothing() {
        let now = applied(GOOD).0;
        let cuts =
            ["", "\n", "# settings\n", "shop:", "shop:\n  worker:\n    queue:\n      mailer:\n"];
        for text in cuts {
            let (settings, complaints) = apply(text, &MAILER, &Settings::default(), now.clone());
            assert_eq!(settings, now, "{text:?}");
            assert_eq!(complaints.len(), 1, "{text:?}: {complaints:?}");
        }
        let empty = "shop: {worker: {queue: {mailer: {}}}}";
        let (settings, complaints) = apply(empty, &MAILER, &Settings::default(), now.clone());
        assert_eq!((settings, complaints), (Settings::default(), vec![]), "said on purpose");
        let cut = "shop: {worker: {queue: {mailer: {queue: {1: }}}}}";
        let (settings, complaints) = apply(cut, &MAILER, &Settings::default(), now);
        assert_eq!((settings.batch_of(1), complaints.len()), (100, 1), "{complaints:?}");
    }

    /// The same cut in the middle: what stood behind the cut was set back until the rest was written.
    #[cfg(feature = "embedded")]
    #[test]
    fn a_file_that_is_being_written_is_read_again() {
        use super::super::kit::Kit;
        use super::super::{Dispatcher, Handler, HandlerStats, RawTask};
        let idle = Handler::raw(|_, _, _: Vec<RawTask>| async { Ok(HandlerStats::default()) });
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let _inside = runtime.enter();
        let kit = Kit::new();
        let worker = kit.worker(Dispatcher::new([]).and(1, "mail", idle)).build().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("settings.yaml");
        let mut config = ConfigFile::new(&path, "shop");
        let whole = GOOD.replace("mailer", "test").replace("          2: {batch_size: 5}\n", "");
        let (half, _) = whole.split_once("        queue:\n").unwrap();
        let mut look = |text: &str| {
            fs::write(&path, text).unwrap();
            let (complaints, again) = config.look(&worker);
            (complaints.len(), again, worker.settings().batch_of(1))
        };
        assert_eq!(look(&whole), (0, true, 10), "it may still be written");
        assert_eq!(look(&whole), (0, false, 100));
        for cut in ["", half] {
            assert_eq!(look(cut), (0, true, 100), "{cut:?}");
            assert_eq!(look(&whole), (0, false, 100), "{cut:?}");
        }
        assert_eq!(look(half), (0, true, 100));
        assert_eq!(look(half), (0, false, 10), "removed on purpose");
        assert_eq!(look(""), (0, true, 10));
        assert_eq!(look(""), (1, false, 10), "told once");
        assert_eq!(look(""), (0, false, 10));
    }
}
