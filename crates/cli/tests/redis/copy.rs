//! `copy` to Redis and back, also when it is killed.

use crate::many::{TASKS, source};
use crate::process::{Running, binary, run};
use taskyard_testkit::redis::{RedisInstance, program};

#[test]
fn a_killed_copy_resumes() {
    let Some(program) = program() else { return };
    let instance = RedisInstance::new(program);
    let (url, folder) = (instance.url(), tempfile::tempdir().expect("a folder"));
    let from = source(&folder.path().join("first"));
    let tube = || {
        let names = instance.talk(&["HKEYS", "{taskyard}:tubes"]);
        names.lines().next().unwrap_or("none").to_owned()
    };
    let there = || {
        let count = instance.talk(&["HLEN", &format!("{{taskyard:{}}}:t", tube())]);
        count.trim().parse().unwrap_or(0)
    };
    for least in [1, 10_000, 25_000] {
        let copy =
            Running::start(binary().args(["copy", "--from", &from]).env("TASKYARD_COPY_TO", &url));
        while there() < least {}
        copy.signal("KILL");
        drop(copy);
    }
    let home = tube();
    assert!(home.starts_with("taskyard.copy."), "{home}");
    let copied = run(&["copy", "--from", &from, "--to", &url, "--json"]).json();
    assert_eq!((&copied[0]["copied"], &copied[0]["tasks"]), (&true.into(), &TASKS.into()));
    assert!(copied[0]["resumed"].as_u64().is_some_and(|resumed| resumed >= 25_000), "{copied:?}");
    assert_eq!(tube(), "mail");
    instance.audit("taskyard", &home);
    let again = run(&["copy", "--from", &from, "--to", &url]).good();
    assert!(again.contains("already"), "{again}");
    // The copy back gives the same folder.
    let back = format!("sqlite:{}", folder.path().join("back").display());
    run(&["copy", "--from", &url, "--to", &back]).good();
    let same = run(&["copy", "--from", &from, "--to", &back]).good();
    assert!(same.contains("already"), "{same}");
}
