//! Contracts at the command line.

use std::fs;

use crate::rig::run;

const GOOD: &str = include_str!("../../../contract/tests/reference.yaml");

#[test]
fn a_contract_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = file("good.yaml", GOOD);
    assert!(run(&["contract", "check", &good]).good().ends_with("is good: 2 queues\n"));
    let bad = file("bad.yaml", "queues:\n  - id: 0\n    name: Mail\n    fields: []\n");
    let ran = run(&["contract", "check", &bad]).ends(2);
    assert_eq!(ran.err.lines().count(), 3, "{}", ran.err);
    assert!(
        ran.err.contains("bad.yaml:3:11: invalid name 'Mail'; use small letters"),
        "{}",
        ran.err
    );
    let newer = file("newer.yaml", &GOOD.replace("type: bool", "type: int"));
    let ran = run(&["contract", "check", &newer, "--previous", &good]).ends(2);
    assert!(ran.err.contains("newer.yaml:15:9: field 'is_urgent' was bool"), "{}", ran.err);
    run(&["contract", "check", &folder.path().join("none").display().to_string()]).ends(2);
}

#[test]
fn source_is_generated_and_left_alone_when_nothing_changed() {
    let folder = tempfile::tempdir().unwrap();
    let contract = folder.path().join("queues.yaml");
    fs::write(&contract, GOOD).unwrap();
    let contract = contract.to_str().unwrap();
    let printed = run(&["contract", "generate", contract]).good();
    assert!(printed.contains("pub struct EmailsTask {"));
    let target = folder.path().join("queues.rs");
    let generate =
        || run(&["contract", "generate", contract, "--output", target.to_str().unwrap()]);
    generate().good();
    assert_eq!(fs::read_to_string(&target).unwrap(), printed);
    let written = target.metadata().unwrap().modified().unwrap();
    generate().good();
    assert_eq!(target.metadata().unwrap().modified().unwrap(), written);
    let python = run(&["contract", "generate", contract, "--language", "python"]).good();
    assert!(python.contains("class NotificationsTask:"));
}
