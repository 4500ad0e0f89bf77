//! A run uses no thread, socket or time of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use taskyard_simulator::Scenario;

use crate::short_plans;

/// The most threads and sockets that a process was seen with until it ended.
fn most_used(mut child: Child) -> (usize, usize) {
    let folder = PathBuf::from(format!("/proc/{}", child.id()));
    let (mut threads, mut sockets) = (0, 0);
    while child.try_wait().expect("a child can be waited for").is_none() {
        threads = threads.max(fs::read_dir(folder.join("task")).map_or(0, Iterator::count));
        let files = fs::read_dir(folder.join("fd")).into_iter().flatten().flatten();
        let targets = files.filter_map(|file| fs::read_link(file.path()).ok());
        let is_socket = |target: &PathBuf| target.to_string_lossy().starts_with("socket:");
        sockets = sockets.max(targets.filter(is_socket).count());
    }
    (threads, sockets)
}

/// What a process that is given no socket uses itself is all that may be seen.
#[test]
fn a_run_starts_no_thread_and_opens_no_socket() {
    for scenario in Scenario::ALL.into_iter().filter(|scenario| *scenario != Scenario::Quiet) {
        let plan = short_plans(scenario).next().expect("there is always another seed");
        let mut simulator = Command::new(env!("CARGO_BIN_EXE_taskyard-simulator"));
        simulator.args(["--scenario", scenario.name(), "--seed", &plan.seed.to_string()]);
        let simulator = simulator.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let used = most_used(simulator.spawn().expect("the simulator can be run"));
        assert_eq!(used, (1, 0), "threads and sockets of {}", scenario.name());
    }
}

/// The sources of what runs within a run: `main`, its modules and `shrink` measure the time of the machine.
fn sources(folder: &Path) -> Vec<PathBuf> {
    const MEASURING: [&str; 4] = ["main.rs", "totals.rs", "find_planted.rs", "shrink.rs"];
    let entries = fs::read_dir(folder).expect("a folder of sources").flatten();
    let paths = entries.map(|entry| entry.path());
    let is_used = |path: &PathBuf| !MEASURING.iter().any(|name| path.ends_with(name));
    let all = paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    all.filter(is_used).collect()
}

/// What of the machine a line of a source names, if it does.
fn named(line: &str) -> Option<&'static str> {
    const WORDS: [&str; 7] = [
        "SystemTime",
        "thread::spawn",
        "thread::sleep",
        "thread::Builder",
        "TcpStream",
        "TcpListener",
        "UdpSocket",
    ];
    let is_std_time = line.contains("std::time::") && line.contains("Instant");
    let word = WORDS.into_iter().find(|word| line.contains(word));
    word.or(is_std_time.then_some("std::time::Instant"))
}

#[test]
fn no_source_of_a_run_names_a_thread_a_socket_or_the_time_of_the_machine() {
    let sources = sources(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")));
    assert!(sources.iter().any(|path| path.ends_with("disk/threads.rs")), "all are read");
    for path in sources {
        let text = fs::read_to_string(&path).expect("a source");
        for (number, line) in (1..).zip(text.lines()) {
            assert_eq!(named(line), None, "{}:{number}", path.display());
        }
    }
    assert_eq!(named("use std::time::{Duration, Instant};"), Some("std::time::Instant"));
    assert_eq!(named("    std::thread::spawn(run);"), Some("thread::spawn"));
}
