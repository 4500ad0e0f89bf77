//! `tube` and `stats`.

use std::io::Write;
use std::process::Stdio;

use serde_json::json;

use crate::process::TestServer;

#[test]
fn tubes_are_created_changed_and_dropped() {
    let server = TestServer::new();
    let create = ["tube", "create", "inbox", "--kind", "limfifottl", "--capacity", "1"];
    assert_eq!(server.run(&create).good(), "created inbox\n");
    server.run(&create).ends(6);
    server.run(&[&create[..], &["--if-not-exists"]].concat()).ends(0);
    server.run(&["put", "inbox", "x"]).good();
    server.run(&["put", "inbox", "y"]).ends(6);
    let altered = server
        .run(&["tube", "alter", "inbox", "--capacity", "none", "--ttr", "5m", "--json"])
        .json();
    assert_eq!(altered[0]["ttr"], 300.0);
    assert!(altered[0].get("capacity").is_none());
    server.run(&["put", "inbox", "y"]).good();
    assert!(server.run(&["tube", "pause", "inbox"]).good().contains("yes"));
    server.run(&["take", "inbox"]).ends(3);
    assert!(server.run(&["tube", "resume", "inbox"]).good().contains("ready           2"));
    server.run(&["take", "inbox"]).ends(0);
    server.run(&["tube", "drop", "inbox", "--yes"]).ends(6);
    server.run(&["tube", "release-all", "inbox"]).good();
    server.run(&["tube", "truncate", "inbox", "--yes"]).good();
    assert_eq!(server.run(&["tube", "drop", "inbox"]).good(), "dropped inbox\n");
    server.run(&["tube", "show", "inbox"]).ends(4);
}

// Options that differ from those of the existing tube were ignored silently, while `semaphore create` refuses them.
#[test]
fn if_not_exists_compares_the_given_options() {
    let server = TestServer::new();
    let create = |flags: &[&str]| {
        server.run(&[&["tube", "create", "mail", "--if-not-exists"][..], flags].concat())
    };
    create(&["--kind", "utubettl", "--ttr", "1.5s", "--pri", "3"]).good();
    for same in [&[][..], &["--kind", "utubettl"], &["--ttr", "1500ms", "--pri", "3"]] {
        assert_eq!(create(same).good(), "mail already exists\n", "{same:?}");
    }
    for (flags, differs) in [
        (["--kind", "fifottl"], "kind is utubettl, not fifottl"),
        (["--ttr", "2s"], "ttr is 1.5 s, not 2 s"),
        (["--ttl", "1m"], "ttl is none, not 60 s"),
        (["--pri", "0"], "pri is 3, not 0"),
        (["--capacity", "9"], "capacity is none, not 9"),
    ] {
        let refused = create(&flags).ends(6);
        assert!(refused.err.contains(&format!("with other options: {differs}")), "{refused:?}");
    }
    let refused = create(&["--paused", "--temporary"]).ends(6);
    assert!(refused.err.contains("temporary is false, not true, paused is false"), "{refused:?}");
}

// The sub-queue of a first put was ignored, because a put creates tubes without sub-queues.
#[test]
fn sub_queues_need_a_tube_that_has_them() {
    let server = TestServer::new();
    let put = ["put", "orders", "x", "--subqueue", "ann"];
    let refused = server.run(&put).ends(4);
    assert!(refused.err.contains("tube create orders --kind utubettl"), "{}", refused.err);
    assert!(server.run(&["stats", "--json"]).json().is_empty(), "and no tube was made");
    server.run(&["tube", "create", "orders", "--kind", "utubettl"]).good();
    server.run(&put).good();
}

// A sub-queue was accepted by a tube that has none and ignored: two tasks of one sub-queue ran at a time.
#[test]
fn a_tube_without_sub_queues_refuses_them() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    for _ in 0..2 {
        let refused = server.run(&["put", "mail", "y", "--subqueue", "ann"]).ends(6);
        assert!(refused.err.contains("a fifottl tube does not support sub-queues"), "{refused:?}");
    }
    assert_eq!(server.run(&["stats", "mail", "--json"]).json()[0]["tasks"]["total"], 1);
    // A tube that was created again with the same name is checked again.
    server.run(&["tube", "create", "lanes", "--kind", "utube"]).good();
    server.run(&["put", "lanes", "x", "--subqueue", "ann"]).good();
    server.run(&["tube", "drop", "lanes", "--yes"]).good();
    server.run(&["tube", "create", "lanes"]).good();
    server.run(&["put", "lanes", "x", "--subqueue", "ann"]).ends(6);
}

// A script with a wrong name emptied a tube without a confirmation.
#[test]
fn truncate_needs_a_confirmation() {
    let server = TestServer::new();
    server.run(&["put", "mail", "x"]).good();
    let refused = server.run(&["tube", "truncate", "mail"]).ends(2);
    assert!(refused.err.contains("confirm with --yes"), "{}", refused.err);
    let count = || server.run(&["stats", "mail", "--json"]).json()[0]["tasks"]["total"].clone();
    for (answer, left) in [("n", 1), ("", 1), ("y", 0)] {
        let said = on_terminal(&server, "tube truncate mail", answer);
        assert!(
            said.contains("remove every task of mail (1 task), taken ones too? [y/N]"),
            "{said}"
        );
        assert_eq!(count(), left, "{answer:?}: {said}");
    }
    server.run(&["put", "mail", "x"]).good();
    assert_eq!(server.run(&["tube", "truncate", "mail", "--yes"]).good(), "emptied mail\n");
}

