//! `copy` to Tarantool and back, also when it is killed.

use taskyard_tarantool::LuaValue;

use crate::many::{TASKS, source};
use crate::process::{Running, binary, run};
use taskyard_testkit::tarantool::{TarantoolInstance, program};

#[test]
fn a_killed_copy_resumes() {
    let Some(program) = program() else { return };
    let instance = TarantoolInstance::new(program);
    let (url, folder) = (instance.url(), tempfile::tempdir().expect("a folder"));
    let from = source(&folder.path().join("first"));
    let there = "return box.space.taskyard_task and box.space.taskyard_task:len() or 0";
    for least in [1, 10_000, 25_000] {
        let copy =
            Running::start(binary().args(["copy", "--from", &from]).env("TASKYARD_COPY_TO", &url));
        while !matches!(instance.talk(there), LuaValue::Int(count) if count >= least) {}
        copy.signal("KILL");
        drop(copy);
    }
    let copied = run(&["copy", "--from", &from, "--to", &url, "--json"]).json();
    assert_eq!((&copied[0]["copied"], &copied[0]["tasks"]), (&true.into(), &TASKS.into()));
    assert!(copied[0]["resumed"].as_u64().is_some_and(|resumed| resumed >= 25_000), "{copied:?}");
    instance.audit("taskyard");
    let again = run(&["copy", "--from", &from, "--to", &url]).good();
    assert!(again.contains("already"), "{again}");
    // The copy back gives the same folder.
    let back = format!("sqlite:{}", folder.path().join("back").display());
    run(&["copy", "--from", &url, "--to", &back]).good();
    let same = run(&["copy", "--from", &from, "--to", &back]).good();
    assert!(same.contains("already"), "{same}");
}

// `serve` waited for a database that was starting and `copy` did not: a script that started the database and then copied failed.
#[test]
fn copy_waits_for_a_database_that_is_loading() {
    let Some(program) = program() else { return };
    let (first, second) =
        (TarantoolInstance::new(program.clone()), TarantoolInstance::new(program));
    // `migrate` waits as well.
    let migrated = run(&["migrate", "--store", &first.loading_url(3)]).good();
    assert!(migrated.contains("is current"), "{migrated}");
    let (from, to) = (first.loading_url(3), second.loading_url(3));
    let copied = run(&["copy", "--from", &from, "--to", &to]).good();
    assert!(copied.contains("0 tasks in 0 tubes"), "{copied}");
}
