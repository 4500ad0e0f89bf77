//! `semaphore`.

use serde_json::json;

use crate::process::TestServer;

#[test]
fn a_semaphore_is_created_and_its_events_are_printed() {
    let server = TestServer::new();
    let create = ["semaphore", "create", "yang", "--active", "1", "--try-release", "1"];
    assert!(server.run(&create).good().contains("active          1\n"));
    // A create with an existing key succeeded silently with any options; for a tube it was refused.
    let refused = server.run(&["semaphore", "create", "yang"]).ends(6);
    assert!(refused.err.contains("semaphore 'yang' already exists"), "{}", refused.err);
    for more in [&["--if-not-exists"][..], &[]] {
        let other = [&["semaphore", "create", "yang", "--active", "5"], more].concat();
        let refused = server.run(&other).ends(6);
        assert!(refused.err.contains("active is 1, not 5"), "{}", refused.err);
    }
    let again = ["semaphore", "create", "yang", "--active", "1", "--if-not-exists", "--json"];
    assert_eq!(server.run(&again).json()[0]["active"], 1, "one that is there is left alone");
    let first = server.run(&["semaphore", "enqueue", "yang", "17", "--priority", "-2.5"]).good();
    assert_eq!(first, "17 granted grant 1 priority -2.5\n");
    let second = ["semaphore", "enqueue", "yang", "18", "--priority", "1", "--json"];
    let events = ["semaphore", "events", "yang", "--ack", "--json"];
    let told = server.run(&events).json();
    assert_eq!((&told[0]["kind"], &told[0]["task"]), (&json!("acquired"), &json!(17)));
    assert_eq!(server.run(&second).json()[0]["status"], "waiting");
    assert_eq!(server.run(&events).json()[0]["kind"], "try_release");
    server.run(&events).ends(3);
    server.run(&["semaphore", "release", "yang", "17:9"]).ends(5);
    assert_eq!(
        server.run(&["semaphore", "release", "yang", "17:1", "--yield"]).good(),
        "17 done\n"
    );
    let info = server.run(&["semaphore", "show", "yang", "17", "18"]).good();
    assert_eq!(info, "17 waiting priority -2.5\n18 granted grant 2 priority 1\n");
    server.run(&["semaphore", "release", "yang", "18", "--decline"]).ends(5);
    let holders = server.run(&["semaphore", "holders", "yang", "--json"]).json();
    assert_eq!(holders[0]["tasks"][0]["task"], 18);
    let waiting = server.run(&["semaphore", "waiting", "yang"]).good();
    assert!(waiting.contains("17") && waiting.contains("waiting"), "{waiting}");
    let refused = server.run(&["semaphore", "drop", "yang"]).ends(6);
    assert!(refused.err.contains("drop it with force"), "{}", refused.err);
    server.run(&["semaphore", "release", "yang", "99"]).ends(4);
    assert_eq!(server.run(&["semaphore", "release", "yang", "18"]).good(), "18 done\n");
    let list = server.run(&["semaphore", "list"]).good();
    assert!(list.contains("yang       1       1        0         0        1"), "{list}");
    assert_eq!(server.run(&["semaphore", "list", "--json"]).json()[0]["acquired"], 1);
    assert_eq!(server.run(&["semaphore", "drop", "yang", "--force"]).good(), "dropped yang\n");
    server.run(&["semaphore", "show", "yang"]).ends(4);
}

/// A tube with a semaphore, as in a first try.
#[test]
fn a_tube_with_a_semaphore() {
    let server = TestServer::new();
    server.run(&["tube", "create", "checks", "--semaphore", "yang"]).ends(4);
    server.run(&["semaphore", "create", "yang", "--active", "1", "--try-release", "1"]).good();
    server.run(&["tube", "create", "checks", "--semaphore", "yang"]).good();
    assert!(server.run(&["tube", "show", "checks"]).good().contains("semaphore       yang\n"));
    server.run(&["put", "checks", "first", "--pri", "5"]).good();
    server.run(&["put", "checks", "second", "--pri", "5"]).good();
    let waits = server.run(&["peek", "checks", "1", "--json"]).json();
    assert_eq!(waits[0]["state"], "delayed");
    assert_eq!(waits[0]["reason"]["name"], "semaphore");
    let taken = server.run(&["take", "checks", "--json"]).json();
    server.run(&["take", "checks"]).ends(3);
    // A task of higher priority is put: the holder of the first grant is asked to release.
    server.run(&["put", "checks", "urgent", "--pri", "1"]).good();
    let asked = server.run(&["semaphore", "events", "--ack"]).good();
    assert!(asked.starts_with("yang try_release tube checks task 0 grant 1 (event "), "{asked}");
    server.run(&["ack", "checks", &format!("0:{}", taken[0]["lease"])]).good();
    assert_eq!(server.run(&["take", "checks", "--json"]).json()[0]["data"], "urgent");
    let kinds = ["tube", "create", "lanes", "--kind", "utubettl", "--semaphore", "yang"];
    server.run(&kinds).good();
    server.run(&["put", "lanes", "x", "--subqueue", "a", "--semaphore-priority", "-2.5"]).good();
    let shown = server.run(&["peek", "lanes", "0"]).good();
    assert!(shown.contains("0 (semaphore -2.5)"), "{shown}");
    assert_eq!(server.run(&["peek", "lanes", "0", "--json"]).json()[0]["semaphore_priority"], -2.5);
    server.run(&["put", "lanes", "x", "--semaphore-priority", "NaN"]).ends(2);
    let refused = server.run(&["semaphore", "drop", "yang", "--force"]).ends(6);
    assert!(refused.err.contains("gates tube"), "{}", refused.err);
    let holders = server.run(&["semaphore", "holders", "yang", "--json"]).json();
    assert_eq!(holders[0]["tasks"][0]["tube"], "checks");
    server.run(&["tube", "create", "plain"]).good();
    let refused = server.run(&["put", "plain", "x", "--semaphore-priority", "1"]).ends(6);
    assert!(refused.err.contains("has no semaphore"), "{}", refused.err);
}

#[test]
fn invalid_arguments_are_refused_and_change_nothing() {
    let server = TestServer::new();
    server.run(&["semaphore", "set", "yang", "--active", "3"]).good();
    server.run(&["semaphore", "set", "yang", "--active", "-1"]).ends(2);
    let refused = server.run(&["semaphore", "set", "yang", "--try-release", "4"]).ends(2);
    assert!(refused.err.contains("only 3 may be active"), "{}", refused.err);
    server.run(&["semaphore", "enqueue", "yang", "1", "--priority", "NaN"]).ends(2);
    server.run(&["semaphore", "enqueue", "nope", "1"]).ends(4);
    server.run(&["semaphore", "release", "nope", "1"]).ends(4);
    server.run(&["semaphore", "show", "nope"]).ends(4);
    server.run(&["semaphore", "create", "a/b"]).ends(2);
    assert_eq!(server.run(&["semaphore", "show", "yang", "--json"]).json()[0]["active"], 3);
}
