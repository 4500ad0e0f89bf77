//! Folders that the program of an earlier commit wrote: the present program serves them, with all that is in them.
//! `tests/earlier/README.txt` says how they were made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::process::{Ran, Serving};

/// The folders of an earlier version.
const FOLDERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/earlier/34cae17c");

/// A folder of that version.
#[derive(Clone, Copy, Debug)]
pub enum EarlierFolder {
    /// Its server was stopped.
    Stopped,
    /// Its server was killed: the newest batches are only in its journal.
    Killed,
}

impl EarlierFolder {
    /// The name of its files.
    pub fn name(self) -> &'static str {
        match self {
            EarlierFolder::Stopped => "stopped",
            EarlierFolder::Killed => "killed",
        }
    }

    /// Unpacks it below this folder.
    pub fn unpack(self, into: &Path) -> PathBuf {
        let archive = Path::new(FOLDERS).join(format!("{}.tar.gz", self.name()));
        let mut unpack = Command::new("tar");
        unpack.args(["--no-same-owner", "-xzf"]).arg(archive).arg("-C").arg(into);
        assert!(unpack.status().expect("there is a program that unpacks").success());
        into.join("data")
    }

    /// Runs the commands that the earlier version was given; what it showed must be shown, each field of each line. There may be more
    /// fields, but no more lines.
    #[track_caller]
    pub fn assert_shown(self, run: impl Fn(&[&str]) -> Ran) {
        let path = Path::new(FOLDERS).join(format!("{}.txt", self.name()));
        let text = fs::read_to_string(path).expect("what it showed");
        for part in text.split("$ ").skip(1) {
            let (command, shown) = part.split_once('\n').expect("a command has its own line");
            let words: Vec<&str> = command.split(' ').chain(["--json"]).collect();
            // A peek of tasks of which some do not exist prints the others.
            let found = run(&words).json();
            let shown: Vec<Value> =
                shown.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
            assert_eq!(found.len(), shown.len(), "{self:?}: {command}: {found:#?}");
            for (found, shown) in found.iter().zip(&shown) {
                let missing = missing(found, shown, "");
                assert!(missing.is_empty(), "{self:?}: {command}: {missing:#?} in {found:#}");
            }
        }
    }
}

/// When the folders were made.
fn made() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_795_107_364)
}

/// Whether a value is a moment of this century, in seconds.
fn is_time(value: &Value) -> bool {
    value.as_f64().is_some_and(|seconds| (9e8..4.2e9).contains(&seconds))
}

/// What a value lacks of another one, by the names of fields and the numbers of items.
fn missing(found: &Value, shown: &Value, path: &str) -> Vec<String> {
    match (found, shown) {
        (Value::Object(_), Value::Object(fields)) => {
            let fields = fields.iter();
            fields
                .flat_map(|(name, value)| match found.get(name) {
                    Some(found) => missing(found, value, &format!("{path}.{name}")),
                    None => vec![format!("{path}.{name}: {value}, not there")],
                })
                .collect()
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            let pairs = items.iter().zip(others).enumerate();
            pairs
                .flat_map(|(at, (item, other))| missing(item, other, &format!("{path}.{at}")))
                .collect()
        }
        _ if found == shown => Vec::new(),
        // Durations keep their length when the wall clock was set back.
        _ if is_time(found) && is_time(shown) && SystemTime::now() < made() => Vec::new(),
        _ => vec![format!("{path}: {shown}, not {found}")],
    }
}

// "Previous version" was the same program with a lower number: that the tables and the journal of an earlier one are read had no test.
#[test]
fn the_folders_of_an_earlier_version_are_served_with_all_that_is_in_them() {
    for folder in [EarlierFolder::Stopped, EarlierFolder::Killed] {
        let own = tempfile::tempdir().expect("a folder can be made");
        let data = folder.unpack(own.path());
        for _start in ["the first, which upgrades the tables", "the second"] {
            let serving = Serving::folder(&data, &[]);
            folder.assert_shown(|args| serving.run(args));
            serving.signal("INT");
            let (status, printed) = serving.ended();
            assert!(status.success(), "{printed}");
        }
    }
}

#[test]
fn an_upgraded_folder_goes_on_where_the_earlier_version_ended() {
    let own = tempfile::tempdir().expect("a folder can be made");
    let serving = Serving::folder(&EarlierFolder::Killed.unpack(own.path()), &[]);
    // No lease and no id of the earlier version is given again: it took plain 0 with lease 1048576, and put mail 9 last.
    let taken = serving.run(&["take", "plain", "--json"]).json().remove(0);
    assert_eq!((&taken["id"], &taken["data"]), (&0.into(), &1.5.into()));
    assert!(taken["lease"].as_u64() > Some(1 << 20), "{taken}");
    assert_eq!(serving.run(&["put", "mail", "next"]).good(), "10\n");
    // By priority, then by arrival: bob, brief and eve before urgent, and the counted attempt stays.
    let taken = serving.run(&["take", "mail", "--count", "4", "--json"]).json();
    let ids: Vec<_> = taken.iter().map(|task| task["id"].as_u64()).collect();
    assert_eq!(ids, [1, 5, 9, 10].map(Some));
    assert_eq!(taken[0]["attempts"], 1);
    // What the earlier version did not have works on its tubes and tasks.
    serving.run(&["tube", "alter", "mail", "--keep-done", "1h"]).good();
    serving.run(&["ack", "mail", "1"]).good();
    serving.run(&["put", "mail", "unique", "--key", "k"]).good();
    let listed = serving.run(&["tasks", "mail", "--state", "buried", "--json"]).json();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0]["id"], 3);
    serving.run(&["kick", "mail", "--count", "1"]).good();
    serving.run(&["semaphore", "release", "yang", "17:1"]).good();
    serving.signal("INT");
    assert!(serving.ended().0.success());
}

/// A test of the tests.
#[test]
fn a_lost_field_is_found() {
    let shown = serde_json::json!({ "id": 1, "tasks": { "ready": 2 }, "none": null, "data": [1, { "a": 2 }] });
    let mut found = shown.clone();
    found["more"] = 3.into();
    assert_eq!(missing(&found, &shown, ""), [""; 0]);
    for path in ["/id", "/tasks/ready", "/data/1/a", "/data"] {
        let mut found = found.clone();
        *found.pointer_mut(path).expect(path) = Value::Null;
        assert_eq!(missing(&found, &shown, "").len(), 1, "{path}");
    }
    found.as_object_mut().expect("an object").remove("none");
    assert_eq!(missing(&found, &shown, "").len(), 1, "a field without a value");
}
