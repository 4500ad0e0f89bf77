//! Typed workers and the manager of the server, as processes that are killed.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::process::{Running, Serving, binary};

const CONTRACT: &str = "\
queues:
  - id: 1
    name: emails
    fields: [{name: to, type: string}]
  - id: 2
    name: notes
    fields: [{name: text, type: string}]
";

fn contract(folder: &Path) -> PathBuf {
    let path = folder.join("queues.yaml");
    fs::write(&path, CONTRACT).unwrap();
    path
}

fn worker(serving: &Serving, contract: &Path, more: &[&str], program: &[&str]) -> Running {
    let mut command = binary();
    command.args(["worker", "--contract"]).arg(contract).args(more).arg("--").args(program);
    Running::start(command.env("TASKYARD_URL", &serving.url))
}

fn status(serving: &Serving) -> Value {
    serving.run(&["manager", "status", "--json"]).json().remove(0)
}

/// Waits until all `count` workers follow a plan newer than this; returns its version.
fn followed(serving: &Serving, count: usize, newer_than: u64) -> u64 {
    loop {
        let status = status(serving);
        let workers = status["workers"].as_array().unwrap();
        let versions = workers.iter().map(|worker| worker["version"].as_u64().unwrap());
        let oldest = versions.min().unwrap_or(0);
        if workers.len() == count && oldest > newer_than {
            return oldest;
        }
    }
}

/// The server with the manager is killed. Its workers wait for it, continue after its restart, and follow the plan
/// of the new manager.
#[test]
fn workers_survive_a_restart_of_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let (contract, data) = (contract(folder.path()), folder.path().join("data"));
    let serving = Serving::folder(&data, &[]);
    let start = || worker(&serving, &contract, &["--processors", "2"], &["cat"]);
    let mut workers = [start(), start()];
    let version = followed(&serving, 2, 0);
    let shown = serving.run(&["manager", "status"]).good();
    assert!(shown.contains("2 workers, manager 127.0.0.1:0 on "), "{shown}");
    let address = serving.url.trim_start_matches("http://").to_owned();
    serving.signal("KILL");
    drop(serving);

    let mut again = binary();
    again.args(["serve", "--iproto", "off", "--http", &address, "--data"]).arg(&data);
    let serving = Serving::start(&mut again);
    assert!(followed(&serving, 2, version) > version);
    serving.run(&["put", "emails", "[\"ann\"]"]).good();
    while serving.run(&["stats", "emails", "--json"]).json()[0]["tasks"]["total"] != 0 {}
    for worker in &workers {
        worker.signal("TERM");
    }
    let printed: String = workers.iter_mut().map(Running::line).collect();
    assert_eq!(printed, "{\"to\":\"ann\"}\n", "one of them printed it");
    let left = || status(&serving)["workers"].as_array().unwrap().len();
    while left() > 0 {}
    let metrics = serving.run(&["manager", "status"]).good();
    assert!(metrics.contains("no worker has reported recently"), "{metrics}");
}

/// A worker that is killed during a batch loses no task: its task is delivered to another worker, and counts
/// the failed delivery.
#[test]
fn a_killed_worker_loses_no_task() {
    let folder = tempfile::tempdir().unwrap();
    let contract = contract(folder.path());
    let serving = Serving::folder(&folder.path().join("data"), &["--no-manager"]);
    let hang = ["sh", "-c", "echo begun; exec sleep 20"];
    let mut first = worker(&serving, &contract, &["--lease", "1s"], &hang);
    serving.run(&["put", "emails", "[\"ann\"]", "[\"ben\"]"]).good();
    assert_eq!(first.line(), "begun\n");
    first.signal("KILL");
    let show = ["sh", "-c", "echo $TASKYARD_ATTEMPTS $(cat)"];
    let mut second = worker(&serving, &contract, &[], &show);
    let mut lines = [second.line(), second.line()];
    lines.sort();
    assert_eq!(lines, ["0 {\"to\":\"ben\"}\n", "1 {\"to\":\"ann\"}\n"]);
    while serving.run(&["stats", "emails", "--json"]).json()[0]["tasks"]["total"] != 0 {}
    second.signal("TERM");
    second.ended().ends(0);
    assert_eq!(status(&serving)["led"], false, "--no-manager");
}
