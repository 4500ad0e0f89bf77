//! The demo worker.

use crate::rig::Rig;

#[test]
fn it_prints_and_acks() {
    let rig = Rig::new();
    rig.run(&["put", "mail", "hello", r#"{"to": "ann"}"#]).good();
    let printed = rig.run(&["worker", "mail", "--drain"]).good();
    assert_eq!(printed, "0 \"hello\"\n1 {\"to\":\"ann\"}\n");
    assert_eq!(rig.run(&["stats", "--json"]).json()[0]["calls"]["ack"], 2);
}

#[test]
fn it_runs_a_command_for_each() {
    let rig = Rig::new();
    rig.run(&["put", "mail", "hello", r#"{"to": "ann"}"#]).good();
    let exec = r#"echo "$TASKYARD_TUBE $TASKYARD_ID $(cat)""#;
    let printed = rig.run(&["worker", "mail", "--drain", "--exec", exec]).good();
    assert_eq!(printed, "mail 0 hello\nmail 1 {\"to\":\"ann\"}\n");
}

#[test]
fn a_command_that_fails_gives_the_task_back() {
    let rig = Rig::new();
    rig.run(&["put", "mail", "x"]).good();
    let ran = rig.run(&["worker", "mail", "--drain", "--retry", "1h", "--exec", "exit 3"]).ends(0);
    assert!(ran.err.contains("released"), "{}", ran.err);
    let task = &rig.run(&["peek", "mail", "0", "--json"]).json()[0];
    assert_eq!((&task["state"], &task["attempts"]), (&"delayed".into(), &1.into()));
}
