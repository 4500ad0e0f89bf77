//! The page that helps to choose a store says what the stores say of themselves, and what was measured.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use taskyard_store::Capabilities;
use taskyard_stores::all_capabilities;

/// What was measured, and the row of docs/benchmarks.md that tells it.
type Rate = (&'static str, &'static str);

/// How each store is named and called in the page, and which rows of docs/benchmarks.md tell how fast it is. A store
/// none of whose rows are there was not measured.
const STORES: &[(&str, &str, &str, &[Rate])] = &[
    (
        "memory",
        "memory",
        "memory:",
        &[("put, take and ack together", "memory, batches of 100 from 16 clients")],
    ),
    (
        "sqlite",
        "SQLite, in a folder (the default)",
        "sqlite:DIR",
        &[
            ("put", "durable put, 256 in flight"),
            ("take + ack", "durable take + ack, 256 in flight"),
        ],
    ),
    (
        "postgres",
        "PostgreSQL",
        "postgres://…",
        &[("put", "put in batches of 1,000"), ("take + ack", "drain in batches")],
    ),
    (
        "redis",
        "Redis",
        "redis://…",
        &[("put", "put, batches of 100"), ("take + ack", "drain, batches of 100")],
    ),
    (
        "tarantool",
        "Tarantool",
        "tarantool://…",
        &[
            ("put", "Tarantool put, batches of 100"),
            ("take + ack", "Tarantool take + ack, batches of 100"),
        ],
    ),
];

const HEAD: &str = "\
# Which store

<!-- Made by `cargo xtask docs` from what the stores say of themselves and from benchmarks.md. Do not edit. -->

Begin with the default, a folder: it is durable, the fastest of the durable ones, and needs nothing else. Take a database when
several servers must share the tasks, or when it is there and backed up anyway. `taskyard copy` moves everything later.

";

const TAIL: &str = "
## Moving

`taskyard copy --from URL --to URL` brings tubes with their tasks, ids, states, attempts and times, and semaphores with all
who stand there, from one store to another. Stop the servers of both first: a folder is locked while it is copied; of
a database it is checked in the end that nobody used it meanwhile.

- The source is not changed. Nothing is seen in the target before all is there; until then tasks are in paused tubes called
  `taskyard.copy.…`.
- A copy that was killed goes on when the same command is run again: what came before is compared with the source, and
  comes anew where that has changed.
- It is refused, before anything is written, when the target has such tubes or semaphores with other content, or cannot hold
  something: a tube with a semaphore before it on a cluster of Redis, or tasks of a temporary tube, which would not outlive the copy.
- The tubes of an existing tarantool/queue (`tarantool+queue://…`) can be copied from, with what it knows of its tasks; attempts and
  earlier starts are not among it. It cannot be copied to.
- On a cluster of Redis each tube gets its name alone: a copy that is killed in its last step may have shown some of them, and brings the
  rest when it is run again.
- Events of semaphores keep their numbers where these are free, but not in Redis, where a number tells its semaphore.
- What is taken comes over as after a crash, ready. Numbers of deliveries begin beyond those of the source, so that whoever
  still names an old one is refused.
- The counters of `stats` count since a store was opened, so they begin anew with the first server of the target.
";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The second cell of the row with this name.
fn figure(benchmarks: &str, row: &str) -> Option<String> {
    let begin = format!("| {row} |");
    let line = benchmarks.lines().find(|line| line.starts_with(&begin))?;
    let cell = line[begin.len()..].split('|').next().unwrap_or_default().replace("**", "");
    Some(cell.split('(').next().unwrap_or_default().trim().to_owned())
}

/// What was measured of a store: all that is named, or nothing.
fn rates(benchmarks: &str, rates: &[Rate]) -> String {
    let found = rates.iter().map(|(what, row)| (what, row, figure(benchmarks, row)));
    let found: Vec<_> = found.collect();
    if found.iter().all(|(_, _, figure)| figure.is_none()) {
        return "not yet".into();
    }
    let told = found.iter().map(|(what, row, figure)| match figure {
        Some(figure) => format!("{what} {figure}"),
        None => panic!("docs/benchmarks.md has no row {row:?}"),
    });
    told.collect::<Vec<_>>().join(", ")
}

fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

fn page(stores: &[Capabilities], benchmarks: &str) -> String {
    let mut page = String::from(HEAD);
    let known = |name: &str| {
        let store = STORES.iter().find(|store| store.0 == name);
        store.unwrap_or_else(|| panic!("say in STORES what {name} is called"))
    };
    page += "| | ";
    for store in stores {
        let (_, title, url, _) = known(store.name);
        write!(page, "{title} `{url}` | ").unwrap();
    }
    page = page.trim_end().to_owned() + "\n|---|" + &"---|".repeat(stores.len()) + "\n";
    let mut row = |what: &str, cell: &dyn Fn(&Capabilities) -> String| {
        let cells: Vec<String> = stores.iter().map(cell).collect();
        writeln!(page, "| {what} | {} |", cells.join(" | ")).unwrap();
    };
    row("durable: answered means on disk", &|store| yes(store.durable).into());
    row("several servers share it", &|store| yes(store.shared).into());
    row("who waits hears of a task", &|store| store.wakes.into());
    row("semaphores", &|store| yes(store.semaphores).into());
    row("`copy` from it, to it", &|store| {
        format!("{}, {}", yes(store.exports), yes(store.imports))
    });
    row("measured, see [benchmarks.md](benchmarks.md)", &|store| {
        rates(benchmarks, known(store.name).3)
    });
    page += "\n## What is lost on which failure\n\n| failure | ";
    for store in stores {
        write!(page, "{} | ", store.name).unwrap();
    }
    page = page.trim_end().to_owned() + "\n|---|" + &"---|".repeat(stores.len()) + "\n";
    let mut seen = BTreeSet::new();
    let failures = stores.iter().flat_map(|store| store.loses).map(|(failure, _)| *failure);
    for failure in failures.filter(|failure| seen.insert(*failure)) {
        let cells = stores.iter().map(|store| {
            let lost = store.loses.iter().find(|(of, _)| *of == failure);
            lost.map_or("–", |(_, lost)| *lost)
        });
        let cells: Vec<_> = cells.collect();
        writeln!(page, "| {failure} | {} |", cells.join(" | ")).unwrap();
    }
    page + TAIL
}

#[test]
fn the_page_is_what_the_stores_say() {
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let made = page(&all_capabilities(), &read("docs/benchmarks.md"));
    if std::env::var_os("TASKYARD_WRITE_DOCS").is_some() {
        std::fs::write(root().join("docs/stores.md"), &made).expect("the page can be written");
    }
    assert!(read("docs/stores.md") == made, "docs/stores.md is old: run `cargo xtask docs`");
}

#[test]
fn every_store_says_all_of_it() {
    for store in all_capabilities() {
        assert!(!store.wakes.is_empty(), "{}: who waits hears how soon?", store.name);
        assert!(store.loses.len() >= 3, "{}: what is lost on which failure?", store.name);
    }
}

#[test]
fn a_store_is_measured_or_not() {
    let named: &[Rate] = &[("put", "x put"), ("take", "x take")];
    assert_eq!(rates("| put | 7 |", named), "not yet");
    let both = "| x put | **7 tasks/s** (6 to 8) | 9 |\n| x take | 8 tasks/s |";
    assert_eq!(rates(both, named), "put 7 tasks/s, take 8 tasks/s");
    let half = std::panic::catch_unwind(|| rates("| x put | 7 |", named));
    assert!(half.is_err(), "a row that is missing beside another was renamed");
}