// A tube was removed with all its tasks without a confirmation.
#[test]
fn dropping_a_tube_with_tasks_needs_a_confirmation() {
    let server = TestServer::new();
    server.run(&["tube", "create", "empty"]).good();
    assert_eq!(server.run(&["tube", "drop", "empty"]).good(), "dropped empty\n");
    server.run(&["put", "mail", "x"]).good();
    let refused = server.run(&["tube", "drop", "mail"]).ends(2);
    assert!(refused.err.contains("confirm with --yes"), "{}", refused.err);
    for (answer, is_kept) in [("n", true), ("", true), ("y", false)] {
        let said = on_terminal(&server, "tube drop mail", answer);
        assert!(said.contains("remove mail with 1 task? [y/N]"), "{said}");
        let shown = server.run(&["tube", "show", "mail"]);
        shown.ends(if is_kept { 0 } else { 4 });
    }
    server.run(&["put", "mail", "x"]).good();
    assert_eq!(server.run(&["tube", "drop", "mail", "--yes"]).good(), "dropped mail\n");
    server.run(&["tube", "drop", "mail"]).ends(4);
}

/// Runs a command on a terminal, types one line and returns what it printed.
fn on_terminal(server: &TestServer, command: &str, answer: &str) -> String {
    let line = format!("'{}' {command}", env!("CARGO_BIN_EXE_taskyard"));
    let mut script = std::process::Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env("TASKYARD_URL", &server.serving.url).env("SHELL", "/bin/sh");
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    script.stdin.take().unwrap().write_all(format!("{answer}\n").as_bytes()).unwrap();
    let said = script.wait_with_output().unwrap();
    String::from_utf8_lossy(&said.stdout).into_owned()
}

// Every list showed the three tubes of the manager among those of the user.
#[test]
fn internal_tubes_are_shown_only_with_internal() {
    let server = TestServer::new();
    server.run(&["tube", "create", "taskyard.manager.seat"]).good();
    assert!(server.run(&["stats"]).good().contains("no tubes yet"));
    server.run(&["put", "mail", "x"]).good();
    let names = |args: &[&str]| {
        let shown = server.run(args).good();
        (shown.contains("mail"), shown.contains("taskyard.manager.seat"))
    };
    for list in [
        &["stats"][..],
        &["tube", "list"],
        &["tube", "list", "--json"],
        &["top", "--once", "--interval", "100ms"],
    ] {
        assert_eq!(names(list), (true, false), "{list:?}");
        assert_eq!(names(&[list, &["--internal"]].concat()), (true, true), "{list:?}");
    }
    assert_eq!(names(&["stats", "taskyard.manager.seat"]), (false, true), "it was named");
}

#[test]
fn deliveries_and_consumers_are_listed() {
    let server = TestServer::new();
    server.run(&["put", "mail", "a"]).good();
    server.run(&["tube", "create", "orders", "--kind", "utube", "--attempts-max", "3"]).good();
    let list = server.run(&["tube", "list"]).good();
    assert!(list.contains("orders  utube    0      attempts-max=3"), "{list}");
    let names: Vec<_> = server.run(&["tube", "list", "--json"]).json();
    assert_eq!((&names[0]["name"], &names[1]["name"]), (&json!("mail"), &json!("orders")));
    let lease = server.run(&["take", "mail", "--json"]).json()[0]["lease"].clone();
    let deliveries = server.run(&["tube", "deliveries", "mail", "--json"]).json();
    assert_eq!((&deliveries[0]["id"], &deliveries[0]["lease"]), (&json!(0), &lease));
    assert!(server.run(&["tube", "deliveries", "mail"]).good().contains("T"));
    assert_eq!(server.run(&["tube", "consumers", "mail", "--json"]).json().len(), 0);
}

#[test]
fn stats_are_printed_as_a_table_and_as_json() {
    let server = TestServer::new();
    assert!(server.run(&["stats"]).good().contains("no tubes yet"));
    server.run(&["put", "mail", "a", "b"]).good();
    server.run(&["take", "mail"]).ends(0);
    let stats = server.run(&["stats", "--json"]).json();
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0]["tasks"]["ready"], 1);
    assert_eq!(stats[0]["calls"]["put"], 2);
    assert!(stats[0]["oldest_ready"].as_f64().is_some_and(|since| since > 1e9), "{stats:?}");
    let shown = server.run(&["stats"]).good();
    assert!(shown.starts_with("TUBE") && shown.contains("OLDEST"), "{shown}");
    assert!(server.run(&["tube", "show", "mail"]).good().contains("ready for"));
    assert!(server.run(&["stats", "mail"]).good().contains("RELEASE"));
    server.run(&["stats", "nope"]).ends(4);
}

// For two tubes with one queue number the error said only that the other one exists.
#[test]
fn a_queue_number_in_use_names_its_tube() {
    let server = TestServer::new();
    server.run(&["tube", "create", "emails", "--queue-num", "7"]).good();
    let refused = server.run(&["tube", "create", "letters", "--queue-num", "7"]).ends(6);
    assert!(refused.err.contains("queue number 7 belongs to tube 'emails'"), "{}", refused.err);
    assert!(server.run(&["tube", "show", "emails"]).good().contains("queue-num       7"));
}
