//! `copy`, also when it is killed.

use taskyard_sql::Conninfo;
use taskyard_sql::connection::{Query, SessionOptions, connect};

use crate::many::{TASKS, source};
use crate::process::{Running, Serving, binary, run};
use taskyard_testkit::postgres::{Cluster, programs};

/// Queries one value from a database until it is accepted.
fn ask(url: &str, sql: &str, good: impl Fn(&str) -> bool) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let conninfo = Conninfo::parse(url).expect("a URL");
        let wire = connect(&conninfo, &SessionOptions::default()).await;
        let mut wire = wire.unwrap_or_else(|error| panic!("{}", error.line()));
        loop {
            // The tables may not exist yet.
            let rows = wire.query(Query::new(sql, [])).await.unwrap_or_default();
            let value = rows.into_iter().next().and_then(|mut row| row.take(0));
            if let Some(value) = value.filter(|value| good(value)) {
                return value;
            }
            tokio::task::yield_now().await;
        }
    })
}

#[test]
fn a_killed_copy_resumes() {
    let Some(programs) = programs() else { return };
    let cluster = Cluster::new(programs);
    let url = cluster.url("postgres");
    let folder = tempfile::tempdir().expect("a folder");
    let from = source(folder.path());
    let there = "SELECT count(*)::text FROM taskyard.task";
    for least in [1, 10_000, 25_000] {
        let copy = Running::start(binary().args(["copy", "--from", &from, "--to", &url]));
        ask(&url, there, |count| count.parse::<usize>().is_ok_and(|count| count >= least));
        copy.signal("KILL");
        drop(copy);
    }
    let copied = run(&["copy", "--from", &from, "--to", &url, "--json"]).json();
    assert_eq!((&copied[0]["copied"], &copied[0]["tasks"]), (&true.into(), &TASKS.into()));
    assert!(copied[0]["resumed"].as_u64().is_some_and(|resumed| resumed >= 25_000), "{copied:?}");
    let same = "SELECT (count(*) = 40000 AND min(id) = 0 AND max(id) = 39999 AND count(DISTINCT payload) = 40000 \
        AND bool_and(convert_from(substr(payload, 2), 'UTF8') = lpad((id / 5000)::text, 2, '0') \
            || lpad((id % 5000)::text, 4, '0')))::text \
        FROM taskyard.task k JOIN taskyard.tube t ON t.number = k.tube WHERE t.name = 'mail'";
    assert_eq!(ask(&url, same, |_| true), "true");
    let tubes = "SELECT string_agg(name, ' ') FROM taskyard.tube";
    assert_eq!(ask(&url, tubes, |_| true), "mail", "nothing is left of the way");
    let again = run(&["copy", "--from", &from, "--to", &url]).good();
    assert!(again.contains("already"), "{again}");
}

#[test]
fn bad_urls_and_busy_folders_are_refused() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = source(first.path());
    let fresh = format!("sqlite:{}", second.path().join("new").display());
    let copy = |from: &str, to: &str| run(&["copy", "--from", from, "--to", to]);
    assert!(copy("nothing:", &fresh).ends(11).err.contains("names no store"));
    assert!(copy(&from, "mysql://db").ends(11).err.contains("names no store"));
    assert!(copy("memory:", &fresh).ends(2).err.contains("memory:"));
    assert!(copy(&from, &from).ends(2).err.contains("same store"));
    assert!(copy(&fresh, &from).ends(1).err.contains("it contains no store"));
    copy(&from, "postgres://127.0.0.1/none?sslmode=maybe").ends(1);
    let empty = format!("sqlite:{}", second.path().join("empty").display());
    let told = run(&["copy", "--from", &from, "--to", &empty, "--tube", "none"]).ends(4);
    assert!(told.err.contains("none"), "{told:?}");
    // A refused copy left an empty folder.
    assert!(!second.path().join("empty").exists(), "nothing was made");
    let told = run(&["copy", "--from", &from, "--to", &fresh, "--dry-run"]).good();
    assert!(told.contains("would copy 40000 tasks in 1 tube,"), "{told}");
    assert!(!second.path().join("new").exists(), "nothing was made");
    let serving = Serving::folder(first.path(), &[]);
    copy(&from, &fresh).ends(10);
    drop(serving);
}

#[test]
fn a_folder_is_served_after_a_copy() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let from = source(first.path());
    let to = format!("sqlite:{}", second.path().display());
    let copied = run(&["copy", "--from", &from, "--to", &to]);
    assert!(copied.err.contains("40000 of 40000 tasks"), "{copied:?}");
    assert!(copied.good().starts_with("copied 40000 tasks in 1 tube, 0 semaphores"));
    let serving = Serving::folder(second.path(), &[]);
    let taken = serving.run(&["take", "mail", "--json"]).json();
    assert_eq!(taken[0]["id"], 0);
    serving.run(&["put", "mail", "x"]).good();
    let put = serving.run(&["peek", "mail", "40000", "--json"]).json();
    assert_eq!(put[0]["data"], "x");
}
