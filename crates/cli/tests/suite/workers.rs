//! `workers`.

use crate::process::{Running, TestServer, binary};

#[test]
fn workers_are_listed_with_their_tasks() {
    let server = TestServer::new();
    let empty = server.run(&["workers"]).good();
    assert!(empty.contains("no workers yet") && empty.contains("--worker NAME"), "{empty}");
    assert_eq!(server.run(&["workers", "--json"]).good(), "");
    server.run(&["put", "mail", "a", "b"]).good();
    server.run(&["take", "mail", "--worker", "mine"]).good();
    server.run(&["worker", "mail", "--drain"]).good();
    let workers = server.run(&["workers", "--json"]).json();
    assert_eq!(workers.len(), 2);
    let named = |end: &str| {
        let is_it = |name: &str| name.ends_with(end);
        workers.iter().find(|one| one["name"].as_str().is_some_and(is_it)).expect("it is listed")
    };
    let (mine, drained) = (named("mine"), named(":taskyard"));
    assert_eq!((&mine["running_count"], &mine["running"][0]["id"]), (&1.into(), &0.into()));
    assert_eq!((&drained["done"], &drained["program"]), (&1.into(), &"taskyard".into()));
    assert_eq!(drained["version"], env!("CARGO_PKG_VERSION"));
    let table = server.run(&["workers"]).good();
    let row = table.lines().find(|line| line.starts_with("mine ")).expect("a row");
    let cells: Vec<_> = row.split_whitespace().take(5).collect();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(cells, ["mine", version, "127.0.0.1", "mail", "1"], "{table}");
    assert!(table.starts_with("NAME ") && table.contains(" ago "), "{table}");
    let row = table.lines().find(|line| line.contains(":taskyard ")).expect("a row");
    // Done, in the last minute, failed, in the last minute.
    assert!(row.split_whitespace().rev().take(4).eq(["0", "0", "1", "1"]), "{table}");
}

#[test]
fn an_idle_worker_is_listed() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a"]).good();
    server.run(&["take", "mail", "--worker", "mine"]).good();
    let mut command = binary();
    command.args(["worker", "mail"]).env("TASKYARD_URL", &server.serving.url);
    let worker = Running::start(&mut command);
    while server.run(&["workers", "--json"]).json().len() < 2 {}
    worker.signal("INT");
    worker.ended();
}
