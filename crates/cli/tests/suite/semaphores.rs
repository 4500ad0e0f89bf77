//! `semaphore`.

use serde_json::json;

use crate::rig::Rig;

#[test]
fn a_semaphore_is_created_and_its_events_are_printed() {
    let rig = Rig::new();
    let create = ["semaphore", "create", "yang", "--active", "1", "--try-release", "1"];
    assert!(rig.run(&create).good().contains("active          1\n"));
    // A create with an existing key succeeded silently with any options; for a tube it was refused.
    let refused = rig.run(&["semaphore", "create", "yang"]).ends(6);
    assert!(refused.err.contains("semaphore 'yang' already exists"), "{}", refused.err);
    for more in [&["--if-not-exists"][..], &[]] {
        let other = [&["semaphore", "create", "yang", "--active", "5"], more].concat();
        let refused = rig.run(&other).ends(6);
        assert!(refused.err.contains("active is 1, not 5"), "{}", refused.err);
    }
    let again = ["semaphore", "create", "yang", "--active", "1", "--if-not-exists", "--json"];
    assert_eq!(rig.run(&again).json()[0]["active"], 1, "one that is there is left alone");
    let first = rig.run(&["semaphore", "enqueue", "yang", "17", "--priority", "-2.5"]).good();
    assert_eq!(first, "17 granted grant 1 priority -2.5\n");
    let second = ["semaphore", "enqueue", "yang", "18", "--priority", "1", "--json"];
    let events = ["semaphore", "events", "yang", "--ack", "--json"];
    let told = rig.run(&events).json();
    assert_eq!((&told[0]["kind"], &told[0]["task"]), (&json!("acquired"), &json!(17)));
    assert_eq!(rig.run(&second).json()[0]["status"], "waiting");
    assert_eq!(rig.run(&events).json()[0]["kind"], "try_release");
    rig.run(&events).ends(3);
    rig.run(&["semaphore", "release", "yang", "17:9"]).ends(5);
    assert_eq!(rig.run(&["semaphore", "release", "yang", "17:1", "--yield"]).good(), "17 done\n");
    let info = rig.run(&["semaphore", "show", "yang", "17", "18"]).good();
    assert_eq!(info, "17 waiting priority -2.5\n18 granted grant 2 priority 1\n");
    rig.run(&["semaphore", "release", "yang", "18", "--decline"]).ends(5);
    let holders = rig.run(&["semaphore", "holders", "yang", "--json"]).json();
    assert_eq!(holders[0]["tasks"][0]["task"], 18);
    let waiting = rig.run(&["semaphore", "waiting", "yang"]).good();
    assert!(waiting.contains("17") && waiting.contains("waiting"), "{waiting}");
    let refused = rig.run(&["semaphore", "drop", "yang"]).ends(6);
    assert!(refused.err.contains("drop it with force"), "{}", refused.err);
    rig.run(&["semaphore", "release", "yang", "99"]).ends(4);
    assert_eq!(rig.run(&["semaphore", "release", "yang", "18"]).good(), "18 done\n");
    let list = rig.run(&["semaphore", "list"]).good();
    assert!(list.contains("yang       1       1         0         0        1"), "{list}");
    assert_eq!(rig.run(&["semaphore", "list", "--json"]).json()[0]["acquired"], 1);
    assert_eq!(rig.run(&["semaphore", "drop", "yang", "--force"]).good(), "dropped yang\n");
    rig.run(&["semaphore", "show", "yang"]).ends(4);
}

/// A tube with a semaphore, as in a first try.
#[test]
fn a_tube_with_a_semaphore() {
    let rig = Rig::new();
    rig.run(&["tube", "create", "checks", "--semaphore", "yang"]).ends(4);
    rig.run(&["semaphore", "create", "yang", "--active", "1", "--try-release", "1"]).good();
    rig.run(&["tube", "create", "checks", "--semaphore", "yang"]).good();
    assert!(rig.run(&["tube", "show", "checks"]).good().contains("semaphore       yang\n"));
    rig.run(&["put", "checks", "first", "--pri", "5"]).good();
    rig.run(&["put", "checks", "second", "--pri", "5"]).good();
    let waits = rig.run(&["peek", "checks", "1", "--json"]).json();
    assert_eq!(waits[0]["state"], "delayed");
    assert_eq!(waits[0]["reason"]["name"], "semaphore");
    let taken = rig.run(&["take", "checks", "--json"]).json();
    rig.run(&["take", "checks"]).ends(3);
    // A task of higher priority is put: the holder of the first grant is asked to release.
    rig.run(&["put", "checks", "urgent", "--pri", "1"]).good();
    let asked = rig.run(&["semaphore", "events", "--ack"]).good();
    assert!(asked.starts_with("yang try_release tube checks task 0 grant 1 (event "), "{asked}");
    rig.run(&["ack", "checks", &format!("0:{}", taken[0]["lease"])]).good();
    assert_eq!(rig.run(&["take", "checks", "--json"]).json()[0]["data"], "urgent");
    let kinds = ["tube", "create", "lanes", "--kind", "utubettl", "--semaphore", "yang"];
    rig.run(&kinds).good();
    rig.run(&["put", "lanes", "x", "--subqueue", "a", "--semaphore-priority", "-2.5"]).good();
    let shown = rig.run(&["peek", "lanes", "0"]).good();
    assert!(shown.contains("0 (semaphore -2.5)"), "{shown}");
    assert_eq!(rig.run(&["peek", "lanes", "0", "--json"]).json()[0]["semaphore_priority"], -2.5);
    rig.run(&["put", "lanes", "x", "--semaphore-priority", "NaN"]).ends(2);
    let refused = rig.run(&["semaphore", "drop", "yang", "--force"]).ends(6);
    assert!(refused.err.contains("gates tube"), "{}", refused.err);
    let holders = rig.run(&["semaphore", "holders", "yang", "--json"]).json();
    assert_eq!(holders[0]["tasks"][0]["tube"], "checks");
    rig.run(&["tube", "create", "plain"]).good();
    let refused = rig.run(&["put", "plain", "x", "--semaphore-priority", "1"]).ends(6);
    assert!(refused.err.contains("has no semaphore"), "{}", refused.err);
}

#[test]
fn invalid_arguments_are_refused_and_change_nothing() {
    let rig = Rig::new();
    rig.run(&["semaphore", "set", "yang", "--active", "3"]).good();
    rig.run(&["semaphore", "set", "yang", "--active", "-1"]).ends(2);
    let refused = rig.run(&["semaphore", "set", "yang", "--try-release", "4"]).ends(2);
    assert!(refused.err.contains("only 3 may be active"), "{}", refused.err);
    rig.run(&["semaphore", "enqueue", "yang", "1", "--priority", "NaN"]).ends(2);
    rig.run(&["semaphore", "enqueue", "nope", "1"]).ends(4);
    rig.run(&["semaphore", "release", "nope", "1"]).ends(4);
    rig.run(&["semaphore", "show", "nope"]).ends(4);
    rig.run(&["semaphore", "create", "a/b"]).ends(2);
    assert_eq!(rig.run(&["semaphore", "show", "yang", "--json"]).json()[0]["active"], 3);
}
